"""The simulator proves nothing unless it can fail: the seeds catch each rule that is broken on purpose.

Each mutation is listed with a seed that caught it. That seed is tried first, so this costs little. After a change
of the simulator the seed may give another run: then up to ``SEEDS_MAX`` others are tried.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import CloudCallFailed, Fact, NodeDestroyed, NodeDrained, QueueSeen
from nodemanager.core.jobs import JobState
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.reasons import Reason
from nodemanager.planner import (
    backoff,
    brain,
    budgets,
    calls,
    leases,
    node_health,
    node_steps,
    observe,
    observe_cloud,
    observe_flux,
    placement,
    plan,
    serving,
    supply,
    trust,
)
from nodemanager.planner import placement as fleet_needs
from nodemanager.planner import plan as boot_orders
from nodemanager.planner.policy import Policy
from nodemanager.planner.requeue import requeue_orders
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.planner.supply import Supply
from nodemanager.simulation.cloud.provider import SimulatedCloud
from tests.builders import changed, with_settings
from tests.chaos.command import run_seed, silence_logs
from tests.chaos.run import site

SEEDS_MAX = 200

Patch = pytest.MonkeyPatch


def without_a_second_look(patch: Patch) -> None:
    def nothing_forbids(node: Node, rank: Any) -> Reason | None:
        return None

    patch.setattr(node_steps, "second_look", nothing_forbids)


def believing_the_first_look(patch: Patch) -> None:
    def as_it_was(node: Node, fact: NodeDrained, *_: Any) -> Node:
        was = node.rank
        if was is not None:
            reason = drain_text(node.id)
            was = replace(was, allocated=False, schedulable=False, drain_reason=reason)
        return changed(node, call=None, drained_s=fact.started_s, rank=was)

    patch.setitem(cast("dict[Any, Any]", observe.HANDLERS), NodeDrained, observe.to_nodes(as_it_was))


def believing_one_list(patch: Patch) -> None:
    def hasty(**settings: Any) -> Policy:
        return with_settings(Policy(**settings), absences=1, create_grace_s=0.0)

    def never_too_many(snapshot: Snapshot, lacking: list[Node]) -> bool:
        return False

    patch.setattr(site, "Policy", hasty)
    patch.setattr(observe_cloud, "_too_many_vanished", never_too_many)


def taking_a_lost_reply_for_a_refusal(patch: Patch) -> None:
    create_failed = observe_cloud._apply_create_failure

    def as_refused(snapshot: Snapshot, node: Node, fact: CloudCallFailed, policy: Policy) -> Snapshot:
        return create_failed(snapshot, node, replace(fact, kind=FailureKind.TRANSIENT), policy)

    patch.setattr(observe_cloud, "_apply_create_failure", as_refused)


def buying_two_too_many(patch: Patch) -> None:
    current_supply = supply.current_supply

    def generous(*arguments: Any) -> Supply:
        made = current_supply(*arguments)
        made.nodes_left += 2
        return made

    patch.setattr(placement, "current_supply", generous)
    patch.setattr(budgets, "current_supply", generous)


def taking_accepted_for_gone(patch: Patch) -> None:
    destroyed = calls.note_destroy_accepted

    def gone_at_once(node: Node, fact: NodeDestroyed, snapshot: Snapshot, policy: Policy) -> Node:
        return replace(destroyed(node, fact, snapshot, policy), state=NodeState.GONE, retry_s=0.0)

    patch.setitem(cast("dict[Any, Any]", observe.HANDLERS), NodeDestroyed, observe.to_nodes(gone_at_once))


def taking_strangers_for_ours(patch: Patch) -> None:
    pair = observe_cloud.pair

    def greedy(nodes: Any, listed: Any, cluster: str, cluster_uuid: str) -> observe_cloud.Pairing:
        made = pair(nodes, listed, cluster, cluster_uuid)
        untagged = tuple(node for node in listed if node.identity is None)
        return replace(made, strays=made.strays + untagged)

    patch.setattr(observe_cloud, "pair", greedy)


def taking_no_notice_of_a_new_division(patch: Patch) -> None:
    patch.setattr(brain, "with_slot_types", lambda policy, _division: policy)


def repeating_a_create_without_its_token(patch: Patch) -> None:
    create_failed, launch = observe_cloud._apply_create_failure, leases.new_launch

    def again(snapshot: Snapshot, node: Node, fact: CloudCallFailed, policy: Policy) -> Snapshot:
        snapshot = create_failed(snapshot, node, fact, policy)
        after = snapshot.nodes.get(node.id)
        if fact.kind is not FailureKind.AMBIGUOUS or after is None or after.state is not NodeState.REQUESTED:
            return snapshot
        return replace(snapshot, nodes={**snapshot.nodes, node.id: changed(after, sent_s=None)})

    patch.setattr(observe_cloud, "_apply_create_failure", again)
    patch.setattr(boot_orders, "new_launch", lambda *args, **rest: replace(launch(*args, **rest), client_token=""))


def deciding_on_old_news(patch: Patch) -> None:
    why = trust.why_standstill

    def carefree(snapshot: Snapshot, policy: Policy, _stale: Any, unsafe: Any) -> Reason | None:
        return why(snapshot, with_settings(policy, stale_after_s=1e9), {}, unsafe)

    patch.setattr(plan, "why_standstill", carefree)


def forgetting_strays(patch: Patch) -> None:
    pair = observe_cloud.pair
    patch.setattr(observe_cloud, "pair", lambda *arguments: replace(pair(*arguments), strays=()))


def leaving_orphans_alone(patch: Patch) -> None:
    patch.setattr(plan, "stray_orders", lambda *_: [])


def buying_again_what_is_on_its_way(patch: Patch) -> None:
    patch.setattr(serving, "coming_offers", lambda *_: [])


def recording_no_spending(patch: Patch) -> None:
    def spends_nothing(before: Snapshot, after: Snapshot, fact: Fact, policy: Policy) -> Snapshot:
        return after

    patch.setattr(observe, "accrue", spends_nothing)


def buying_for_jobs_that_are_held(patch: Patch) -> None:
    queue_seen = observe_flux.apply_queue

    def all_wait(snapshot: Snapshot, fact: Any, policy: Policy) -> Snapshot:
        jobs = tuple(
            replace(job, priority=16, urgency=16) if job.state is JobState.SCHED else job for job in fact.jobs
        )
        return queue_seen(snapshot, replace(fact, jobs=jobs), policy)

    patch.setitem(cast("dict[Any, Any]", observe.HANDLERS), QueueSeen, observe.one_by_one(all_wait))


def buying_a_gang_in_two_groups(patch: Patch) -> None:
    patch.setattr(backoff, "gather_wide_jobs", lambda fact, *_: fact)


def leaving_empty_groups_behind(patch: Patch) -> None:
    patch.setattr(SimulatedCloud, "sweep", lambda _: ())


def killing_housekeeping_for_ever(patch: Patch) -> None:
    patch.setattr(node_health, "KILLS_MAX", 10**9)


def submitting_jobs_again_and_again(patch: Patch) -> None:
    def forgetful(snapshot: Snapshot, policy: Policy) -> Any:
        jobs = {
            id_: replace(job, request=replace(job.request, requeued_from=None))
            for id_, job in snapshot.jobs.items()
        }
        return requeue_orders(changed(snapshot, requeued=frozenset(), jobs=jobs), policy)

    patch.setattr(plan, "requeue_orders", forgetful)


def buying_a_size_that_was_just_refused(patch: Patch) -> None:
    refusal = backoff.apply_refusal

    def forgetful(snapshot: Snapshot, node: Node, kind: FailureKind, *rest: Any) -> Snapshot:
        return snapshot if kind is FailureKind.CAPACITY else refusal(snapshot, node, kind, *rest)

    patch.setattr(observe_cloud, "apply_refusal", forgetful)


def buying_dearer_sizes_first(patch: Patch) -> None:
    patch.setattr(fleet_needs, "_cheapest_first", lambda purchases: purchases)


# Each with a seed that caught it.
MUTATIONS: dict[Callable[[Patch], None], int] = {
    without_a_second_look: 3,
    believing_the_first_look: 3,
    believing_one_list: 17,
    taking_a_lost_reply_for_a_refusal: 8,
    repeating_a_create_without_its_token: 9,
    buying_two_too_many: 31,
    taking_accepted_for_gone: 0,
    taking_strangers_for_ours: 0,
    taking_no_notice_of_a_new_division: 18,
    deciding_on_old_news: 1,
    forgetting_strays: 1,
    leaving_orphans_alone: 2,
    buying_again_what_is_on_its_way: 0,
    recording_no_spending: 3,
    buying_for_jobs_that_are_held: 3,
    killing_housekeeping_for_ever: 202,
    submitting_jobs_again_and_again: 1229,
    buying_a_gang_in_two_groups: 40,
    leaving_empty_groups_behind: 5,
    buying_a_size_that_was_just_refused: 28,
    buying_dearer_sizes_first: 196,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", MUTATIONS)
def test_a_broken_rule_is_caught(broken: Callable[[Patch], None], monkeypatch: Patch) -> None:
    silence_logs()
    broken(monkeypatch)
    seeds = [MUTATIONS[broken], *range(SEEDS_MAX)]
    caught_by = next((seed for seed in seeds if run_seed(seed) is not None), None)
    assert caught_by is not None, f"{broken.__name__}: none of {SEEDS_MAX} seeds catches it"
    if caught_by != seeds[0]:
        print(f"{broken.__name__}: list seed {caught_by} with it, to find it at once")
