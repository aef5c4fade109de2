"""What ``init`` writes for a site with peers, and what is found missing."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, cast

import pytest

from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError, Site
from nodemanager.flux.bindings import Handle
from nodemanager.flux.delegate import setup
from nodemanager.flux.delegate.setup import FROBNICATOR_FILE, setup_faults
from nodemanager.flux.setup.bootstrap import flux_toml
from nodemanager.flux.setup.existing import delegation_faults, frobnicator_file, propose, write_frobnicator

SITE = """
[Site]
cluster = live
state_dir = state
[Flux]
head_address = 127.0.0.1
bootstrap_dir = flux
[Cloud]
provider = local
[Limits]
nodes_max = 2
price_per_hour_max = 1
[Node cpu]
cores = 2
memory = 1GiB
price_per_hour = 1
slots = cpu[1-2]
"""
PEER = "[Peer b]\nuri = ssh://b/run/flux/local\n"
EXISTING = """
[bootstrap]
hosts = [ { host = "head" } ]
[resource]
noverify = true
[[resource.config]]
hosts = "head"
cores = "0"
"""


def a_site(folder: Path, more: str = PEER) -> Site:
    (folder / "site.ini").write_text(SITE + more)
    return load_site(folder / "site.ini")


def test_a_site_without_peers_gets_nothing_of_it(tmp_path: Path) -> None:
    site = a_site(tmp_path, "")
    assert not site.delegates
    written = tomllib.loads(flux_toml(site, tmp_path / "curve.cert"))
    assert not {"ingest", "job-manager"} & written.keys()


def test_init_writes_both_plugins(tmp_path: Path) -> None:
    written = tomllib.loads(flux_toml(a_site(tmp_path), tmp_path / "curve.cert"))
    assert not setup_faults(written, {"plugins": ["alloc-bypass.so"]}, tmp_path / FROBNICATOR_FILE)
    assert written["ingest"]["frobnicator"]["plugins"][-1] == str(tmp_path / FROBNICATOR_FILE)
    assert written["job-manager"]["plugins"] == [{"load": "alloc-bypass.so"}]


def test_peers_that_may_not_be_used_are_not_set_up(tmp_path: Path) -> None:
    assert not a_site(tmp_path, "[Policy]\nburst = never\n" + PEER).delegates
    assert a_site(tmp_path, "[Policy]\ndelegate_to = any\n").delegates


@pytest.mark.parametrize(
    "more",
    [
        "",
        '[ingest.frobnicator]\nplugins = ["defaults", "constraints", "/opt/own.py"]\n',
        '[job-manager]\nplugins = [ { load = "perilog.so" } ]\n',
    ],
)
def test_an_existing_instance_keeps_the_plugins_that_it_has(tmp_path: Path, more: str) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "flux.toml").write_text(EXISTING + more)
    site = a_site(tmp_path)
    site.state_dir.mkdir()
    proposal = propose(site, folder)
    added = [line[1:] for line in proposal.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert any(FROBNICATOR_FILE in line for line in added)
    assert any("alloc-bypass.so" in line for line in added)
    for kept in ("/opt/own.py", "perilog.so"):
        assert (kept in more) == any(kept in line for line in added)
    write_frobnicator(site)
    assert "class Frobnicator" in frobnicator_file(site).read_text()


def test_what_is_missing_is_named() -> None:
    faults = setup_faults({}, {"plugins": []}, Path("/srv/flux/flux_delegate.py"))
    assert "real cores" in faults[0]
    assert '[{ load = "alloc-bypass.so" }]' in faults[0]
    assert "[ingest.frobnicator]" in faults[1]
    assert '"/srv/flux/flux_delegate.py"' in faults[1]
    assert "init --existing DIR writes the file" in faults[1]


def test_delegation_does_not_begin_on_an_instance_that_lacks_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"config.get": {}, "job-manager.jobtap": {"plugins": ["alloc-bypass.so"]}}
    monkeypatch.setattr(setup, "ask_all", lambda *_, **_by_name: answers)
    file = Path("/srv/flux/flux_delegate.py")
    with pytest.raises(setup.SetupIncomplete, match=r"ingest\.frobnicator"):
        setup.check_setup(cast("Handle", None), file, timeout_s=1.0)
    answers["config.get"] = {"ingest": {"frobnicator": {"plugins": [str(file)]}}}
    setup.check_setup(cast("Handle", None), file, timeout_s=1.0)


def test_check_finds_it_in_the_instance_s_configuration(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    assert not delegation_faults(site), "nothing is written yet"
    conf = tmp_path / "flux" / "conf.d"
    conf.mkdir(parents=True)
    (conf / "flux.toml").write_text("[kvs]\n")
    faults = delegation_faults(site)
    assert len(faults) == 2
    assert f'"{frobnicator_file(site)}"' in faults[1], "init --existing will write it there"
    of_init = conf.parent / FROBNICATOR_FILE
    of_init.touch()
    assert f'"{of_init}"' in delegation_faults(site)[1], "init wrote it there"
    (conf / "flux.toml").write_text(flux_toml(site, tmp_path / "curve.cert"))
    assert not delegation_faults(site)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("[Peer any]\nuri = ssh://b/x\n", "any means all peers"),
        ("[Peer b c]\nuri = ssh://b/x\n", "[Peer NAME] needs a name"),
        ("[Peer b]\n", "uri"),
        ("[Peer b]\nuri = http://b/x\n", "uri"),
        ("[Peer b]\nuri = ssh://b/x?y=1\n", "uri"),
        (PEER + "[Peer c]\nuri = ssh://b/run/flux/local\n", "one instance is one peer"),
        ("[Policy]\nburst = always\n" + PEER, "burst"),
    ],
)
def test_faults_of_a_peer(tmp_path: Path, more: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        a_site(tmp_path, more)
    assert fault in str(refused.value)
