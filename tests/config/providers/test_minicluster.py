"""What a site with ``provider = minicluster`` must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError, JoinMethod
from nodemanager.config.text.settings import SizeOwner
from nodemanager.core.slots import Misfit
from nodemanager.service.assembly.policy import policy_of
from tests.paths import ROOT

EXAMPLE = (ROOT / "config" / "kubernetes" / "site.ini").read_text(encoding="utf-8")


def site_file(folder: Path, text: str) -> Path:
    file = folder / "site.ini"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_example_is_good_and_its_nodes_form_a_stack(tmp_path: Path) -> None:
    site = load_site(site_file(tmp_path, EXAMPLE))
    assert site.flux.join is JoinMethod.IMAGE
    assert site.policy.misfit is Misfit.ACCEPT
    assert site.cloud.owner is SizeOwner.US
    assert policy_of(site).stacked


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("name = mini\n", "", "must be given: the name of the MiniCluster"),
        ("name = mini\n", "name = Mini\n", "a-z"),
        ("slots = mini-[1-9]", "slots = mini-[0-9]", "mini-\\[1-10\\] is needed"),
        ("slots = mini-[1-9]", "slots = other-[1-9]", "mini-\\[1-9\\] is needed"),
        ("[Cloud]\n", "[Cloud]\nregion = eu\n", "does not use this key"),
        ("owner = us\n", "owner = me\n", "us or shared is needed"),
        ("[Flux]\n", "[Flux]\njoin = service\n", "remove the key"),
        ("[Node pod]\n", "[Node pod]\nmax_age = 1d\n", "no single pod"),
        ("[Node pod]\n", "[Node pod]\nmarket = spot\n", "spot nodes are not supported"),
        (
            "[Node pod]\n",
            "[Node big]\nslots = x\ncores = 1\nmemory = 1GiB\nprice_per_hour = 1\n[Node pod]\n",
            "one \\[Node NAME\\]",
        ),
    ],
)
def test_what_the_operator_could_not_carry_out_is_a_fault(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(ConfigError, match=problem):
        load_site(site_file(tmp_path, EXAMPLE.replace(old, new)))


def test_the_service_s_material_is_relative_to_the_site(tmp_path: Path) -> None:
    keys = "service = both-grpc.flux.svc:50051\nservice_material = secrets\n"
    site = load_site(site_file(tmp_path, EXAMPLE.replace("[Cloud]\n", f"[Cloud]\n{keys}")))
    assert site.cloud.service == "both-grpc.flux.svc:50051"
    assert site.cloud.service_material == tmp_path / "secrets"
    with pytest.raises(ConfigError, match="HOST:PORT"):
        load_site(site_file(tmp_path, EXAMPLE.replace("[Cloud]\n", "[Cloud]\nservice = both-grpc\n")))


def test_a_kubeconfig_is_relative_to_the_site(tmp_path: Path) -> None:
    site = load_site(site_file(tmp_path, EXAMPLE.replace("[Cloud]\n", "[Cloud]\nkubeconfig = kube/config\n")))
    assert site.cloud.kubeconfig == tmp_path / "kube" / "config"
