"""How long things take, learned from what is seen: boots and stops, the latest few of each node type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from nodemanager.core.nodes import LaunchId, NodeState
from nodemanager.core.slots import TypeName
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Node, Snapshot

SAMPLES_MAX = 32
SAMPLES_MIN = 3  # before a shorter time than the site's own is believed
# No stop is begun sooner before a window's end than this part of it, however long stops were seen to take. With a
# few samples nine in ten are all of them, so a single slow one decides; and by a node that goes sooner than half
# way more of what is paid is thrown away, each time and for certain, than is used.
LEAD_MAX = 0.5


def with_boots(snapshot: Snapshot, changed: Mapping[LaunchId, Node]) -> Snapshot:
    """Take in those nodes that have just joined. How long one took that was found booting is not known."""
    joined = [
        (node.launch.type_name, snapshot.now_s - node.requested_s)
        for id_, node in changed.items()
        if node.state in (NodeState.IDLE, NodeState.BUSY)
        and snapshot.nodes[id_].state is NodeState.BOOTING
        and not node.adopted
    ]
    return replace(snapshot, boots_s=_with(snapshot.boots_s, joined)) if joined else snapshot


def with_stops(snapshot: Snapshot, changed: Mapping[LaunchId, Node], listed_s: float) -> Snapshot:
    """Take in those nodes that a list begun at a moment shows gone, by their absence or by the provider's word.

    Until then it may be on the bill: that a provider has taken the order to end it does not say so. A stop that was
    held up says how long the trouble lasted, not how long stops take; one that is only slow is none of those.
    """
    gone = [
        (node.launch.type_name, (listed_s if node.absent_s is None else node.absent_s) - node.retired_s)
        for id_, node in changed.items()
        if node.state is NodeState.GONE
        and snapshot.nodes[id_].state is NodeState.STOPPING
        and node.retired_s is not None
        and not node.stop_delayed
    ]
    return replace(snapshot, stops_s=_with(snapshot.stops_s, gone)) if gone else snapshot


def boot_s(snapshot: Snapshot, type_name: TypeName) -> float | None:
    """How long a node takes from its order to being up, nine times out of ten; None if none was seen yet."""
    return _nine_in_ten(snapshot.boots_s.get(type_name, ()))


def stop_lead_s(snapshot: Snapshot, type_name: TypeName, policy: Policy) -> float:
    """How long before the end of a paid window a node must be told to go, for its end to fall within it."""
    assumed_s = policy.stop_lead_s
    samples = snapshot.stops_s.get(type_name, ())
    measured_s = _nine_in_ten(samples)
    if measured_s is None:
        return assumed_s
    lead_s = measured_s if len(samples) >= SAMPLES_MIN else max(measured_s, assumed_s)
    return min(lead_s, max(assumed_s, _longest_lead_s(type_name, policy)))


def quickest_stop_s(snapshot: Snapshot, type_name: TypeName) -> float | None:
    """The least that a stop of the type has taken; None if none was seen yet."""
    return min(snapshot.stops_s.get(type_name, ()), default=None)


def _longest_lead_s(type_name: TypeName, policy: Policy) -> float:
    """Without a bound where what is paid at once is no longer than an idle node stays anyway."""
    node_type = policy.types.get(type_name)
    if node_type is None:
        return math.inf
    paid_s = max(node_type.billing.window_s, node_type.billing.minimum_s)
    return LEAD_MAX * paid_s if paid_s > policy.idle_timeout_s else math.inf


def _with(
    samples: Mapping[TypeName, tuple[float, ...]], more: Iterable[tuple[TypeName, float]]
) -> Mapping[TypeName, tuple[float, ...]]:
    made = dict(samples)
    for name, took_s in more:
        made[name] = (*made.get(name, ()), took_s)[-SAMPLES_MAX:]
    return made


def _nine_in_ten(samples: Sequence[float]) -> float | None:
    return sorted(samples)[(len(samples) * 9 - 1) // 10] if samples else None
