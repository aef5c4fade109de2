from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.drains import drain_text, emptying_text, hold_text
from nodemanager.core.nodes import FluxRank, LaunchId
from nodemanager.core.slots import Hardware, Rank, SlotName, TypeName
from nodemanager.flux.parse.resources import Look, read_job_ends, read_ranks, read_slots, read_topology
from tests.flux.recording import FLUXION, replies

MOMENTS = replies()
LOOK = ("resource.status", "sched.resource-status")

Reply = dict[str, Any]


def look(moment: str) -> dict[str, FluxRank]:
    said = MOMENTS[moment]
    resources, scheduler = (said[topic] for topic in LOOK)
    ranks = read_ranks(resources, scheduler, read_job_ends(said["job-list.list"]))
    return {rank.host: rank for rank in ranks}


def an_r(*entries: tuple[str, str, str], nodelist: str | None = None) -> Reply:
    """An R with entries of (ranks, cores, gpus)."""
    lite = [
        {"rank": ranks, "children": {"core": cores} | ({"gpu": gpus} if gpus else {})}
        for ranks, cores, gpus in entries
    ]
    execution: Reply = {"R_lite": lite, "starttime": 0.0, "expiration": 0.0}
    return {"version": 1, "execution": execution | ({} if nodelist is None else {"nodelist": [nodelist]})}


class Instance:
    """A leader and two nodes with 4 cores and 2 GPUs each, at first up and idle."""

    def __init__(self) -> None:
        nodes = an_r(("1-2", "0-3", "0-1"))
        self.resources: Reply = {
            "R": an_r(("0", "0-1", ""), ("1-2", "0-3", "0-1"), nodelist="head,n[1-2]"),
            "drain": {},
            "online": "0-2",
            "offline": "",
            "exclude": "0",
            "torpid": "",
        }
        self.scheduler: Reply = {"all": nodes, "allocated": an_r(), "down": an_r()}

    def ranks(self, ends: Mapping[Rank, float] | None = None) -> tuple[FluxRank, FluxRank]:
        first, second = read_ranks(self.resources, self.scheduler, ends or {})
        return first, second


# --- the recording ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_every_recorded_look_is_read(moment: str) -> None:
    ranks = look(moment)
    assert list(ranks) == ["cloud1", "cloud2", "cloud3", "cloud4", "gpu1", "gpu2"]
    assert [rank.rank for rank in ranks.values()] == [1, 2, 3, 4, 5, 6]
    for rank in ranks.values():
        assert rank.cores_free <= rank.cores
        assert rank.gpus_free <= rank.gpus
        assert rank.online or not rank.cores_free
        assert rank.allocated or not rank.online or rank.drain_reason is not None or rank.cores_free == rank.cores


def test_placeholders_before_any_node_joined() -> None:
    ranks = look("empty: head only, queue empty")
    assert ranks["cloud1"] == FluxRank(rank=Rank(1), host=SlotName("cloud1"), online=False, cores=4)
    assert ranks["gpu2"] == FluxRank(rank=Rank(6), host=SlotName("gpu2"), online=False, cores=8, gpus=2)


def test_busy_and_idle_nodes() -> None:
    ranks = look("three nodes up, jobs running")
    assert ranks["gpu1"] == FluxRank(
        rank=Rank(5),
        host=SlotName("gpu1"),
        online=True,
        cores=8,
        gpus=2,
        allocated=True,
        schedulable=True,
    )
    assert ranks["cloud2"].idle
    assert ranks["cloud2"].cores_free == 4


def test_housekeeping_keeps_a_rank_allocated_while_its_job_is_over() -> None:
    ranks = look("rank 1 stuck in housekeeping, rank 5 released (partial release)")
    assert ranks["cloud1"].allocated
    assert ranks["cloud1"].last_job_ended_at is not None
    assert ranks["gpu1"].idle
    assert look("housekeeping finished")["cloud1"].idle


def test_a_node_lost_under_its_job() -> None:
    lost = look("gpu1 lost under a job")["gpu1"]
    assert (lost.online, lost.cores_free) == (False, 0)


def test_a_drained_node_keeps_its_drain_when_it_has_gone() -> None:
    drained, stopped = look("cloud2 drained")["cloud2"], look("cloud2 stopped cleanly")["cloud2"]
    assert drained.drain_reason == stopped.drain_reason == "node manager: idle, billing window closes"
    assert (drained.online, drained.cores_free, drained.idle, drained.schedulable) == (True, 0, True, False)
    assert not stopped.online
    assert look("cloud2 undrained while offline")["cloud2"].drain_reason is None


def test_a_rank_that_was_re_typed() -> None:
    assert (look("after R reload")["gpu2"].cores, look("after R reload")["gpu2"].gpus) == (32, 0)


def test_the_slots_of_the_recorded_instance() -> None:
    slots = read_slots(MOMENTS["jobs done"]["resource.status"])
    assert slots == {"cloud1": 1, "cloud2": 2, "cloud3": 3, "cloud4": 4, "gpu1": 5, "gpu2": 6}


def test_when_the_last_job_of_each_rank_ended() -> None:
    job_list = MOMENTS["32-core job ran on re-typed rank 6"]["job-list.list"]
    ends = read_job_ends(job_list)
    assert ends == {1: 1795236661.7122326, 5: 1795236661.7122326, 6: 1795236675.7501984}
    assert read_job_ends({"jobs": list(reversed(job_list["jobs"]))}) == ends
    assert read_job_ends({"jobs": [{"id": 1, "ranks": "3", "state": 16}, {"id": 2, "t_inactive": 5.0}]}) == {}


# --- what the recording does not show ---------------------------------------------------------------------


def test_free_is_what_is_not_allocated() -> None:
    instance = Instance()
    instance.scheduler["allocated"] = an_r(("1", "0", "1"), ("1", "2-3", ""), ("2", "0-3", "0"))
    first, second = instance.ranks()
    assert (first.cores_free, first.gpus_free, first.allocated) == (1, 1, True)
    assert (second.cores_free, second.gpus_free, second.allocated) == (0, 1, True)


def test_a_rank_in_several_entries_of_r_has_them_all() -> None:
    instance = Instance()
    instance.resources["R"] = an_r(("0-2", "0-1", ""), ("2", "1-5", "0"), nodelist="head,n[1-2]")
    assert [(rank.cores, rank.gpus) for rank in instance.ranks()] == [(2, 0), (6, 1)]


@pytest.mark.parametrize(
    "withheld",
    [
        {"resources": {"online": "0,2", "offline": "1"}},
        {"resources": {"drain": {"1": {"timestamp": 1.0, "reason": "broken"}}}},
        {"resources": {"drain": {"1": {"timestamp": 1.0}}}},
        {"resources": {"exclude": "0-1"}},
        {"resources": {"torpid": "1"}},
        {"scheduler": {"down": an_r(("1", "0-3", "0-1"))}},
        {"scheduler": {"all": an_r(("2", "0-3", "0-1"))}},
    ],
    ids=str,
)
def test_nothing_is_free_where_the_scheduler_would_start_nothing(withheld: dict[str, Reply]) -> None:
    instance = Instance()
    instance.resources |= withheld.get("resources", {})
    instance.scheduler |= withheld.get("scheduler", {})
    first, second = instance.ranks()
    assert (first.cores_free, first.gpus_free) == (0, 0)
    assert (second.cores_free, second.gpus_free) == (4, 2)


def test_schedulable_is_the_scheduler_s_own_word() -> None:
    instance = Instance()
    instance.resources["drain"] = {"1": {"timestamp": 1.0, "reason": "just now"}}
    instance.scheduler["down"] = an_r(("2", "0-3", "0-1"))
    assert [rank.schedulable for rank in instance.ranks()] == [True, False]


@pytest.mark.parametrize("mark", [drain_text, hold_text, emptying_text])
def test_our_own_marks_are_read_back_without_the_note_that_follows(mark: Callable[[LaunchId], str]) -> None:
    ours = mark(LaunchId("cloud1-1a2b"))
    for text in (ours, f"{ours} 3 cores instead of 4"):
        instance = Instance()
        instance.resources["drain"] = {"1": {"timestamp": 1.0, "reason": text}}
        assert instance.ranks()[0].drain_reason == ours


def test_drained_torpid_and_excluded_ranks_are_distinguished() -> None:
    instance = Instance()
    instance.resources |= {"drain": {"1-2": {"timestamp": 1.0, "reason": "both"}}, "torpid": "1", "exclude": "0,2"}
    first, second = instance.ranks()
    assert (first.drain_reason, first.torpid, first.excluded) == ("both", True, False)
    assert (second.drain_reason, second.torpid, second.excluded) == ("both", False, True)
    instance.resources["drain"] = {"1": {"timestamp": 1.0, "reason": None}}
    assert [rank.drain_reason for rank in instance.ranks()] == ["", None]


def test_the_end_of_the_last_job_is_passed_on() -> None:
    assert [rank.last_job_ended_at for rank in Instance().ranks({Rank(2): 5.5})] == [None, 5.5]


def test_two_ranks_of_one_name_are_no_slots() -> None:
    status = {"R": an_r(("0-2", "0-3", ""), nodelist="head,n1,n1")}
    with pytest.raises(ValueError, match="ranks 1 and 2 are both n1"):
        read_slots(status)


@pytest.mark.parametrize(
    ("moment", "ranks"),
    [
        ("no node yet", [(False, False, 0, None)] * 3),
        ("three idle nodes", [(True, False, 2, None)] * 3),
        (
            "a job on two nodes, one of them drained",
            [(True, False, 2, None), (True, True, 1, None), (True, True, 0, "to be looked at")],
        ),
    ],
)
def test_fluxion_says_null_where_nothing_is_allocated_or_down(
    moment: str, ranks: list[tuple[bool, bool, int, str | None]]
) -> None:
    said = replies(FLUXION)[moment]
    resources, scheduler = (said[topic] for topic in LOOK)
    read = read_ranks(resources, scheduler, {})
    assert [(it.online, it.allocated, it.cores_free, it.drain_reason) for it in read] == ranks


@pytest.mark.parametrize("part", ["allocated", "down"])
def test_a_missing_part_of_an_answer_is_refused(part: str) -> None:
    instance = Instance()
    del instance.scheduler[part]
    with pytest.raises(ValueError, match=f"sched.resource-status.{part}"):
        instance.ranks()


# --- malformed replies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "path", "value", "why"),
    [
        ("resources", ("R",), None, "resource.status.R: an object"),
        ("resources", ("R", "version"), 2, "resource.status.R.version: version 1"),
        ("resources", ("R", "execution", "R_lite"), {}, "resource.status.R.execution.R_lite: a list"),
        ("resources", ("R", "execution", "R_lite", 0, "rank"), 3, r"R_lite\[0\].rank: text"),
        ("resources", ("R", "execution", "R_lite", 0, "rank"), "3-1", r"R_lite\[0\].rank: "),
        ("resources", ("R", "execution", "R_lite", 1, "children", "core"), "x", r"R_lite\[1\].children.core: "),
        ("resources", ("R", "execution", "nodelist"), ["n[1-9]"], "nodelist: 9 hosts for 3 ranks"),
        ("resources", ("R", "execution", "nodelist"), ["n[1-"], "nodelist: "),
        ("resources", ("R", "execution", "nodelist"), None, "nodelist: a list"),
        ("resources", ("online",), [1], "resource.status.online: text"),
        ("resources", ("drain",), [], "resource.status.drain: an object"),
        ("resources", ("drain",), {"x": {}}, "resource.status.drain: "),
        ("resources", ("drain",), {"1": {"reason": 5}}, "resource.status.drain.1.reason: text"),
        ("scheduler", ("allocated",), {}, "sched.resource-status.allocated.version: version 1"),
        ("scheduler", ("allocated",), "", "sched.resource-status.allocated: an object"),
        ("scheduler", ("down", "execution"), None, "sched.resource-status.down.execution: an object"),
    ],
)
def test_malformed_replies_say_where(reply: str, path: tuple[str | int, ...], value: object, why: str) -> None:
    instance = Instance()
    changed = copy.deepcopy(getattr(instance, reply))
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    setattr(instance, reply, changed)
    with pytest.raises(ValueError, match=why):
        instance.ranks()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just("0-2"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "1", "rank"]), inner, max_size=3)
    ),
    max_leaves=6,
)
PARTS = st.tuples(
    st.sampled_from(["resources", "scheduler"]),
    st.sampled_from(["R", "drain", "online", "exclude", "torpid", "all", "allocated", "down"]),
    JSON,
)


@given(st.lists(PARTS, max_size=3))
def test_whatever_is_wrong_is_a_value_error(parts: list[tuple[str, str, object]]) -> None:
    instance = Instance()
    for reply, key, value in parts:
        getattr(instance, reply)[key] = value
    try:
        assert len(instance.ranks()) == 2
    except ValueError as error:
        assert str(error)  # noqa: PT017 - it may also be well formed


# --- one look after another -------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(list(MOMENTS)), min_size=2, max_size=5))
def test_a_look_after_others_shows_what_one_of_its_own_would(moments: list[str]) -> None:
    seen = Look()
    for moment in moments:
        said = MOMENTS[moment]
        resources, scheduler = (said[topic] for topic in LOOK)
        seen = seen.next(resources, scheduler, read_job_ends(said["job-list.list"]))
        assert {rank.host: rank for rank in seen.ranks.values()} == look(moment)
        assert list(seen.ranks) == sorted(seen.ranks)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda it: it.resources.update(offline=""), set()),
        (lambda it: it.resources.update(online="0,2"), {1}),
        (lambda it: it.resources.update(torpid="2"), {2}),
        (lambda it: it.resources.update(exclude="0-1"), {1}),
        (lambda it: it.resources.update(drain={"1": {"reason": "looked at"}}), {1}),
        (lambda it: it.scheduler.update(allocated=an_r(("2", "0-1", ""))), {2}),
        (lambda it: it.scheduler.update(down=an_r(("1", "0-3", "0-1"))), {1}),
    ],
)  # fmt: skip
def test_a_rank_that_is_as_it_was_is_the_same_object(change: Callable[[Instance], None], changed: set[int]) -> None:
    instance = Instance()
    before = Look().next(instance.resources, instance.scheduler, {})
    change(instance)
    after = before.next(copy.deepcopy(instance.resources), copy.deepcopy(instance.scheduler), {})
    assert {rank for rank in after.ranks if after.ranks[rank] is not before.ranks[rank]} == changed
    ended = after.next(instance.resources, instance.scheduler, {Rank(1): 5.0})
    assert {rank for rank in ended.ranks if ended.ranks[rank] is not after.ranks[rank]} == {1}
    retyped = ended.next(instance.resources, instance.scheduler, {Rank(1): 5.0}, {SlotName("n2"): TypeName("gpu")})
    assert retyped.ranks[Rank(2)].type_name == "gpu"
    assert retyped.ranks[Rank(1)] == ended.ranks[Rank(1)]


PARTS_SAID: list[tuple[str, str, list[Any]]] = [
    ("resources", "R", [an_r(("0", "0-1", ""), ("1-2", "0-1", ""), nodelist="head,n[1-2]")]),
    ("resources", "R", [an_r(("0", "0-1", ""), ("1-3", "0-3", "0-1"), nodelist="head,n[1-3]")]),
    ("resources", "drain", [{"2": {"reason": "looked at"}}, {"1-2": {"reason": "why"}}]),
    ("resources", "online", ["0", "0,2"]),
    ("resources", "torpid", ["1", "1-2"]),
    ("resources", "exclude", ["0-1"]),
    ("scheduler", "all", [an_r(("1", "0-3", "0-1"))]),
    ("scheduler", "allocated", [an_r(("1", "0", "")), an_r(("1-2", "0-3", "0-1"))]),
    ("scheduler", "down", [an_r(("2", "0-3", "0-1"))]),
]
SAID = st.sampled_from([(reply, key, value) for reply, key, values in PARTS_SAID for value in values])
ENDED = st.dictionaries(st.sampled_from([Rank(1), Rank(2)]), st.sampled_from([5.0, 6.0]))
DIVISIONS = st.sampled_from([{}, {SlotName("n1"): TypeName("cpu")}, {SlotName("n1"): TypeName("gpu")}])


@given(st.lists(st.tuples(st.lists(SAID, max_size=3), ENDED, DIVISIONS), min_size=2, max_size=6))
def test_every_changed_part_of_an_answer_is_read(
    looks: list[tuple[list[tuple[str, str, Any]], dict[Rank, float], dict[SlotName, TypeName]]],
) -> None:
    seen = Look()
    for changes, ended, division in looks:
        instance = Instance()
        for reply, key, value in changes:
            getattr(instance, reply)[key] = value
        seen = seen.next(instance.resources, instance.scheduler, ended, division)
        afresh = read_ranks(instance.resources, instance.scheduler, ended, division)
        assert tuple(seen.ranks.values()) == afresh


# --- a machine --------------------------------------------------------------------------------------------

TOPOLOGY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine"><object type="Package">
    <object type="Core"><object type="PU"/><object type="PU"/></object>
    <object type="Core"><object type="PU"/><object type="PU"/></object>
  </object></object>
</topology>"""


def test_a_topology_has_cores_and_hardware_threads() -> None:
    assert read_topology(TOPOLOGY) == Hardware(cores=2, threads=4)


@pytest.mark.parametrize("text", ["", "{}", '<topology version="2.0"/>'])
def test_an_unreadable_topology_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"resource\.topo-get"):
        read_topology(text)
