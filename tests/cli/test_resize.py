"""The slots that a longer table adds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.cli.resize import ResizeError, is_restarted_by_systemd, new_slots, plan_resize, systemd_unit
from nodemanager.config.load import load_site
from nodemanager.core.slots import SlotName, TypeName
from tests.paths import CONFIG

CLOUD, GPU = TypeName("cloud"), TypeName("gpu")
DIVISION = {SlotName("cloud1"): CLOUD, SlotName("cloud2"): CLOUD, SlotName("gpu-08"): GPU, SlotName("gpu-09"): GPU}
HOSTS = ["head", *DIVISION]
OWN = {
    CLOUD: [SlotName("cloud1"), SlotName("cloud2")],
    GPU: [SlotName("gpu-08"), SlotName("gpu-09")],
}


@given(st.integers(2, 30), st.integers(2, 30))
def test_each_type_gets_as_many_as_asked_under_names_nobody_has(clouds: int, gpus: int) -> None:
    if clouds == gpus == 2:
        return
    added = new_slots({CLOUD: clouds, GPU: gpus}, DIVISION, HOSTS, OWN)
    assert not set(added) & set(HOSTS)
    assert list(added.values()) == [CLOUD] * (clouds - 2) + [GPU] * (gpus - 2)


def test_names_go_on_where_the_type_s_own_end() -> None:
    added = new_slots({GPU: 4, CLOUD: 4}, DIVISION, [*HOSTS, "cloud3"], OWN)
    assert list(added) == ["gpu-10", "gpu-11", "cloud4", "cloud5"]


def test_a_slot_that_came_from_another_type_gives_no_names() -> None:
    moved = {**DIVISION, SlotName("gpu-09"): CLOUD}
    assert list(new_slots({CLOUD: 4, GPU: 2}, moved, HOSTS, OWN)) == ["cloud3", "gpu-10"]
    away = {**DIVISION, SlotName("gpu-08"): CLOUD, SlotName("gpu-09"): CLOUD}
    assert list(new_slots({GPU: 1}, away, HOSTS, OWN)) == ["gpu-10"]


def test_a_simulated_site_has_no_table() -> None:
    site = load_site(CONFIG / "embedded.ini")
    with pytest.raises(ResizeError, match="simulated"):
        plan_resize(site, {TypeName("small"): 9})


def test_a_type_without_slots_gets_some_of_its_own_name() -> None:
    assert list(new_slots({TypeName("big"): 2}, DIVISION, HOSTS, {TypeName("big"): ()})) == ["big1", "big2"]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"cloud": 1}, "resize cannot remove any"),
        ({"cloud": 2}, "these numbers of slots already"),
        ({"huge": 1}, "no node type"),
    ],
)
def test_what_adds_nothing_is_refused(counts: dict[str, int], said: str) -> None:
    wanted = {TypeName(name): count for name, count in counts.items()}
    with pytest.raises(ResizeError, match=said):
        new_slots(wanted, DIVISION, HOSTS, OWN)


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/flux.service\n", "flux.service"),
        ("12:pids:/x\n1:name=systemd:/system.slice/flux.service\n", "flux.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service\n", None),
        ("0::/\n", None),
    ],
)
def test_a_supervised_broker_is_known_by_its_systemd_service(cgroup: str, unit: str | None) -> None:
    assert systemd_unit(cgroup) == unit


def test_a_process_that_is_gone_has_no_supervisor() -> None:
    assert not is_restarted_by_systemd(2**30)
