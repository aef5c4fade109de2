"""Several clouds in one site."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.cloud.providers import provider_warnings
from nodemanager.config.load import load_site
from nodemanager.config.reload import needs_restart
from nodemanager.config.site import ConfigError, Site
from nodemanager.core.slots import DEFAULT_CLOUD
from nodemanager.service.assembly.policy import policy_of

SITE = """\
[Site]
cluster = two
state_dir = state
[Flux]
uri = simulated
[Limits]
nodes_max = 4
price_per_hour_max = 5
"""
EAST = """\
[Cloud east]
provider = ec2
region = us-east-1
image = ami-1
nodes_max = 2
[Cloud east Credentials]
access_key_id = A-EAST
secret_access_key = ${EAST_SECRET}
"""
WEST = """\
[Cloud west]
provider = ec2
region = us-west-2
image = ami-2
priority = 2
[Cloud west Credentials]
access_key_id = A-WEST
secret_access_key = ${WEST_SECRET}
"""
SECRETS = {"EAST_SECRET": "hidden-east", "WEST_SECRET": "hidden-west"}


def node(name: str, cloud: str = "") -> str:
    key = f"cloud = {cloud}\n" if cloud else ""
    rest = f"size = c7i.large\ncores = 1\nmemory = 4GiB\nprice_per_hour = 0.1\nslots = {name}[1-2]\n"
    return f"[Node {name}]\n{key}{rest}"


def load(tmp_path: Path, *sections: str, site: str = SITE) -> Site:
    file = tmp_path / "site.ini"
    file.write_text(site + "".join(sections))
    file.chmod(0o600)
    return load_site(file, SECRETS)


def faults(tmp_path: Path, *sections: str, site: str = SITE) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, *sections, site=site)
    return [f"[{it.section}] {it.key}: {it.problem}" for it in caught.value.faults]


def test_each_cloud_has_its_own_account_and_node_types(tmp_path: Path) -> None:
    site = load(tmp_path, EAST, WEST, node("cpu", "east"), node("big", "west"))
    assert list(site.by_cloud) == ["east", "west"]
    east, west = site.by_cloud.values()
    assert (east.cloud.region, west.cloud.region) == ("us-east-1", "us-west-2")
    assert (east.secrets["access_key_id"], west.secrets["secret_access_key"]) == ("A-EAST", "hidden-west")
    assert [it.name for it in east.node_types] == ["cpu"]
    assert [(it.name, it.cloud, it.image, it.priority) for it in site.node_types] == [
        ("cpu", "east", "ami-1", 0),
        ("big", "west", "ami-2", 2),
    ]
    assert site.slots == ("cpu1", "cpu2", "big1", "big2")
    assert east.node_types[0].made_from == site.node_types[0].made_from


def test_the_ranks_follow_the_file_whatever_the_clouds(tmp_path: Path) -> None:
    site = load(tmp_path, EAST, WEST, node("big", "west"), node("cpu", "east"))
    assert site.slots == ("big1", "big2", "cpu1", "cpu2")


def test_types_without_a_cloud_belong_to_the_one_without_a_name(tmp_path: Path) -> None:
    plain = EAST.replace("[Cloud east", "[Cloud")
    site = load(tmp_path, plain, WEST, node("cpu"), node("big", "west"))
    assert list(site.by_cloud) == [DEFAULT_CLOUD, "west"]
    assert [it.cloud for it in site.node_types] == [DEFAULT_CLOUD, "west"]


def test_one_named_cloud_is_enough(tmp_path: Path) -> None:
    site = load(tmp_path, EAST, node("cpu"))
    assert list(site.by_cloud) == ["east"]
    assert site.node_types[0].cloud == "east"
    assert site.cloud_dir == tmp_path / "state" / "cloud-east"


def test_faults_name_the_section_in_which_they_are(tmp_path: Path) -> None:
    wrong = WEST.replace("region = us-west-2\n", "").replace("secret_access_key", "secret_acces_key")
    found = faults(tmp_path, EAST, wrong, node("cpu", "east"), node("big", "west"))
    assert any(it.startswith("[Cloud west] region: must be given") for it in found)
    assert any(it.startswith("[Cloud west Credentials] secret_acces_key: no such key") for it in found)
    assert not any("hidden" in it for it in found)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ((EAST, WEST, node("cpu"), node("big", "west")), "[Node cpu] cloud: must be given: one of east, west"),
        ((EAST, node("cpu", "eats")), "[Node cpu] cloud: there is no such cloud; the site has east"),
        ((EAST, WEST, node("cpu", "east")), "[Cloud west] : no [Node NAME] has cloud = west"),
        (
            (EAST, "[Cloud south Credentials]\n", node("cpu")),
            "[Cloud south Credentials] : there is no",
        ),
        (
            (EAST.replace("east]", "default]"), node("cpu")),
            "[Cloud default] : default is the name of",
        ),
        (
            (EAST, "[Cloud pods]\nprovider = minicluster\nname = lab\n", node("cpu", "east"), node("big", "pods")),
            "[Cloud pods] provider: nodes of this provider cannot be mixed",
        ),
        (
            (EAST, EAST.replace("[Cloud east", "[Cloud twin"), node("cpu", "east"), node("big", "twin")),
            "[Cloud twin] provider: the same account and region as [Cloud east]",
        ),
    ],
)
def test_contradictions_are_found(tmp_path: Path, sections: tuple[str, ...], expected: str) -> None:
    assert any(it.startswith(expected) for it in faults(tmp_path, *sections)), faults(tmp_path, *sections)


@pytest.mark.parametrize("others", [(), (WEST, node("big", "west"))])
def test_a_simulated_cloud_for_a_real_flux_is_one_fault_of_its_own_section(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    real = SITE.replace("uri = simulated\n", "uri = local\nhead_address = 10.0.0.1\n")
    found = faults(tmp_path, "[Cloud own]\nprovider = simulated\n", node("cpu", "own"), *others, site=real)
    found = [it for it in found if "simulated" in it]
    assert found == [
        "[Cloud own] provider: a simulated cloud has no nodes for a real Flux: choose another provider"
    ]


def test_providers_may_differ(tmp_path: Path) -> None:
    local = "[Cloud own]\nprovider = local\n"
    site = load(tmp_path, EAST, local, node("cpu", "east"), node("desk", "own"))
    assert [it.cloud.provider for it in site.by_cloud.values()] == ["ec2", "local"]


def test_a_reload_takes_limits_and_priority_and_no_other_account(tmp_path: Path) -> None:
    both = node("cpu", "east") + node("big", "west")
    old = load(tmp_path, EAST, WEST, both)
    assert needs_restart(old, load(tmp_path, EAST.replace("nodes_max = 2", "nodes_max = 3"), WEST, both)) == ()
    assert needs_restart(old, load(tmp_path, EAST, WEST.replace("priority = 2", "priority = 1"), both)) == ()
    moved = WEST.replace("us-west-2", "us-west-1")
    assert needs_restart(old, load(tmp_path, EAST, moved, both)) == ("[Cloud west] region",)
    other = WEST.replace("A-WEST", "B-WEST")
    assert needs_restart(old, load(tmp_path, EAST, other, both)) == ("[Cloud west Credentials]",)
    assert needs_restart(old, load(tmp_path, EAST, node("cpu", "east"))) == ("the list of [Cloud NAME]",)


def test_one_call_creates_several_nodes_in_each_cloud_whose_instances_can_prove_themselves(tmp_path: Path) -> None:
    join = "[Flux]\nuri = local:///run/flux/local\nhead_address = 10.0.0.1\njoin = service\n"
    file = tmp_path / "site.ini"
    own = WEST.replace("region", "endpoint = https://ec2.example.org\nregion")
    for west, batches in ((WEST, (True, True)), (own, (True, False))):
        sections = (EAST, west, node("cpu", "east"), node("big", "west"))
        file.write_text(SITE.replace("[Flux]\nuri = simulated\n", join) + "".join(sections))
        file.chmod(0o600)
        assert tuple(it.batches for it in load_site(file, SECRETS).by_cloud.values()) == batches


def test_each_cloud_may_say_what_its_egress_costs(tmp_path: Path) -> None:
    priced = EAST.replace("nodes_max", "egress_price_per_gib = 0.09\nnodes_max")
    types = node("cpu", "east"), node("big", "west")
    site = load(tmp_path, priced, WEST, *types)
    rules = policy_of(site).clouds
    assert [it.egress_price_per_gib for it in rules.values()] == [Decimal("0.09"), None]
    assert not needs_restart(load(tmp_path, EAST, WEST, *types), site)
    wrong = [it.replace("nodes_max = 2\n", "").replace("priority = 2\n", "") for it in (EAST, WEST)]
    found = faults(
        tmp_path,
        wrong[0].replace("image", "egress_price_per_gib = -1\nimage"),
        wrong[1].replace("image", "egress_price_per_gib = cheap\nimage"),
        *types,
    )
    assert [it.split(":")[0] for it in found] == [f"[Cloud {it}] egress_price_per_gib" for it in ("east", "west")]
    assert all("a price of 0 or more" in it for it in found)


def test_warnings_name_the_section_of_their_cloud(tmp_path: Path) -> None:
    without_keys = EAST.partition("[Cloud east Credentials]")[0]
    commands = "".join(f"{it} = ./no-such {{node}}\n" for it in ("wake", "sleep", "probe"))
    rack = f"[Cloud rack]\nprovider = static\n{commands}"
    hosts = node("c", "rack") + "hosts = host[1-2]\n"
    site = load(tmp_path, without_keys, WEST, rack, node("a", "east"), node("b", "west"), hosts)
    east, *of_rack = provider_warnings(site, {})
    assert east.startswith("[Cloud east Credentials] is empty")
    assert of_rack
    assert all(it.startswith("[Cloud rack] ") for it in of_rack)


def test_a_single_cloud_is_called_as_its_section_is(tmp_path: Path) -> None:
    assert load(tmp_path, EAST, node("a")).cloud_section.credentials == "Cloud east Credentials"
    plain = load(tmp_path, EAST.replace("Cloud east", "Cloud"), node("a"))
    assert (plain.cloud_section.section, plain.cloud_section.credentials) == ("Cloud", "Cloud Credentials")
