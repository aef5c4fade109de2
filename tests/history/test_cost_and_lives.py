"""The cost of nodes by user, queue and use, and the lives of nodes."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from nodemanager.core.facts import CloudCallFailed
from nodemanager.core.jobs import Job, JobState, RankAllocation
from nodemanager.core.nodes import CloudState, FailureKind, NodeState
from nodemanager.core.slots import Billing, Rank, Tariff
from nodemanager.history.cost_ledger import NOBODY
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.node_lives import NodeLife
from nodemanager.planner.snapshot import Node
from tests.builders import NOW_S, WALL_AT, a_cloud_node, a_job, a_launch, a_node, a_policy, a_type, changed
from tests.history.publications import a_moment, told


def spent(*story: HistoryUpdate) -> dict[tuple[int, str, str], float]:
    """By user, queue and use."""
    sums: dict[tuple[int, str, str], float] = {}
    for happened in story:
        for account, amount in happened.costs.items():
            key = account.userid, account.queue, account.use
            sums[key] = sums.get(key, 0.0) + amount.cost
    return {key: cost for key, cost in sums.items() if cost}


def a_running_job(number: int, rank: int, cores: int, userid: int, queue: str = "") -> Job:
    holds = (RankAllocation(Rank(rank), cores, 0),)
    return a_job(number, state=JobState.RUN, allocations=holds, userid=userid, queue=queue)


def test_a_node_s_hour_is_charged_to_its_jobs_by_their_cores_and_the_rest_is_idle() -> None:
    jobs = [a_running_job(1, 1, 2, 1000, "batch"), a_running_job(2, 1, 1, 1001)]
    node = a_node("cloud1", NodeState.BUSY)
    story = told(*(a_moment(minute * 60, nodes=[node], jobs=jobs) for minute in range(61)))
    assert spent(*story) == {
        (1000, "batch", "job"): pytest.approx(0.20),
        (1001, "", "job"): pytest.approx(0.10),
        (NOBODY, "", "idle"): pytest.approx(0.10),
    }


def test_time_before_a_long_pause_of_the_service_is_charged_once() -> None:
    node = a_node("cloud1", NodeState.IDLE, billed_from_s=NOW_S)
    story = told(*(a_moment(at_s, nodes=[node]) for at_s in (0, 360, 3600)))
    assert spent(*story) == {(NOBODY, "", "idle"): pytest.approx(0.40)}


def test_a_gpu_node_whose_gpus_work_is_not_idle() -> None:
    """The job takes 1 of 8 cores and both GPUs: nobody else who wants a GPU could use the node."""
    policy = a_policy(a_type("gpu", cores=8, gpus=2, price="1.00"))
    node = a_node("gpu1", NodeState.BUSY, policy)
    holds_all = a_job(1, state=JobState.RUN, allocations=(RankAllocation(node.launch.rank, 1, 2),), userid=1000)
    holds_half = replace(holds_all, allocations=(RankAllocation(node.launch.rank, 1, 1),))
    beside = a_running_job(2, node.launch.rank, 7, 1001)

    def spent_with(*jobs: Job) -> dict[tuple[int, str, str], float]:
        return spent(*told(*(a_moment(at_s, nodes=[node], jobs=jobs, policy=policy) for at_s in (0, 360))))

    assert spent_with(holds_all) == {(1000, "", "job"): pytest.approx(0.10)}
    assert spent_with(holds_half) == {
        (1000, "", "job"): pytest.approx(0.05),
        (NOBODY, "", "idle"): pytest.approx(0.05),
    }
    assert spent_with(holds_all, beside) == {
        (1000, "", "job"): pytest.approx(0.10 * 1 / 1.875),
        (1001, "", "job"): pytest.approx(0.10 * 0.875 / 1.875),
    }


def test_time_in_which_nobody_works_is_said_by_what_the_node_did() -> None:
    nodes = [a_node("cloud1", NodeState.BOOTING), a_node("cloud2", NodeState.DRAINING)]
    story = told(a_moment(nodes=nodes), a_moment(360, nodes=nodes))
    assert spent(*story) == {(NOBODY, "", "boot"): pytest.approx(0.04), (NOBODY, "", "stop"): pytest.approx(0.04)}


def test_what_was_paid_and_not_used_is_said_when_the_node_goes() -> None:
    policy = a_policy(a_type("cloud", window_s=3600))
    node = a_node("cloud1", NodeState.IDLE, policy, billed_from_s=NOW_S, requested_s=NOW_S)
    story = told(
        a_moment(nodes=[node], policy=policy),
        a_moment(600, nodes=[node], policy=policy),
        a_moment(610, policy=policy),
    )
    assert spent(*story)[NOBODY, "", "unused"] == pytest.approx(0.40 * (3600 - 610) / 3600, abs=0.002)


def test_the_least_that_is_paid_for_a_node_counts_however_soon_it_goes() -> None:
    """Billed by the second, for at least a minute, as on EC2."""
    by_the_second = a_type("cloud", window_s=1.0, minimum_s=60.0)
    policy = a_policy(by_the_second)
    node = a_node("cloud1", NodeState.BOOTING, policy, billed_from_s=NOW_S, requested_s=NOW_S)
    ends = [a_moment(after_s, nodes=[node], policy=policy) for after_s in (0, 10)]
    paid = spent(*told(*ends, a_moment(20, policy=policy)))
    assert sum(paid.values()) == pytest.approx(float(by_the_second.price_per_hour) * 60 / 3600)
    late = spent(*told(ends[0], a_moment(3600, nodes=[node], policy=policy), a_moment(3610, policy=policy)))
    assert late.get((NOBODY, "", "unused"), 0.0) <= float(by_the_second.price_per_hour) * 60 / 3600


def test_a_node_of_a_type_that_the_site_names_no_more_costs_what_it_was_bought_for() -> None:
    bought, other = a_policy(a_type("cloud")), a_policy(a_type("other"))
    launch = replace(a_launch("cloud1", bought), tariff=Tariff(Decimal("0.40"), Billing(3600.0)))
    node = a_node("cloud1", NodeState.BUSY, bought, launch=launch, billed_from_s=NOW_S)
    job = a_running_job(1, launch.rank, node.rank.cores, 1000) if node.rank is not None else a_job(1)
    story = told(
        a_moment(nodes=[node], jobs=[job], policy=other), a_moment(360, nodes=[node], jobs=[job], policy=other)
    )
    assert spent(*story) == {(1000, "", "job"): pytest.approx(0.04)}
    _, life = lives(*story)[-1]
    assert life.cost == pytest.approx(0.40), "the hour is paid whole"


def test_a_new_price_counts_from_the_reload_on() -> None:
    """Six minutes at the old price pass before the site is reloaded, and six at the new one after it."""
    old, new = a_policy(a_type("cloud", price="0.40")), a_policy(a_type("cloud", price="4.00"))
    node = a_node("cloud1", NodeState.IDLE, old)
    before = a_moment(nodes=[node], policy=old), a_moment(360, nodes=[node], policy=new)
    assert spent(*told(*before)) == {(NOBODY, "", "idle"): pytest.approx(0.04)}
    assert spent(*told(*before, a_moment(720, nodes=[node], policy=new))) == {
        (NOBODY, "", "idle"): pytest.approx(0.44)
    }


def test_what_is_not_yet_made_costs_nothing() -> None:
    node = a_node("cloud1", NodeState.REQUESTED)
    assert spent(*told(a_moment(nodes=[node]), a_moment(60, nodes=[node]))) == {}


@pytest.mark.parametrize("state", [NodeState.BOOTING, NodeState.DRAINING, NodeState.STOPPING])
def test_a_node_in_its_provider_s_own_queue_costs_nothing_however_it_leaves(state: NodeState) -> None:
    cloud = a_cloud_node(a_launch("cloud1"), state=CloudState.PENDING, queued=True)
    waiting = a_node("cloud1", state, cloud=cloud, billed_from_s=NOW_S)
    gone = replace(waiting, state=NodeState.GONE)
    story = [*(a_moment(at_s, nodes=[waiting]) for at_s in (0, 360)), a_moment(400, nodes=[gone]), a_moment(420)]
    assert spent(*told(*story, charged_until_at=WALL_AT)) == {}


def test_a_node_that_leaves_its_provider_s_queue_costs_from_then_on() -> None:
    cloud = a_cloud_node(a_launch("cloud1"), state=CloudState.PENDING, queued=True)
    waiting = a_node("cloud1", NodeState.BOOTING, cloud=cloud, billed_from_s=NOW_S + 360)
    runs = replace(waiting, cloud=replace(cloud, state=CloudState.RUNNING, queued=False))
    story = [
        a_moment(at_s, nodes=[node]) for at_s, node in ((0, waiting), (360, waiting), (420, runs), (720, runs))
    ]
    assert spent(*told(*story, charged_until_at=WALL_AT)) == {(NOBODY, "", "boot"): pytest.approx(0.04)}


def test_a_node_that_comes_and_goes_within_a_step_costs_something() -> None:
    by_the_second = a_type("cloud", window_s=1.0)
    policy = a_policy(by_the_second)
    node = a_node("cloud1", NodeState.BOOTING, policy, billed_from_s=NOW_S + 1.0)
    moments = [(0, []), (1, [node]), (2, [node]), (3, [])]
    story = told(*(a_moment(at_s, nodes=nodes, policy=policy) for at_s, nodes in moments))
    assert sum(spent(*story).values()) == pytest.approx(float(by_the_second.price_per_hour) * 2 / 3600)


def test_a_long_pause_is_charged_only_to_the_jobs_that_still_run() -> None:
    node = a_node("cloud1", NodeState.BUSY, billed_from_s=NOW_S)
    ended, runs = a_running_job(1, 1, 4, 1000), replace(a_running_job(2, 1, 2, 1001), began_at=WALL_AT + 43_200)
    story = told(a_moment(nodes=[node], jobs=[ended]), a_moment(86_400, nodes=[node], jobs=[runs]))
    assert spent(*story) == {
        (1001, "", "job"): pytest.approx(0.40 * 6),
        (NOBODY, "", "idle"): pytest.approx(0.40 * 18),
    }


@pytest.mark.parametrize("first_sees_it", [True, False])
def test_what_a_node_cost_while_no_manager_ran_is_charged_from_the_last_charge_on_record(
    *, first_sees_it: bool
) -> None:
    """Two hours old, and charged for the first. Its job began half an hour ago."""
    node = a_node("cloud1", NodeState.BUSY, billed_from_s=NOW_S - 7200, requested_s=NOW_S - 7200)
    job = replace(a_running_job(1, 1, 2, 1000), began_at=WALL_AT - 1800)
    moments = [a_moment(nodes=[node] if first_sees_it else [], jobs=[job]), a_moment(10, nodes=[node], jobs=[job])]
    story = told(*moments, charged_until_at=WALL_AT - 3600)
    costs = spent(*story)
    assert costs[1000, "", "job"] == pytest.approx(0.20 * 1810 / 3600)
    assert sum(costs.values()) == pytest.approx(0.40 * 3610 / 3600)
    hours = {key.hour for update in story for key in update.costs}
    assert hours == {int(at // 3600) for at in (WALL_AT - 3600, WALL_AT - 1, WALL_AT + 10)}


def test_a_node_on_which_no_cost_is_on_record_is_charged_from_its_creation() -> None:
    node = a_node("cloud1", NodeState.IDLE, billed_from_s=NOW_S - 7200, requested_s=NOW_S - 7200)
    story = told(a_moment(nodes=[node]), charged_until_at=0.0)
    assert spent(*story) == {(NOBODY, "", "idle"): pytest.approx(0.80)}


def test_costs_count_as_charged_only_once_all_nodes_are_known() -> None:
    """A manager that ends before it has claimed the instance charged nothing: the next one must."""
    early = a_moment(10)
    unclaimed = replace(early, snapshot=changed(early.snapshot, claimed=False))
    (update,) = told(unclaimed, charged_until_at=WALL_AT - 600)
    assert update.charged_until_at == WALL_AT - 600
    *_, claimed = told(unclaimed, a_moment(20), charged_until_at=WALL_AT - 600)
    assert claimed.charged_until_at == WALL_AT + 20


def test_an_adopted_node_that_goes_leaves_only_the_rest_of_its_window_unused() -> None:
    policy = a_policy(a_type("cloud", window_s=3600))
    node = a_node("cloud1", NodeState.IDLE, policy, billed_from_s=NOW_S - 1800, requested_s=NOW_S - 1800)
    story = told(
        a_moment(nodes=[node], policy=policy), a_moment(600, policy=policy), charged_until_at=WALL_AT - 600
    )
    assert spent(*story) == {
        (NOBODY, "", "idle"): pytest.approx(0.40 * 1200 / 3600),
        (NOBODY, "", "unused"): pytest.approx(0.40 * 1200 / 3600),
    }


# --- lives ------------------------------------------------------------------------------------------------


def lives(*story: HistoryUpdate) -> list[tuple[NodeLife | None, NodeLife]]:
    return [change for happened in story for change in happened.life_changes]


def test_a_life_has_its_moments() -> None:
    launch = a_launch("cloud1", age_s=100)
    pending = a_cloud_node(launch, state=CloudState.PENDING)
    stages = [
        a_node("cloud1", NodeState.REQUESTED, launch=launch),
        a_node("cloud1", NodeState.BOOTING, launch=launch, cloud=pending),
        a_node("cloud1", NodeState.BOOTING, launch=launch),
        a_node("cloud1", NodeState.IDLE, launch=launch, since_s=NOW_S + 30),
        a_node("cloud1", NodeState.BUSY, launch=launch, since_s=NOW_S + 40),
    ]
    story = told(*(a_moment(10 * turn, nodes=[node]) for turn, node in enumerate(stages)), a_moment(60))
    _, life = lives(*story)[-1]
    assert (life.requested_at, life.up_at, life.joined_at, life.first_job_at, life.ended_at) == (
        WALL_AT - 100,
        WALL_AT + 20,
        WALL_AT + 30,
        WALL_AT + 40,
        WALL_AT + 60,
    )
    assert (life.outcome, life.found) == ("joined", False)


@pytest.mark.parametrize(
    ("node", "failures", "outcome"),
    [
        (changed(a_node("cloud1", NodeState.REQUESTED), sent_s=NOW_S - 10), (), "never_appeared"),
        (a_node("cloud1", NodeState.REQUESTED), (), "not_created"),
        (changed(a_node("cloud1", NodeState.REQUESTED), adopted=True), (), "never_appeared"),
        (a_node("cloud1", NodeState.REQUESTED), (FailureKind.QUOTA,), "create_quota"),
        (a_node("cloud1", NodeState.BOOTING), (), "dead_on_arrival"),
    ],
)
def test_a_boot_that_failed_has_its_cause(node: Node, failures: tuple[FailureKind, ...], outcome: str) -> None:
    facts = [CloudCallFailed("create", node.id, kind, "") for kind in failures]
    _, life = lives(*told(a_moment(nodes=[node]), a_moment(1, facts=facts)))[-1]
    assert life.outcome == outcome


def test_one_that_was_never_made_has_cost_nothing() -> None:
    (_, life) = lives(*told(a_moment(nodes=[a_node("cloud1", NodeState.REQUESTED)])))[-1]
    assert life.cost == 0.0


def test_one_that_was_found_standing_is_known_as_such() -> None:
    node = changed(a_node("cloud1", NodeState.IDLE), adopted=True)
    (_, life) = lives(*told(a_moment(nodes=[node])))[-1]
    assert life.found
