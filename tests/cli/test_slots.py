"""The verb ``slots``: reading its arguments, and counting the slots of the instance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.cli.slots import SlotsError, make_rows, parse_counts
from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError
from nodemanager.core.slots import SlotName, TypeName
from tests.builders import a_launch, a_rank

SITE = """
[Site]
cluster = lab
state_dir = state
[Flux]
head_address = 127.0.0.1
[Cloud]
provider = local
[Limits]
nodes_max = 4
price_per_hour_max = 1
[Node cloud]
cores = 4
memory = 1GiB
price_per_hour = 0.1
slots = cloud[1-4]
[Node gpu]
cores = 8
gpus = 2
memory = 1GiB
price_per_hour = 0.1
slots = gpu[1-2]
"""


def a_site(folder: Path, division: str = "") -> Path:
    (folder / "site.ini").write_text(SITE)
    if division:
        conf = folder / "state" / "flux" / "conf.d"
        conf.mkdir(parents=True)
        (conf / "flux.toml").write_text(f"[resource]\n[node-manager.slots]\n{division}\n")
    return folder / "site.ini"


def slots_of(file: Path) -> dict[str, tuple[str, ...]]:
    return {node_type.name: node_type.slots for node_type in load_site(file).node_types}


def test_before_init_the_site_says_whose_each_slot_is(tmp_path: Path) -> None:
    assert slots_of(a_site(tmp_path))["gpu"] == ("gpu1", "gpu2")


def test_afterwards_the_instance_does(tmp_path: Path) -> None:
    file = a_site(tmp_path, 'cloud = "cloud[1-3]"\ngpu = "gpu[1-2],cloud4,gpu3"')
    assert slots_of(file) == {"cloud": ("cloud1", "cloud2", "cloud3"), "gpu": ("cloud4", "gpu1", "gpu2", "gpu3")}


@pytest.mark.parametrize(
    ("division", "said"),
    [('huge = "cloud1"', r"keep \[Node huge\]"), ("cloud = 3", "a host list such as"), ("cloud", "not valid TOML")],
)
def test_a_division_that_does_not_go_with_the_site_is_a_fault(tmp_path: Path, division: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_site(a_site(tmp_path, division))


def test_counts_are_read() -> None:
    assert parse_counts(["gpu=4", "cloud=0"]) == {"gpu": 4, "cloud": 0}


@pytest.mark.parametrize("texts", [["gpu"], ["=4"], ["gpu="], ["gpu=-1"], ["gpu=٣"], ["gpu=1", "gpu=2"]])
def test_what_is_no_count_is_refused(texts: list[str]) -> None:
    with pytest.raises(SlotsError, match=r"gpu|=4"):
        parse_counts(texts)


def test_each_type_is_shown_with_what_stands_in_the_way_of_a_change(tmp_path: Path) -> None:
    site = load_site(a_site(tmp_path))
    moved = replace(a_rank("cloud4"), type_name=TypeName("gpu"))
    ranks = [
        a_rank("cloud1", online=True),
        a_rank("cloud2"),
        replace(a_rank("cloud3"), drain_reason="bad fan"),
        moved,
        a_rank("gpu1"),
    ]
    rows = {row.type_name: row for row in make_rows(site, ranks, [a_launch("cloud1"), a_launch("cloud2")])}
    cloud, gpu = rows[TypeName("cloud")], rows[TypeName("gpu")]
    assert (cloud.online, cloud.leased, cloud.movable) == (1, 2, 0)
    assert (gpu.slots, gpu.online, gpu.leased, gpu.movable) == ((SlotName("cloud4"), SlotName("gpu1")), 0, 0, 2)
