"""The proposal for an existing instance: a diff that can be applied, and no change to the instance."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.config.text.flux_toml import bootstrap_hosts, read_slot_types
from nodemanager.flux.setup.bootstrap import BootstrapError
from nodemanager.flux.setup.existing import propose, resource_tables_of_r

BOOTSTRAP = """\
[bootstrap]
curve_cert = "/etc/flux/system/curve.cert"
hosts = [ # all of them
  { host = "mgmt", bind = "tcp://*:8050", connect = "tcp://mgmt:8050" },
  { host = "node[1-3]" },
]
"""
R = {
    "version": 1,
    "execution": {
        "R_lite": [
            {"rank": "0-2", "children": {"core": "0-3"}},
            {"rank": "3", "children": {"core": "0-3", "gpu": "0"}},
        ],
        "nodelist": ["mgmt,node[1-3]"],
        "properties": {"batch": "1-3"},
    },
}
TABLES = [
    {"hosts": "mgmt", "cores": "0-3"},
    {"hosts": "node[1-2]", "cores": "0-3", "properties": ["batch"]},
    {"hosts": "node3", "cores": "0-3", "gpus": "0", "properties": ["batch"]},
]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    file = tmp_path / "site.ini"
    file.write_text(
        """
        [Site]
        cluster = mine
        state_dir = state
        [Flux]
        head_address = mgmt
        bootstrap_dir = system
        [Cloud]
        provider = local
        [Limits]
        nodes_max = 4
        price_per_hour_max = 1
        [Node cloud]
        cores = 2
        memory = 1GiB
        price_per_hour = 0.1
        slots = cloud[1-4]
        """
    )
    return load_site(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    conf = tmp_path / "system" / "conf.d"
    conf.mkdir(parents=True)
    (conf / "bootstrap.toml").write_text(BOOTSTRAP)
    (conf / "resource.toml").write_text('[resource]\npath = "R"\nexclude = "mgmt"\n\n[kvs]\n')
    (conf / "R").write_text(json.dumps(R))
    return tmp_path / "system"


def applied(diff: str, folder: Path) -> dict[str, object]:
    # As patch(1) applies it, which a bare machine may lack; git takes no fuzz.
    command = ["git", "apply", "-p1", "--whitespace=nowarn", "-"]
    ran = subprocess.run(command, input=diff, text=True, check=False, capture_output=True, cwd="/")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    config: dict[str, object] = {}
    for path in (folder / "conf.d").glob("*.toml"):
        config |= tomllib.loads(path.read_text())
    return config


def test_the_diff_makes_it_elastic_and_keeps_what_is_there(site: Site, folder: Path) -> None:
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    proposal = propose(site, folder)
    assert {path: path.read_text() for path in before} == before

    config = applied(str(proposal), folder)
    assert bootstrap_hosts(config) == ["mgmt", "node1", "node2", "node3", "cloud1", "cloud2", "cloud3", "cloud4"]
    assert config["resource"] == {
        "exclude": "mgmt",
        "noverify": True,
        "config": [*TABLES, {"hosts": "cloud[1-4]", "cores": "0-1"}],
    }
    assert set(read_slot_types(config).values()) == {"cloud"}
    assert "# all of them" in (folder / "conf.d" / "bootstrap.toml").read_text()
    assert propose(site, folder).diff == ""


@pytest.mark.parametrize(
    "written",
    [
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r\n").removesuffix("\r\n"),
        lambda text: f"# one\u2028line\n{text}",
        lambda text: f"{text}\n\n",
    ],
    ids=["no newline at the end", "CRLF", "CRLF and none at the end", "another separator", "blank lines"],
)
def test_the_diff_can_be_applied_however_the_files_are_written(
    site: Site, folder: Path, written: Callable[[str], str]
) -> None:
    for path in (folder / "conf.d").glob("*.toml"):
        path.write_bytes(written(path.read_text()).encode())
    config = applied(str(propose(site, folder)), folder)
    assert bootstrap_hosts(config)[-1] == "cloud4"
    assert set(read_slot_types(config).values()) == {"cloud"}
    assert propose(site, folder).diff == ""


def test_tables_declare_the_same_as_their_r() -> None:
    assert resource_tables_of_r(R) == TABLES


def test_it_says_that_rank_0_restarts_once_and_that_nothing_was_changed(site: Site, folder: Path) -> None:
    said = str(propose(site, folder))
    assert "Nothing was changed" in said
    assert "restart rank 0 once" in said


@pytest.mark.parametrize(
    ("missing", "said"), [("bootstrap.toml", r"a \[bootstrap\] table"), ("resource.toml", r"a \[resource\] table")]
)
def test_an_instance_without_a_table_is_refused(site: Site, folder: Path, missing: str, said: str) -> None:
    (folder / "conf.d" / missing).unlink()
    with pytest.raises(BootstrapError, match=said):
        propose(site, folder)


def test_an_r_that_describes_every_node_to_the_scheduler_is_refused(site: Site, folder: Path) -> None:
    (folder / "conf.d" / "R").write_text(json.dumps({**R, "scheduling": {}}))
    with pytest.raises(BootstrapError, match="scheduling key"):
        propose(site, folder)


@pytest.mark.parametrize(
    ("exclude", "note"),
    [
        ('exclude = "mgmt"', "Rank 0 runs no jobs"),
        ('exclude = "0"', "Rank 0 runs no jobs"),
        ('exclude = "0-1"', "Rank 0 runs no jobs"),
        ('exclude = "node1,mgmt"', "Rank 0 runs no jobs"),
        ("", "Rank 0 runs jobs"),
        ('exclude = ""', "Rank 0 runs jobs"),
        ('exclude = "1"', "Rank 0 runs jobs"),
        ('exclude = "node[1-2]"', "Rank 0 runs jobs"),
    ],
)
def test_it_says_what_becomes_of_rank_0(site: Site, folder: Path, exclude: str, note: str) -> None:
    file = folder / "conf.d" / "resource.toml"
    file.write_text(file.read_text().replace('exclude = "mgmt"', exclude))
    said = [line for line in propose(site, folder).notes if line.startswith("Rank 0 runs")]
    assert len(said) == 1
    assert said[0].startswith(f"{note}:")


def test_an_exclude_that_names_neither_ranks_nor_hosts_is_refused(site: Site, folder: Path) -> None:
    file = folder / "conf.d" / "resource.toml"
    file.write_text(file.read_text().replace('exclude = "mgmt"', 'exclude = "mgmt["'))
    with pytest.raises(BootstrapError, match=r"resource\.exclude"):
        propose(site, folder)
