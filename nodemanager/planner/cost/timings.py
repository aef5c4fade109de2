"""Learn how long boots and stops take, from the latest few of each node type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.planner.cost.billing import age_s
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.node import Node
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot

SAMPLES_MAX = 32
SAMPLES_MIN = 3  # samples needed before a time shorter than the site's setting is believed
# The longest lead of a stop, as a part of the billing window. With few samples the 90th percentile is the slowest
# one, so a single slow stop would decide. And a node that stops before half its window wastes more of the paid time
# than it uses, every time.
LEAD_MAX = 0.5
RECLAIM = "spot reclaim"  # how adapters begin the cause of an end by the provider
RECLAIM_HOURS = 100.0  # the site's estimate of reclaims counts like so many node-hours
LONG_RUN_S = 2 * 86400.0  # jobs without a time limit, or with one above a day, count as so long
RERUNS_MAX = 50.0  # in the exponent: such a job would never end on a spot node


def with_boots(snapshot: Snapshot, changed: Mapping[LaunchId, Node]) -> Snapshot:
    """Add the boot times of nodes that have just joined. Adopted nodes are left out: their start is unknown."""
    joined = [
        (node.launch.type_name, snapshot.now_s - node.create.requested_s)
        for id_, node in changed.items()
        if node.state in (NodeState.IDLE, NodeState.BUSY)
        and snapshot.nodes[id_].state is NodeState.BOOTING
        and not node.create.adopted
    ]
    return (
        replace(
            snapshot, learned=replace(snapshot.learned, boots_s=_with_samples(snapshot.learned.boots_s, joined))
        )
        if joined
        else snapshot
    )


def with_stops(snapshot: Snapshot, changed: Mapping[LaunchId, Node], listed_s: float) -> Snapshot:
    """Add the stop times of nodes that a list shows gone. ``listed_s``: when that list was begun.

    A stop lasts until the list shows it: until then the node may be billed, even if the provider accepted the
    order. Delayed stops are left out: they show how long the trouble lasted. A stop that is merely slow counts.
    """
    gone = [
        (
            node.launch.type_name,
            (listed_s if node.listing.absent_s is None else node.listing.absent_s) - node.stop.retired_s,
        )
        for id_, node in changed.items()
        if node.state is NodeState.GONE
        and snapshot.nodes[id_].state is NodeState.STOPPING
        and node.stop.retired_s is not None
        and not node.stop.delayed
    ]
    return (
        replace(snapshot, learned=replace(snapshot.learned, stops_s=_with_samples(snapshot.learned.stops_s, gone)))
        if gone
        else snapshot
    )


def with_reclaims(snapshot: Snapshot, changed: Mapping[LaunchId, Node]) -> Snapshot:
    """Add the lives of spot nodes that a list shows gone, and whether the provider took them back."""
    ended = [
        (node.launch.type_name, _was_reclaimed(node), age_s(node, snapshot.now_s))
        for id_, node in changed.items()
        if node.launch.market is Market.SPOT
        and node.cloud is not None
        and node.state is NodeState.GONE
        and snapshot.nodes[id_].state is not NodeState.GONE
    ]
    if not ended:
        return snapshot
    known = dict(snapshot.learned.reclaims)
    for name, reclaimed, lived_s in ended:
        count, seconds = known.get(name, (0, 0.0))
        known[name] = (count + reclaimed, seconds + lived_s)
    return replace(snapshot, learned=replace(snapshot.learned, reclaims=known))


def _was_reclaimed(node: Node) -> bool:
    said = node.cloud.died_because if node.cloud is not None else ""
    return node.health.reclaimed is not None or said.startswith(RECLAIM)


def rerun_factor(snapshot: Snapshot, node_type: NodeType, policy: Policy, span_s: float) -> float:
    """By how much reclaims lengthen the use of a node, on average, for jobs of ``span_s`` seconds; at least 1.

    A job whose node is taken back starts again from the beginning. With reclaims at the rate r, a run of L seconds
    takes (exp(r L) - 1) / r seconds on average (Daly, 2006, without checkpoints). The rate is the site's estimate,
    which weighs as much as ``RECLAIM_HOURS`` node-hours, and what was measured since the start.
    """
    if node_type.market is not Market.SPOT:
        return 1.0
    count, node_s = snapshot.learned.reclaims.get(node_type.name, (0, 0.0))
    assumed = policy.rules.spot_reclaims_assumed * RECLAIM_HOURS
    per_s = (assumed + count) / (RECLAIM_HOURS * 3600.0 + node_s)
    run_s = min(span_s, LONG_RUN_S) + (boot_s(snapshot, node_type.name) or 0.0)
    expected = min(per_s * run_s, RERUNS_MAX)
    return math.expm1(expected) / expected if expected > 0 else 1.0


def boot_s(snapshot: Snapshot, type_name: TypeName) -> float | None:
    """How long a node takes from order to join, as the 90th percentile; None if none was seen yet."""
    return _percentile_90(snapshot.learned.boots_s.get(type_name, ()))


def stop_lead_s(snapshot: Snapshot, type_name: TypeName, policy: Policy) -> float:
    """How long before the end of a paid window a stop must begin so that it ends within the window."""
    assumed_s = policy.rules.stop_lead_s
    samples = snapshot.learned.stops_s.get(type_name, ())
    measured_s = _percentile_90(samples)
    if measured_s is None:
        return assumed_s
    lead_s = measured_s if len(samples) >= SAMPLES_MIN else max(measured_s, assumed_s)
    return min(lead_s, max(assumed_s, _longest_lead_s(type_name, policy)))


def quickest_stop_s(snapshot: Snapshot, type_name: TypeName) -> float | None:
    """The shortest stop of the type; None if none was seen yet."""
    return min(snapshot.learned.stops_s.get(type_name, ()), default=None)


def _longest_lead_s(type_name: TypeName, policy: Policy) -> float:
    """The longest lead for a type; unlimited if its windows are no longer than an idle node is kept anyway."""
    node_type = policy.types.get(type_name)
    if node_type is None:
        return math.inf
    paid_s = max(node_type.billing.window_s, node_type.billing.minimum_s)
    return LEAD_MAX * paid_s if paid_s > policy.idle_timeout_s(node_type) else math.inf


def _with_samples(
    samples: Mapping[TypeName, tuple[float, ...]], more: Iterable[tuple[TypeName, float]]
) -> Mapping[TypeName, tuple[float, ...]]:
    made = dict(samples)
    for name, took_s in more:
        made[name] = (*made.get(name, ()), took_s)[-SAMPLES_MAX:]
    return made


def _percentile_90(samples: Sequence[float]) -> float | None:
    return sorted(samples)[(len(samples) * 9 - 1) // 10] if samples else None
