"""Which jobs nodes with GPUs are bought for: ``only_for`` of a node type."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from nodemanager.core.jobs import HasProperty, JobId, QueuePolicy, Shape
from nodemanager.core.nodes import NodeState
from nodemanager.core.reason_codes import Code
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.reasons import because
from nodemanager.core.slots import NodeType, OnlyFor, Rank, SlotName, TypeName
from nodemanager.core.upkeep.rules import Schedule
from nodemanager.core.upkeep.windows import read_windows
from nodemanager.planner.why_not import NO_MORE
from tests.builders import CLOUD, GPU, GPU_FOR_ALL, a_rank, a_type, a_world, boots, nodes, tasks, whole_nodes

STRICT = replace(GPU, only_for=OnlyFor.GPU)


def bought(*shapes: Shape, gpu: NodeType = GPU, **settings: object) -> list[str]:
    return boots(a_world(CLOUD, gpu, **settings).job(*shapes).plan())


def test_jobs_without_gpus_wait_for_a_slot_of_another_type() -> None:
    """Four slots without GPUs for five jobs: the fifth waits for one of them."""
    world = a_world(CLOUD, GPU).job(*[whole_nodes(1)] * 5)
    assert boots(world.plan()) == ["cloud1", "cloud2", "cloud3", "cloud4"]
    assert (world.why_job(5).code, world.why_job(5).figures["node_type"]) == (Code.NO_FREE_SLOT, "cloud")
    assert bought(*[whole_nodes(1)] * 5, gpu=GPU_FOR_ALL) == ["cloud1", "cloud2", "cloud3", "cloud4", "gpu1"]


def test_a_job_with_gpus_behind_is_held_up_in_queue_order_only() -> None:
    queue = [*[whole_nodes(1)] * 5, tasks(1, gpus=1)]
    assert "gpu1" not in bought(*queue)
    assert "gpu1" in bought(*queue, queue_policy=QueuePolicy.BACKFILL)


def test_a_type_says_that_it_is_kept_for_jobs_with_gpus() -> None:
    assert a_world().job(tasks(1)).plan().types[TypeName("gpu")] == because(Code.KEPT_FOR_GPU_JOBS)
    assert a_world().job(tasks(1, gpus=1)).plan().types[TypeName("gpu")] == because(Code.BOUGHT, node_count=1)


def test_a_job_that_no_other_type_could_ever_serve_gets_a_node_with_gpus() -> None:
    """It is too large for the others, needs more of them than there are, or asks for a property of the type."""
    assert bought(tasks(1, cores=8)) == ["gpu1"]
    assert set(bought(nodes(5))) == {"cloud1", "cloud2", "cloud3", "cloud4", "gpu1"}
    assert bought(tasks(1, where=HasProperty("gpu"))) == ["gpu1"]
    assert bought(replace(tasks(1), memory_bytes_per_slot=2**35), gpu=replace(GPU, memory_bytes=2**36)) == ["gpu1"]


def test_a_node_of_the_instance_itself_is_no_other_type() -> None:
    """It may be a leftover that never comes back."""
    world = a_world(GPU).job(tasks(1))
    own = replace(a_rank("gpu1", world.policy), rank=Rank(9), host=SlotName("old1"))
    world.but(ranks={**world.snapshot.ranks, own.rank: own})
    assert boots(world.plan()) == ["gpu1"]


def test_types_that_a_schedule_closes_could_serve_the_job_later() -> None:
    closed = Schedule("night", read_windows("Mon-Sun 00:00-24:00 UTC"), node_types=("cloud",), nodes_max=0)
    world = a_world(CLOUD, GPU, schedules=(closed,)).job(tasks(1), tasks(1, cores=8))
    world.brain.use_policy(world.policy)
    world.all_is_fresh()
    why = world.why_job(1)
    assert why == because(Code.TYPE_LIMIT, schedule="night", node_type="cloud", nodes_max=0, short=1, ends=NO_MORE)
    allows = "[Schedule night] allows 0 nodes of cloud, 1 more needed"
    assert to_sentence(why.code, why.figures) == f"{allows}; no schedule allows more within a week"
    assert boots(world.plan()) == []
    world.but(jobs={JobId(2): world.snapshot.jobs[JobId(2)]})
    assert boots(world.plan()) == ["gpu1"], "no limits would let another type serve this one"


def test_a_job_that_waits_for_a_schedule_is_told_until_when() -> None:
    """Its reason named no schedule and no time, and the page said to wait for the end of a window."""
    closed = Schedule("now", read_windows("Mon-Sun 00:00-24:00 UTC"), node_types=("cloud",), nodes_max=0)
    opens = Schedule("sunday", read_windows("Sun 10:00-11:00 UTC"), node_types=("cloud",), nodes_max=2)
    world = a_world(CLOUD, GPU, schedules=(closed, opens)).job(tasks(1))
    world.brain.use_policy(world.policy)
    why = world.all_is_fresh().why_job(1)
    assert (why.figures["schedule"], "ends" in why.figures) == ("now", False)
    until_at = why.figures["until_at"]
    assert isinstance(until_at, float)
    assert 0.0 < until_at - world.snapshot.wall_at < 7 * 86_400.0
    assert datetime.fromtimestamp(until_at, UTC).strftime("%a %H:%M") == "Sun 10:00"


def test_an_observed_type_serves_nobody() -> None:
    assert bought(tasks(1), observed=frozenset({TypeName("cloud")})) == ["gpu1"]


def test_with_only_for_gpu_such_a_job_never_gets_one_and_is_told_so() -> None:
    world = a_world(CLOUD, STRICT).job(tasks(1, cores=8))
    assert boots(world.plan()) == []
    assert world.why_job(1) == because(Code.ONLY_FOR_GPU_JOBS, node_types=("gpu",))
    assert [reason.code for reason in world.plan().warnings] == ["job_never_runs"]
    assert bought(tasks(1, cores=8, gpus=1), gpu=STRICT) == ["gpu1"]


def test_any_type_can_be_kept_for_jobs_with_gpus_or_opened_to_all() -> None:
    cheap = a_type("gpu", slots=2, gpus=1, price="0.10")
    assert bought(tasks(1), gpu=cheap) == ["cloud1"]
    assert bought(tasks(1), gpu=replace(cheap, only_for=OnlyFor.ANY)) == ["gpu1"]


def test_room_on_a_node_bought_for_gpus_is_used_by_the_others() -> None:
    """Flux gives it to them anyway: no other node is bought for what fits there."""
    world = a_world().job(tasks(1), tasks(1, gpus=2), tasks(1))
    assert boots(world.plan()) == ["gpu1"]
    assert {world.why_job(number).code for number in (1, 2, 3)} == {"node_ordered"}


def test_room_on_a_node_with_gpus_that_boots_or_is_up_is_used() -> None:
    """The planner assigns jobs as Flux will start them: Flux knows nothing of ``only_for``."""
    for world in (a_world(CLOUD, STRICT).idle_node("gpu1"), a_world(CLOUD, STRICT).booting_node("gpu1")):
        world.job(tasks(1))
        assert boots(world.plan()) == []
    assert world["gpu1"].state is NodeState.BOOTING


def test_many_jobs_of_both_kinds_get_both_kinds_of_nodes() -> None:
    cpu, gpu = a_type("cpu", slots=60, cores=16), a_type("gpu", slots=60, cores=16, gpus=4, price="9.00")
    world = a_world(cpu, gpu, nodes_max=120, price_per_hour_max=10**6)
    world.job(*[tasks(1, cores=4), tasks(1, cores=2, gpus=1)] * 100)
    ordered = boots(world.plan())
    assert sum(slot.startswith("gpu") for slot in ordered) == 25, "four jobs with a GPU fill one node's GPUs"
    assert sum(slot.startswith("cpu") for slot in ordered) == 13, "the GPU nodes have 8 cores left each"
    assert {reason.code for reason in world.plan().jobs.values()} == {"node_ordered"}
