"""Learn how long boots and stops take, from the latest few of each node type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import TypeName
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
