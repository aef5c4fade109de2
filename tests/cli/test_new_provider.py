"""A provider is one module with its ``PROVIDER``, and one line in ``PROVIDERS`` (see CONTRIBUTING.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from doc import generate
from nodemanager.cli import main
from nodemanager.cloud.providers import cloud_factory
from nodemanager.config.load import load_site
from nodemanager.config.provider import provider_named
from nodemanager.config.site import Site
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.config.text.settings import CloudSettings, allowed_keys
from tests.cloud.toy_provider import ToySettings
from tests.config.test_site import faults_of
from tests.contract.cloud_subjects import SystemClock

SITE = """[Site]
cluster = lab
state_dir = state
[Flux]
uri = simulated
[Cloud]
provider = toy
shelf = top
[Limits]
nodes_max = 4
price_per_hour_max = 10
[Node cpu]
cores = 4
memory = 8GiB
price_per_hour = 0.25
slots = cpu[1-4]
"""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS, "toy", "tests.cloud.toy_provider")


def a_site(folder: Path) -> Site:
    (folder / "site.ini").write_text(SITE, encoding="utf-8")
    return load_site(folder / "site.ini")


def test_its_site_is_read_with_its_own_keys(tmp_path: Path) -> None:
    cloud = a_site(tmp_path).cloud
    assert isinstance(cloud, ToySettings)
    assert (cloud.provider, cloud.shelf) == ("toy", "top")


def test_its_faults_are_among_those_of_the_site(tmp_path: Path) -> None:
    text = SITE.replace("shelf = top", "region = here\nwake = knock")
    assert {(it.section, it.key) for it in faults_of(tmp_path, text)} == {
        ("Cloud", "shelf"),
        ("Cloud", "region"),
        ("Cloud", "wake"),
    }
    (fault,) = faults_of(tmp_path, SITE.replace("provider = toy", "provider = local"))
    assert (fault.section, fault.key) == ("Cloud", "shelf"), "no other provider knows its keys"


def test_check_asks_it_online(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_site(tmp_path)
    assert main.main(["check", "--online", "--config", str(tmp_path / "site.ini")]) == 0
    said = capsys.readouterr()
    assert "[Cloud] the toy is on loan." in said.err
    assert "ok       account: it answers; 0 instances of this cluster listed" in said.out
    assert "ok       nodes of cpu: lab may have them" in said.out


def test_its_port_is_made_for_the_site(tmp_path: Path) -> None:
    assert cloud_factory(a_site(tmp_path), lambda *_: "#!/bin/sh\n", SystemClock())().list_nodes() == ()


def test_init_writes_a_site_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.make_parser().parse_args(["init", "--help"])
    assert "toy: where it stands" in capsys.readouterr().out
    file = tmp_path / "new.ini"
    assert main.main(["init", "--provider", "toy", "--output", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert "provider = toy\nshelf = top\nimage = wood\nnetwork = floor\n" in text
    assert "billing = hourly" in text


def test_its_keys_are_in_the_page_of_settings() -> None:
    assert "For `toy`: Where it stands." in generate.settings_page()


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_key_that_only_one_provider_has_has_a_meaning(name: str) -> None:
    rules = provider_named(name)
    own = allowed_keys(rules.settings).keys() - allowed_keys(CloudSettings).keys()
    assert own == set(rules.meanings)
