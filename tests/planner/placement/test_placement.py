"""Which jobs would run where, and why the others get no nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.core.jobs import Job, JobId, JobState, OnHosts, QueuePolicy, RankAllocation, Shape
from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner.allocation import Allocation
from nodemanager.planner.billing import fleet_price_per_hour
from nodemanager.planner.budgets import place_within_budget
from nodemanager.planner.placement import Placement
from nodemanager.planner.plan import plan
from nodemanager.planner.ranks_and_queue import QueueIndex, key_of, queue_index_of, updated_queue_index
from nodemanager.planner.reasons import REASON_BY_AVAILABILITY, JobReasons
from nodemanager.planner.work import UNBOUNDED
from tests.builders import (
    CLOUD,
    GPU,
    GPU_FOR_ALL,
    WALL_AT,
    World,
    a_rank,
    a_type,
    a_world,
    boots,
    busy,
    nodes,
    tasks,
    whole_nodes,
    with_settings,
)
from tests.planner.strategies import POLICIES, jobs, snapshots


def placement_of(world: World) -> Placement:
    return place_within_budget(world.snapshot, world.policy, fleet_price_per_hour(world.snapshot, world.policy))


def slots(world: World, job: int = 1) -> list[str]:
    """The slots on which a job would run."""
    placement = placement_of(world)
    key = key_of(world.snapshot.jobs[JobId(job)])
    index = list(placement.demand.batches[key]).index(JobId(job))
    if index >= placement.served.get(key, 0):
        return []
    seats = [bin_.slot for bin_, _ in placement.seating.seats.get(JobId(job), ())]
    return sorted([*seats, *(place[0] for place, _ in placement.assignment.nodes_of(key, index))])


def why_not(shape: Shape, *ahead: Shape, world: World | None = None) -> Reason:
    world = (world or a_world(price_per_hour_max=Decimal(100), nodes_max=10)).job(*ahead, shape)
    return world.why_job(len(ahead) + 1)


# --- where a job goes -------------------------------------------------------------------------------------


def test_a_job_is_laid_on_what_is_there_before_anything_is_bought() -> None:
    assert slots(a_world().idle_node("cloud3").job(tasks(1))) == ["cloud3"]


def test_what_is_up_is_filled_before_what_drains_and_that_before_what_comes() -> None:
    world = a_world().booting_node("cloud1").draining_node("cloud2").idle_node("cloud3")
    world.job(*[whole_nodes(1)] * 4)
    assert [slots(world, job) for job in (1, 2, 3, 4)] == [["cloud3"], ["cloud2"], ["cloud1"], ["cloud4"]]


@pytest.mark.parametrize("limits", [{"nodes_max": 2}, {"price_per_hour_max": Decimal("0.5")}])
def test_booting_nodes_above_a_limit_serve_the_first_jobs(limits: dict[str, Any]) -> None:
    """A limit that was lowered stops purchases, not the jobs for which nodes boot already."""
    world = a_world(a_type("cloud", slots=8), **limits)
    for number in range(1, 6):
        world.booting_node(f"cloud{number}")
    world.job(*[whole_nodes(1)] * 6)
    assert sorted(slots(world, job)[0] for job in range(1, 6)) == [f"cloud{number}" for number in range(1, 6)]
    assert world.why_job(6).code in ("nodes_max", "price_per_hour_max")


def test_the_emptiest_node_is_filled_first_as_the_scheduler_will() -> None:
    world = a_world().idle_node("cloud1").busy_node("cloud2", cores_free=2).job(tasks(1, cores=2))
    assert slots(world) == ["cloud1"]


def test_a_small_job_that_takes_the_gpu_node_makes_the_next_one_buy_another() -> None:
    """The scheduler gives it the node with the most free cores, so the GPU job would find too few there."""
    world = (
        a_world().idle_node("gpu1").idle_node("cloud1").job(tasks(1), tasks(8, gpus=0), tasks(2, cores=4, gpus=1))
    )
    assert slots(world, 1) == ["gpu1"]
    assert boots(a_world().idle_node("gpu1").job(tasks(1), nodes(1, cores=8)).plan()) == ["gpu2"]


def test_an_exclusive_job_takes_whole_nodes_only() -> None:
    world = a_world().busy_node("cloud1", cores_free=3).idle_node("cloud2")
    world.job(whole_nodes(1), tasks(1), tasks(4))
    assert slots(world, 1) == ["cloud2"]
    assert slots(world, 2) == ["cloud1"]
    assert slots(world, 3) == ["cloud1", "cloud3"]  # the rest of that node, and a new one


def test_the_cheapest_nodes_that_fit_are_bought() -> None:
    world = a_world().job(tasks(1), tasks(1, gpus=1), tasks(1, cores=8))
    assert sorted(boots(world.plan())) == ["gpu1", "gpu2"]
    assert slots(world, 1) == slots(world, 2) != slots(world, 3)  # the first shares a node with the second
    assert boots(a_world().job(tasks(1)).plan()) == ["cloud1"]


def test_a_gang_is_made_up_of_what_is_there_and_what_is_bought() -> None:
    assert slots(a_world().idle_node("cloud2").job(whole_nodes(3))) == ["cloud1", "cloud2", "cloud3"]


def test_small_jobs_share_one_new_node() -> None:
    world = a_world().job(*[tasks(1)] * 4)
    assert {slot for job in range(1, 5) for slot in slots(world, job)} == {"cloud1"}


def test_a_constraint_chooses_the_host() -> None:
    assert slots(a_world().job(tasks(1, where=OnHosts(("cloud3",))))) == ["cloud3"]


def test_jobs_are_taken_in_order_whatever_their_shapes() -> None:
    """The last slot is not given to a later job because an earlier one has the same shape."""
    world = a_world(nodes_max=2).job(whole_nodes(1), tasks(1, gpus=1), whole_nodes(1))
    assert [bool(slots(world, job)) for job in (1, 2, 3)] == [True, True, False]
    assert world.why_job(3).code == "nodes_max"


def test_the_gangs_of_one_kind_share_nodes_but_no_gang_a_node() -> None:
    world = a_world(CLOUD).job(*[nodes(3, cores=1)] * 4)
    assert boots(world.plan()) == ["cloud1", "cloud2", "cloud3"]
    assert all(slots(world, job) == ["cloud1", "cloud2", "cloud3"] for job in (1, 2, 3, 4))


def test_memory_chooses_what_is_bought() -> None:
    large = replace(a_type("large", price="0.50"), memory_bytes=2**36)
    shape = Shape(slots=1, cores_per_slot=1, memory_bytes_per_slot=2**35)
    assert boots(a_world(CLOUD, large).job(shape).plan()) == ["large1"]


def test_a_job_waits_for_the_memory_that_one_type_has_rather_than_start_where_there_is_too_little() -> None:
    """The scheduler ignores memory: the job would start on a smaller node and run out of memory."""
    large = replace(a_type("large", slots=1, price="0.50"), memory_bytes=2**36)
    shape = Shape(slots=1, cores_per_slot=1, memory_bytes_per_slot=2**35)
    world = a_world(CLOUD, large).busy_node("large1").job(shape)
    assert boots(world.plan()) == []
    assert world.why_job(1) == because(Code.NO_FREE_SLOT, node_type="large", slots=1, short=1)
    assert world.plan().types[TypeName("cloud")].code == "job_held_up"


def test_a_whole_node_is_bought_with_the_memory_that_the_job_asks_for() -> None:
    large = replace(a_type("large", price="0.50"), memory_bytes=2**36)
    shape = Shape(slots=2, cores_per_slot=1, nodes=1, exclusive=True, memory_bytes_per_slot=2**34)
    assert boots(a_world(CLOUD, large).job(shape).plan()) == ["large1"]
    assert boots(a_world(CLOUD, large).job(replace(shape, memory_bytes_per_slot=2**33)).plan()) == ["cloud1"]


def test_memory_that_too_few_slots_have_keeps_nobody_waiting() -> None:
    """The job wants three nodes, but only two slots have so much memory: Flux ignores memory and would start it."""
    large = replace(a_type("large", slots=2, price="0.50"), memory_bytes=2**36)
    shape = Shape(slots=1, cores_per_slot=1, nodes=3, memory_bytes_per_slot=2**35)
    assert boots(a_world(CLOUD, large).job(shape).plan()) == ["cloud1", "cloud2", "cloud3"]
    assert boots(a_world(CLOUD, large).job(replace(shape, nodes=2)).plan()) == ["large1", "large2"]


def test_memory_that_no_type_has_keeps_nobody_waiting() -> None:
    """The scheduler will start the job wherever its cores fit."""
    assert boots(a_world().job(Shape(slots=1, cores_per_slot=1, memory_bytes_per_slot=2**50)).plan()) == ["cloud1"]


def test_what_is_free_on_nodes_of_one_kind_may_be_filled_in_two_ways() -> None:
    """The room that earlier jobs leave on the large nodes is filled by two loads, each on some of the nodes."""
    large = a_type("large", cores=16, price="1.00")
    world = a_world(a_type("cloud", slots=8), large, nodes_max=12, price_per_hour_max=Decimal(100))
    for slot in ("cloud1", "cloud2", "large1"):
        world.busy_node(slot)
    world.job(whole_nodes(4), nodes(4, cores=2), nodes(5, cores=2), nodes(2, cores=2))
    assert {reason.code for reason in world.plan().jobs.values()} == {"node_ordered"}


# --- what stands in the way -------------------------------------------------------------------------------


def test_a_gang_that_cannot_be_had_whole_leaves_all_to_the_next_job() -> None:
    world = a_world(nodes_max=2, queue_policy=QueuePolicy.BACKFILL).job(whole_nodes(3), whole_nodes(2))
    assert world.why_job(1).code == "beyond_limits"
    assert world.why_job(1).figures["node_count"] == 3
    assert slots(world, 2) == ["cloud1", "cloud2"]


def test_the_seat_of_a_gang_that_cannot_be_had_whole_goes_to_the_next_job() -> None:
    """Of three nodes one is busy: the other two are too few for the first job, but enough for the second."""
    world = a_world(nodes_max=3, queue_policy=QueuePolicy.BACKFILL).busy_node("cloud1").idle_node("cloud2")
    world.job(whole_nodes(3), whole_nodes(2))
    assert world.why_job(1).code == "nodes_max"
    assert slots(world, 2) == ["cloud2", "cloud3"]


@pytest.mark.parametrize("users", [(1, 2, 1, 2), (1, 2, 3, 2), (2, 1, 1, 1), (1, 1, 1, 1)])
def test_behind_a_stuck_job_those_of_a_kind_are_served_in_the_order_of_the_queue(users: tuple[int, ...]) -> None:
    """No matter who submitted them: two more nodes are allowed, so the first two of the four jobs get them."""
    world = a_world(nodes_max=3, queue_policy=QueuePolicy.BACKFILL).busy_node("cloud1").job(whole_nodes(3))
    for user in users:
        world.job(whole_nodes(1), userid=user)
    assert [len(slots(world, job)) for job in (2, 3, 4, 5)] == [1, 1, 0, 0]
    assert [world.why_job(job).code for job in (2, 3, 4, 5)] == [*["node_ordered"] * 2, *["nodes_max"] * 2]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([whole_nodes(1), whole_nodes(2), tasks(3)]), st.integers(1, 3)), max_size=12
    ),
    st.integers(1, 5),
)
def test_behind_a_stuck_job_nobody_is_passed_over_by_his_like(wanted: list[tuple[Shape, int]], left: int) -> None:
    world = a_world(a_type("cloud", slots=8), nodes_max=left + 1, queue_policy=QueuePolicy.BACKFILL)
    world.busy_node("cloud1").job(whole_nodes(left + 1))
    for shape, user in wanted:
        world.job(shape, userid=user)
    made = world.plan()
    assert len(dict(made.jobs)) == len(wanted) + 1
    given_to = [slots(world, job) for job in range(2, len(wanted) + 2)]
    for kind in {shape for shape, _ in wanted}:
        served = [bool(found) for (shape, _), found in zip(wanted, given_to, strict=True) if shape == kind]
        assert served == sorted(served, reverse=True)
    assert {slot for found in given_to for slot in found} == set(boots(made))


def test_the_price_cap_is_exact_to_the_last_digit() -> None:
    dime = a_type("dime", price="0.1")
    assert why_not(whole_nodes(3), world=a_world(dime, price_per_hour_max=Decimal("0.3"))).code == "node_ordered"
    cap = Decimal("0.2999999999999999999")
    assert why_not(whole_nodes(3), world=a_world(dime, price_per_hour_max=cap)).code == "beyond_limits"
    reason = why_not(whole_nodes(1), whole_nodes(2), world=a_world(dime, price_per_hour_max=cap))
    assert reason.code == "price_per_hour_max"
    assert reason.figures["left"] == Decimal("0.0999999999999999999")


def test_no_free_slot_says_how_many_there_are_and_how_many_are_short() -> None:
    reason = why_not(whole_nodes(4), whole_nodes(2), world=a_world(CLOUD))
    assert reason == because(Code.NO_FREE_SLOT, node_type="cloud", slots=4, short=2, jobs=("1",))


def test_short_counts_nodes_not_pieces_and_the_jobs_that_hold_the_slots_are_named() -> None:
    """Five tasks of half a node each need three nodes; two of the three slots are held by two other jobs."""
    fleet = a_world(replace(CLOUD, slots=CLOUD.slots[:3]))
    for slot in ("cloud1", "cloud2"):
        fleet.busy_node(slot)
        rank = fleet.snapshot.slots.rank_of_slot[SlotName(slot)]
        held = (RankAllocation(rank, CLOUD.cores, 0),)
        fleet.job(whole_nodes(1), state=JobState.RUN, allocations=held)
    fleet.job(Shape(slots=5, cores_per_slot=CLOUD.cores // 2))
    (reason,) = fleet.plan().jobs.values()
    assert reason == because(Code.NO_FREE_SLOT, node_type="cloud", slots=3, short=2, jobs=("1", "2"))
    text = to_sentence(reason.code, reason.figures)
    assert text == "2 short of cloud: too few of the 3 slots that fit are free; waits for jobs 1, 2"


def test_more_nodes_than_there_are_slots_is_said_as_such() -> None:
    assert why_not(whole_nodes(6), world=a_world(CLOUD)) == because(Code.TOO_FEW_SLOTS, slots=4, short=2)


def test_a_job_for_whole_nodes_gets_one_that_is_too_small_only_where_there_is_no_larger() -> None:
    """The scheduler would start it on either type (`flux submit -N1 -n8 -x` starts on four cores)."""
    eight_tasks = Shape(slots=8, cores_per_slot=1, nodes=1, exclusive=True)
    assert boots(a_world(CLOUD, GPU).job(eight_tasks).plan()) == ["gpu1"]
    assert boots(a_world(CLOUD).job(eight_tasks).plan()) == ["cloud1"]


def test_a_job_that_can_never_run_is_warned_of_with_how_many_it_holds_up() -> None:
    fleet = a_world(CLOUD, nodes_max=2).job(whole_nodes(1), whole_nodes(3), whole_nodes(1), whole_nodes(4))
    warning = because(Code.JOB_NEVER_RUNS, job="2", job_count=2)
    assert fleet.plan().warnings == (warning,)
    text = to_sentence(warning.code, warning.figures)
    assert text == (
        "job 2 needs more nodes than a limit or a budget ever allows, and holds up 2 other jobs:"
        " raise it, or flux cancel 2"
    )
    gaps_filled = World(with_settings(fleet.policy, queue_policy=QueuePolicy.BACKFILL), fleet.snapshot)
    assert gaps_filled.plan().warnings == (), "there it holds up nobody"


# --- whatever the fleet -----------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> World:
    policy = draw(POLICIES)
    return World(with_settings(policy, queue_policy=draw(st.sampled_from(QueuePolicy))), draw(snapshots(policy)))


@settings(deadline=None)
@given(worlds())
def test_a_job_gets_all_that_it_asks_for_or_none(world: World) -> None:
    placement = placement_of(world)
    for key, served in placement.served.items():
        for index, id_ in enumerate(placement.demand.batches[key][:served]):
            seats = placement.seating.seats.get(id_, ())
            there = [bin_.slot for bin_, _ in seats]
            more = [place[0] for place, _ in placement.assignment.nodes_of(key, index)]
            if key.shape.nodes is not None:
                assert len(set(there) | set(more)) == len(there) + len(more) == key.shape.nodes
            else:
                assert there or more


@settings(deadline=None)
@given(worlds())
def test_what_is_laid_on_a_new_node_fits_it(world: World) -> None:
    """Counted again from the jobs, slot by slot."""
    placement = placement_of(world)
    cores: Counter[str] = Counter()
    for key, served in placement.served.items():
        shape = key.shape
        if shape.nodes is None or shape.exclusive:
            continue
        for index in range(served):
            for place, offer in placement.assignment.nodes_of(key, index):
                cores[place[0]] += shape.slots * shape.cores_per_slot
                assert cores[place[0]] <= offer.node_type.cores


@settings(deadline=None)
@given(worlds())
def test_a_free_node_more_never_raises_the_price_for_the_same_jobs(world: World) -> None:
    """A slot without a node of ours is up and idle: it is used before a node is bought."""
    world.but(blocks={})
    taken = {node.launch.slot for node in world.snapshot.nodes.values()}
    strays = world.snapshot.account_of().strays
    free = [slot for slot in ("gpu1", "gpu2", "cloud3") if slot not in taken and not strays]
    if not free:
        return
    before = placement_of(world)
    price_before = sum((offer_price(before)), Decimal(0))
    world.rank(free[0], online=True)
    after = placement_of(world)
    if dict(after.served) == dict(before.served):
        assert sum(offer_price(after), Decimal(0)) <= price_before


def offer_price(placement: Placement) -> list[Decimal]:
    allocation = placement.allocation
    return [
        allocation.offers[group.offer].node_type.price_per_hour * group.nodes
        for group in allocation.groups
        if not allocation.offers[group.offer].is_ordered
    ]


@given(jobs(8), jobs(8))
def test_a_line_that_was_kept_is_the_one_that_would_be_read(before: list[Job], after: list[Job]) -> None:
    was, is_ = {job.id: job for job in before}, {job.id: job for job in after}
    gone = [job for id_, job in was.items() if is_.get(id_) != job]
    come = [job for id_, job in is_.items() if was.get(id_) != job]
    kept = updated_queue_index(queue_index_of(was, QueueIndex()), is_, gone, come)
    read = queue_index_of(is_, QueueIndex())
    assert kept.batches == read.batches
    assert kept.withheld == read.withheld
    assert list(kept.job_ends) == list(read.job_ends)


def test_nodes_that_come_are_laid_out_as_when_they_were_bought() -> None:
    """A hundred jobs of three kinds: the next plan finds all of them served."""
    world = a_world(a_type("cloud", slots=200), nodes_max=200)
    world.job(*([tasks(1), tasks(1, cores=3), nodes(2, cores=2)] * 34))
    first = world.decide()
    assert len(boots(first)) == 68
    world.wait(2).all_is_fresh()
    assert boots(world.decide()) == []
    assert {node.state for node in world.snapshot.nodes.values()} == {NodeState.REQUESTED}


# --- types, and warnings ----------------------------------------------------------------------------------


def test_every_type_has_the_reason_why_it_is_bought_or_not() -> None:
    made = a_world(CLOUD, GPU_FOR_ALL).job(tasks(1)).plan()
    assert made.types[TypeName("cloud")] == because(Code.BOUGHT, node_count=1)
    assert made.types[TypeName("gpu")] == because(
        Code.ANOTHER_MIX_IS_CHEAPER, node_types=("cloud",), price_per_hour=Decimal("0.40")
    )
    assert {reason.code for reason in a_world().plan().types.values()} == {"nothing_is_short"}


def test_a_type_that_is_worse_in_every_way_is_left_out_until_the_better_one_runs_out() -> None:
    better, worse = a_type("better", cores=8, price="0.80"), a_type("worse", cores=8, price="0.90")
    one = a_world(better, worse, nodes_max=9, price_per_hour_max=Decimal(99)).job(tasks(1, cores=8)).plan()
    assert one.types[TypeName("worse")] == because(
        Code.ANOTHER_TYPE_IS_CHEAPER, node_type="better", price_per_hour=Decimal("0.80")
    )
    six = a_world(better, worse, nodes_max=9, price_per_hour_max=Decimal(99)).job(tasks(6, cores=8)).plan()
    assert six.types[TypeName("better")] == because(Code.BOUGHT, node_count=4)
    assert six.types[TypeName("worse")] == because(Code.BOUGHT, node_count=2)


def test_a_price_list_of_hundreds_of_types_serves_the_queue() -> None:
    types = [a_type(f"t{number}", cores=4 + number % 7, price=f"{1 + number / 100:.2f}") for number in range(400)]
    made = a_world(*types, nodes_max=99, price_per_hour_max=Decimal(99)).job(*(tasks(1) for _ in range(9))).plan()
    assert {reason.code for reason in made.jobs.values()} == {"node_ordered"}


def test_a_gpu_node_that_small_jobs_may_take_is_warned_of() -> None:
    unguarded = a_world().idle_node("gpu1").job(tasks(1))
    assert unguarded.plan().warnings == (because(Code.GPU_NODE_UNGUARDED, node_type="gpu", job="1"),)
    assert a_world().idle_node("gpu1").job(tasks(1, gpus=1)).plan().warnings == ()
    assert a_world().job(tasks(1)).plan().warnings == ()  # there is no such node
    assert a_world(GPU).idle_node("gpu1").job(tasks(1)).plan().warnings == ()  # and no other type


def test_a_gpu_node_that_a_small_job_took_is_bought_again_and_the_site_is_told() -> None:
    """A large node and a GPU node are bought; the GPU node joins first, and the first job gets it."""
    large = a_type("large", cores=8, price="0.80")
    asked = tasks(1, cores=8), tasks(1, cores=4, gpus=1)
    first = a_world(large, GPU, nodes_max=6).job(*asked).plan()
    assert sorted(boots(first)) == ["gpu1", "large1"]
    assert [warning.code for warning in first.warnings] == ["gpu_node_unguarded"]
    fleet = a_world(large, GPU, nodes_max=6).booting_node("gpu1").booting_node("large1").job(*asked)
    taken = replace(busy(a_rank("gpu1", fleet.policy)), gpus_free=2)
    begun = replace(
        fleet.snapshot.jobs[JobId(1)],
        state=JobState.RUN,
        allocations=(RankAllocation(taken.rank, 8, 0),),
        began_at=WALL_AT,
    )
    fleet.see_queue(begun).see_ranks(taken, a_rank("large1", fleet.policy, online=True)).wait(1)
    second = fleet.decide()
    assert boots(second) == ["gpu2"]
    assert second.warnings == (because(Code.GPU_NODE_TAKEN, node_type="gpu", job="2", nodes=("gpu1",)),)


def test_where_small_jobs_fill_all_gpu_nodes_the_one_that_waits_is_told_so_and_has_the_first_that_is_free() -> None:
    fleet = a_world(CLOUD, GPU)
    for slot in ("gpu1", "gpu2"):
        fleet.node(slot, NodeState.BUSY, rank=replace(busy(a_rank(slot)), gpus_free=2))
    fleet.job(tasks(1, gpus=1), tasks(1))
    made = fleet.plan()
    assert boots(made) == [], "in queue order nothing passes the one that waits, on a free node neither"
    assert fleet.why_job(1).code == "no_free_slot"
    assert fleet.why_job(2).code == "behind_a_stuck_job"
    assert because(Code.GPU_NODE_TAKEN, node_type="gpu", job="1", nodes=("gpu1", "gpu2")) in made.warnings
    fleet.see_ranks(a_rank("gpu2", online=True))
    assert fleet.why_job(1) == because(Code.FITS_ON_A_NODE_THAT_IS_UP, nodes=("gpu2",))
    assert "gpu_node_taken" not in [warning.code for warning in fleet.plan().warnings]


@settings(deadline=None)
@given(worlds())
def test_the_tally_of_reasons_is_what_counting_them_gives(world: World) -> None:
    made = world.plan()
    served = {"settling", *REASON_BY_AVAILABILITY.values()}
    counted = Counter("node_ordered" if why.code in served else why.code for why in made.jobs.values())
    assert dict(made.count_by_reason()) == dict(counted)
    if isinstance(made.jobs, JobReasons):
        groups = list(made.jobs.in_groups())
        assert sum(count for _, count, _ in groups) == len(made.jobs)
        assert all(made.jobs[first] == why for first, _, why in groups)


# --- shortcuts --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(worlds())
def test_what_is_plainly_out_of_reach_is_decided_as_by_the_long_way(world: World) -> None:
    short = plan(world.snapshot, world.policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocation, "takes_at_most", lambda _shelf, _work: UNBOUNDED)
        patch.setattr(Allocation, "cores_left", lambda _shelf, *, share: UNBOUNDED + share)
        long = plan(world.snapshot, world.policy)
    assert short.actions == long.actions
    assert dict(short.jobs) == dict(long.jobs)
    assert (short.nodes, short.types, short.warnings) == (long.nodes, long.types, long.warnings)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 6).map(whole_nodes), max_size=8),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_behind_those_that_lack_more_than_can_come_all_is_as_by_the_long_way(
    wanted: list[Shape], idle: int, left: int
) -> None:
    """They give back their seats, at once or one after the other."""
    world = a_world(a_type("cloud", slots=8), nodes_max=idle + left + 1, queue_policy=QueuePolicy.BACKFILL)
    world.busy_node("cloud1")
    for number in range(idle):
        world.idle_node(f"cloud{number + 2}")
    for user, shape in enumerate(wanted):
        world.job(shape, userid=user)
    short = plan(world.snapshot, world.policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocation, "takes_at_most", lambda _shelf, _work: UNBOUNDED)
        long = plan(world.snapshot, world.policy)
    assert short.actions == long.actions
    assert [why.code for why in dict(short.jobs).values()] == [why.code for why in dict(long.jobs).values()]
    assert short.nodes == long.nodes


def test_two_jobs_of_one_shape_still_get_the_node_that_was_bought_for_both() -> None:
    """The first job has two of its three slots elsewhere, so the node was bought for one slot and for three."""
    world = a_world(a_type("cloud", slots=1), a_type("large", cores=16, price="0.80")).idle_node("cloud1")
    world.job(tasks(3, cores=2), nodes(1, cores=4), tasks(3, cores=2))
    assert boots(world.decide()) == ["large1"]
    served = {job: reason.code for job, reason in world.plan().jobs.items()}
    assert served == dict.fromkeys(map(JobId, (1, 2, 3)), Code.NODE_COMING)
    assert world.plan().nodes[world.id("large1")].code is not Code.LEASE_NOT_WANTED
