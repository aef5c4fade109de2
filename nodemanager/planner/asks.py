"""What to ask the outside, and when: the claim, fresh lists, and records to be written.

A source is asked again only after its answer, its deadline or its retry time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import ClaimInstance, KeepSpend, KeepSteering, ListCloud, LookAtRanks, SweepCloud
from nodemanager.core.slots import CloudName
from nodemanager.planner.cost import spending
from nodemanager.planner.state.node_index import node_index_of
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Source

IN_TRANSITION = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.LOST, NodeState.STOPPING)

CLAIM, LOOK = ClaimInstance(), LookAtRanks()

Ask = ClaimInstance | LookAtRanks | ListCloud | SweepCloud | KeepSteering | KeepSpend


def asks_now(snapshot: Snapshot, policy: Policy) -> tuple[Ask, ...]:
    """What to ask now, in this order."""
    return tuple(ask for ask, due_s in _due_times(snapshot, policy) if due_s <= snapshot.now_s)


def sweeps_now(snapshot: Snapshot, policy: Policy) -> tuple[SweepCloud, ...]:
    """The sweeps for leftovers that are due. Never while another manager acts: a sweep deletes."""
    return tuple(
        SweepCloud(name)
        for name in policy.cloud_names
        if name not in snapshot.closed_clouds and _sweep_due_s(name, snapshot, policy) <= snapshot.now_s
    )


def next_ask_s(snapshot: Snapshot, policy: Policy) -> float:
    """When the next ask is due, or the deadline of one passes; infinity if neither is known."""
    writes = snapshot.operator.steering_write, snapshot.spending.write, snapshot.queues.hold_write
    clouds = (account.source for account in snapshot.accounts.values())
    answers = (snapshot.sources.claim, snapshot.sources.flux, *clouds, *writes)
    moments = [due_s for _, due_s in _due_times(snapshot, policy)]
    moments += [source.answer_due_s for source in answers if source.answer_due_s is not None]
    moments += [_sweep_due_s(name, snapshot, policy) for name in policy.cloud_names]
    moments.append(snapshot.queues.hold_write.retry_s)
    return min((at_s for at_s in moments if at_s > snapshot.now_s), default=inf)


def _due_times(snapshot: Snapshot, policy: Policy) -> Iterator[tuple[Ask, float]]:
    """Everything that is to be asked, and when."""
    if not snapshot.sources.claimed:
        yield CLAIM, _not_before(-inf, snapshot.sources.claim)
    look_s = (
        -inf
        if snapshot.news.look_due_since_s is not None
        else _stale_at_s(snapshot.sources.flux, policy.timing.probe_s)
    )
    yield LOOK, _not_before(look_s, snapshot.sources.flux)
    list_every_s = _list_every_s(snapshot, policy)
    for name in policy.cloud_names:
        cloud = snapshot.account_of(name).source
        list_s = -inf if cloud.news_s is not None else _stale_at_s(cloud, list_every_s)
        yield ListCloud(name), _not_before(list_s, cloud)
    if snapshot.sources.claimed and snapshot.operator.steering != snapshot.operator.steering_on_record:
        yield KeepSteering(snapshot.operator.steering), _not_before(-inf, snapshot.operator.steering_write)
    spend_s = spending.write_spend_at_s(snapshot, policy)
    if spend_s is not None:
        yield KeepSpend(spending.current_spend(snapshot)), _not_before(spend_s, snapshot.spending.write)


def _sweep_due_s(cloud: CloudName, snapshot: Snapshot, policy: Policy) -> float:
    swept_s = snapshot.account_of(cloud).swept_s
    return -inf if swept_s is None else swept_s + policy.timing.sweep_s


def _not_before(due_s: float, source: Source) -> float:
    """When a source may be asked that is to be asked at ``due_s``; infinity while its answer is awaited."""
    return max(due_s, source.retry_s) if source.answer_due_s is None else inf


def _stale_at_s(source: Source, age_s: float) -> float:
    return -inf if source.seen_s is None else source.seen_s + age_s


def _list_every_s(snapshot: Snapshot, policy: Policy) -> float:
    """How often to list the cloud: often while nodes boot or stop, else only now and then as a check."""
    node_index = node_index_of(snapshot)
    moving = (
        any(node_index.count_by_state.get(state) for state in IN_TRANSITION)
        or any(account.strays or account.doubted_lists for account in snapshot.accounts.values())
        or any(node.listing.absences for node in node_index.to_check.values())
    )
    return policy.timing.probe_s if moving else policy.timing.relist_s
