"""The site's settings for the planner: limits, prices, timeouts. Every limit has a value; none is "unlimited"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from math import inf
from types import MappingProxyType

from nodemanager.core.jobs import PackingPolicy, QueuePolicy, Shape, Unserved
from nodemanager.core.nodes import FailureKind, Launch
from nodemanager.core.slots import (
    DEFAULT_CLOUD,
    NO_LIMITS,
    CloudName,
    ForeignDrain,
    Market,
    Misfit,
    NodePlacement,
    NodeType,
    SlotName,
    TypeLimits,
    TypeName,
)
from nodemanager.core.upkeep.rules import Disruption, Drift, Schedule
from nodemanager.core.upkeep.windows import is_open, next_change_at

GIB = 2**30

# How long a failed create blocks its type, or all types.
BLOCK_S: Mapping[FailureKind, float] = MappingProxyType(
    {
        FailureKind.CAPACITY: 120.0,
        FailureKind.QUOTA: 120.0,
        FailureKind.THROTTLED: 5.0,
        FailureKind.CREDENTIALS: 20.0,  # doubles, so it ends soon after a permission was mended
        FailureKind.CONFIG: 900.0,
        FailureKind.GONE: 60.0,
        FailureKind.TRANSIENT: 10.0,
    }
)


@dataclass(frozen=True)
class Limits:
    """What the fleet never exceeds: ``[Limits]`` of the site."""

    nodes_max: int
    price_per_hour_max: Decimal
    nodes_min: int = 0


@dataclass(frozen=True)
class Timing:
    """Waits, periods and timeouts in seconds: ``[Timing]`` of the site."""

    settle_s: float = 1.0  # from the latest new job to a purchase
    settle_max_s: float = 10.0  # a purchase waits no longer than this
    boot_timeout_s: float = 900.0  # from the order of a node to its join
    rejoin_timeout_s: float = 120.0  # for a lost broker to return
    create_grace_s: float = 120.0  # how long an unlisted node is looked for at least
    orphan_grace_s: float = 600.0  # before a node without a launch is destroyed
    stale_after_s: float = 180.0  # older data stops all decisions
    probe_s: float = 10.0  # from one look at the ranks to the next
    relist_s: float = 60.0  # from one list of the cloud to the next, if nothing boots or stops
    sweep_s: float = 600.0  # from one sweep for leftovers to the next
    absences: int = 3  # lists in a row that must lack a node before it counts as gone
    boot_retry_s: float = 900.0  # from the last failed boot in a row until one more is tried
    safe_mode_max_s: float = 1800.0
    housekeeping_max_s: float = 1800.0


@dataclass(frozen=True)
class Rules:
    """The rules for buying and retiring nodes: ``[Policy]`` of the site."""

    idle_confirmations: int = 2  # looks in a row that must find a node idle
    idle_timeout_s: float = 300.0  # how long an idle node is kept if its billing windows are short
    stop_lead_s: float = 60.0  # how long before the end of a billing window a stop begins, until stops are measured
    patience_s: float = 0.0  # how much longer than a boot to wait for room on busy nodes
    packing: PackingPolicy = PackingPolicy.SPREAD
    queue_policy: QueuePolicy = QueuePolicy.FIFO
    unserved: Unserved = Unserved.HOLD_USERS
    misfit: Misfit = Misfit.DRAIN
    foreign_drain: ForeignDrain = ForeignDrain.RETIRE
    foreign_drain_after_s: float = 300.0  # how long a node that Flux itself drained is kept
    boot_failures_max: int = 3  # failed boots in a row of a type and image, after which no more are bought
    unready_max: float = 0.5  # if a larger share of the nodes is unready, nothing is done
    spot_share_max: float = 1.0  # spot nodes are bought up to this share of all nodes
    spot_reclaims_assumed: float = 0.01  # how often a spot node is taken back, until reclaims are measured


@dataclass(frozen=True)
class Upkeep:
    """The rules for replacing and keeping nodes: ``[Disruption]`` of the site, and some of its ``[Policy]``."""

    drift: Drift = Drift.REPLACE
    disruption: Disruption = field(default_factory=Disruption)
    of_type: Mapping[TypeName, Disruption] = field(default_factory=dict)  # limits within that of the whole fleet
    consolidate: bool = False  # keep new jobs off nodes that the fleet can do without
    consolidate_gain: float = 0.05  # only if that saves at least this share of what the fleet costs an hour
    schedules: tuple[Schedule, ...] = ()
    nodes_min_of_ensembles: int = 0  # which no schedule takes away
    wait_for_data: str = "never"  # nodes with this property stay until the data of their jobs is safe
    data_max_s: float = 3600.0  # from the end of a job until a warning that its data is not safe yet


@dataclass(frozen=True)
class Calls:
    """How the provider is called: ``[Cloud]`` of the site."""

    call_timeout_s: float = 60.0  # for a call to be answered
    calls_in_flight_max: int = 8
    creates_per_s: float = 5.0
    creates_burst: int = 20
    nodes_per_create: int = 1  # how many nodes one call may create
    create_calls_per_s: float = 1.0  # how fast the provider's bucket of create calls refills
    create_calls_burst: float | None = None  # and how many it holds; None: it counts nodes only
    nodes_per_destroy: int = 1


@dataclass(frozen=True)
class CloudRules:
    """How one of several clouds is used: a ``[Cloud NAME]`` of the site."""

    calls: Calls = Calls()
    nodes_max: int | None = None  # its own limits, within those of the whole fleet
    price_per_hour_max: Decimal | None = None
    egress_price_per_gib: Decimal | None = None  # for data that leaves it; None: unknown


@dataclass(frozen=True)
class Fixed:
    """What no site sets by itself. Some providers need other values, and so do tests and simulations."""

    quiet_s: float = 0.1  # from the latest change of queue or ranks to a purchase
    # Even if the ranks keep changing, the next look waits: at least ``look_every_s`` from the start of the last
    # one, and ``look_rest`` times its duration from its end. So looks take at most a tenth of the time.
    # ``look_every_s`` is no longer than ``quiet_s``, for which purchases wait anyway.
    look_every_s: float = 0.1
    look_rest: float = 9.0
    order_good_s: float = 30.0  # an order that has not begun by then lapses
    broker_stop_s: float = 5.0  # time for a broker to leave cleanly
    block_s: Mapping[FailureKind, float] = field(default_factory=lambda: BLOCK_S)
    block_s_max: float = 600.0  # repeated refusals are waited out for longer, up to this
    probe_s_max: float = 3600.0  # the longest pause before one node above a learned quota is tried
    unready_nodes: int = 3  # up to this number of unready nodes their share does not matter


@dataclass(frozen=True)
class Policy:
    """The site's settings as the planner needs them, grouped as in the site file."""

    cluster: str
    cluster_uuid: str
    node_types: tuple[NodeType, ...]
    limits: Limits
    timing: Timing = Timing()
    rules: Rules = Rules()
    calls: Calls = Calls()
    upkeep: Upkeep = field(default_factory=Upkeep)
    fixed: Fixed = field(default_factory=Fixed)
    # By owner ("" for the whole site, "cloud NAME", "user" for each user, "queue" for each queue) and by period
    # ("day", "month").
    budgets: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    observed: frozenset[TypeName] = frozenset()  # decisions about these types are reported, not carried out
    bursts: bool = False  # jobs may be sent to peers without being asked for
    destroy_on_replay: bool = False  # give up a node whose ticket was used twice
    # The provider has only a number of nodes: a new node gets the lowest free slot, and only the highest can leave.
    stacked: bool = False
    clouds: Mapping[CloudName, CloudRules] = field(default_factory=dict)  # {}: one cloud, called by ``calls``
    unscheduled: Policy | None = None  # the site's own settings, if a schedule may have changed these

    @cached_property
    def cloud_names(self) -> tuple[CloudName, ...]:
        """The names of the clouds, in the order of the site; at least one."""
        return tuple(self.clouds) or (DEFAULT_CLOUD,)

    def only_cloud(self, name: CloudName) -> CloudName:
        """The only cloud, if there is a single one; else ``name``."""
        return self.cloud_names[0] if len(self.cloud_names) == 1 else name

    def cloud_of(self, launch: Launch) -> CloudName:
        """The cloud of a launch. If the lease records none, it is the only one, whatever its name is now."""
        return self.cloud_of_name(launch.cloud)

    def cloud_of_name(self, name: CloudName) -> CloudName:
        """The cloud that a lease means by this name."""
        return self.only_cloud(name) if name == DEFAULT_CLOUD else name

    @cached_property
    def budget_owners(self) -> frozenset[str]:
        """Who has a budget: the site (""), all users, all queues, or a cloud."""
        return frozenset(owner for owner, _ in self.budgets)

    def home_of(self, shape: Shape) -> CloudName | None:
        """The cloud near which a job wants its nodes; None if it has no wish, or the site has no such cloud."""
        near = shape.near
        return near.cloud if near is not None and near.cloud in self.cloud_names else None

    def egress_of(self, shape: Shape) -> Decimal | None:
        """What a job's data costs if it leaves its cloud; None if its size or the price is unknown."""
        near = shape.near
        rules = self.clouds.get(near.cloud) if near is not None and near.data_bytes else None
        if near is None or rules is None or rules.egress_price_per_gib is None:
            return None
        return rules.egress_price_per_gib * near.data_bytes / GIB

    def has_limits(self, cloud: CloudName) -> bool:
        """Whether a cloud has limits of its own."""
        rules = self.clouds.get(cloud)
        return rules is not None and not (rules.nodes_max is None and rules.price_per_hour_max is None)

    def calls_of(self, cloud: CloudName) -> Calls:
        """How a cloud is called."""
        return self.clouds[cloud].calls if len(self.clouds) > 1 and cloud in self.clouds else self.calls

    def passes_over(self, *, of_user: bool) -> bool:
        """Whether nodes are bought for jobs behind one that is unserved for long.

        ``of_user``: limits of its user keep it from being served, so only jobs of that user are concerned.
        """
        if self.rules.queue_policy is not QueuePolicy.FIFO or self.rules.unserved in (Unserved.HOLD, Unserved.SKIP):
            return True
        return of_user and self.rules.unserved is Unserved.HOLD_USERS

    def holds(self, *, of_user: bool) -> bool:
        """Whether a job that is unserved for long is held in Flux. Without queue order only if the site says so."""
        if self.rules.unserved is Unserved.HOLD:
            return True
        return (
            of_user and self.rules.unserved is Unserved.HOLD_USERS and self.rules.queue_policy is QueuePolicy.FIFO
        )

    @cached_property
    def acting_everywhere(self) -> Policy:
        """The same policy with no type observed."""
        return replace(self, observed=frozenset())

    def idle_timeout_s(self, node_type: NodeType) -> float:
        """How long an idle node of a type is kept, if its billing windows are short."""
        own_s = node_type.idle_timeout_s
        return own_s if own_s is not None else self.rules.idle_timeout_s

    @cached_property
    def has_schedules(self) -> bool:
        """Whether the time of the week changes what the site says."""
        return bool(self.upkeep.schedules) or any(of.prepaid_until_at for of in self.node_types)

    @cached_property
    def has_prepaid(self) -> bool:
        """Whether nodes of any type are prepaid."""
        return any(node_type.prepaid for node_type in self.node_types)

    @cached_property
    def has_spares(self) -> bool:
        """Whether any type keeps spare nodes."""
        return any(node_type.spares for node_type in self.node_types)

    @cached_property
    def limited_types(self) -> tuple[NodeType, ...]:
        """The types that have limits of their own now."""
        return tuple(it for it in self.node_types if it.limits != NO_LIMITS)

    @cached_property
    def clustered_types(self) -> tuple[NodeType, ...]:
        """The types whose nodes are created near each other."""
        return tuple(it for it in self.node_types if it.placement is NodePlacement.CLUSTER)

    @cached_property
    def price_decimals(self) -> int:
        """The decimal places that the prices of all types need."""
        prices = (it.price_per_hour for node_type in self.node_types for it in node_type.by_size())
        return max((-int(price.as_tuple().exponent) for price in prices), default=0)

    @cached_property
    def types_by_price(self) -> Sequence[NodeType]:
        """The node types, the cheapest first."""
        return sorted(self.node_types, key=by_price)

    @cached_property
    def types(self) -> Mapping[TypeName, NodeType]:
        """The node types by name."""
        return {node_type.name: node_type for node_type in self.node_types}

    @cached_property
    def by_size(self) -> Mapping[TypeName, tuple[NodeType, ...]]:
        """Each node type as each size that it may be bought as, the cheapest first."""
        return {node_type.name: node_type.by_size() for node_type in self.node_types}

    @cached_property
    def of_size(self) -> Mapping[tuple[TypeName, str, Market | None], NodeType]:
        """The node types with several sizes, as each size."""
        sized = (self.by_size[it.name] for it in self.node_types if it.sizes)
        return {(it.name, it.size, it.market): it for sizes in sized for it in sizes}

    def type_as_bought(self, launch: Launch) -> NodeType | None:
        """The type of a launch, as the size that was bought. None if the site no longer has the type or the size.

        A type with a single size is bought as what the site says, whatever the record says.
        """
        node_type = self.types.get(launch.type_name)
        if node_type is None or not node_type.sizes:
            return node_type
        return self.of_size.get((launch.type_name, launch.size, launch.market))

    @cached_property
    def index_of_slot(self) -> Mapping[SlotName, tuple[TypeName, int]]:
        """The type of each slot, and the slot's index in the type's list."""
        return {
            slot: (node_type.name, index)
            for node_type in self.node_types
            for index, slot in enumerate(node_type.slots)
        }

    @cached_property
    def type_of_slot(self) -> Mapping[SlotName, NodeType]:
        """The node type of each slot."""
        return {slot: node_type for node_type in self.node_types for slot in node_type.slots}


def by_price(node_type: NodeType) -> tuple[int, Decimal, int, str]:
    """The sort key of node types: of the clouds with the highest priority first, and there the cheapest."""
    return -node_type.priority, node_type.price_per_hour, node_type.cores, node_type.name


# --- schedules --------------------------------------------------------------------------------------------
#
# What the site's schedules set at a moment: the policy with the limits and waits of the open windows.


WEEK_S = 8 * 86_400.0  # with room for a change of daylight-saving time


def scheduled_policy(policy: Policy, wall_at: float) -> Policy:
    """The policy as it applies at a moment. Of schedules that are open at once, the last one in the site counts."""
    site = policy
    expired = any(0.0 < of.prepaid_until_at <= wall_at for of in policy.node_types)
    if expired:
        types = (replace(of, prepaid=0) if 0.0 < of.prepaid_until_at <= wall_at else of for of in policy.node_types)
        policy = replace(policy, node_types=tuple(types))
    for schedule in site.upkeep.schedules:
        if is_open(schedule.windows, wall_at):
            policy = _with_schedule(policy, schedule)
    return replace(policy, unscheduled=site) if site.upkeep.schedules else policy


def schedule_changes_at(policy: Policy, wall_at: float) -> float:
    """When the passing of time changes what :func:`scheduled_policy` returns; infinity if it never does."""
    windows = [window for schedule in policy.upkeep.schedules for window in schedule.windows]
    ends = (of.prepaid_until_at for of in policy.node_types if of.prepaid_until_at > wall_at)
    return min(next_change_at(windows, wall_at), min(ends, default=inf))


def limits_ahead(policy: Policy, wall_at: float) -> Iterator[tuple[float, Policy]]:
    """The policy with the other limits that schedules set within a week: from when, and the policy."""
    site = policy.unscheduled
    if site is None:
        return
    met, from_at = [_limits(policy)], schedule_changes_at(site, wall_at)
    while from_at < wall_at + WEEK_S:
        later = scheduled_policy(site, from_at)
        if _limits(later) not in met:
            met.append(_limits(later))
            yield from_at, with_limits_of(later, policy)
        from_at = schedule_changes_at(site, from_at)


def with_limits_of(other: Policy, policy: Policy) -> Policy:
    """The policy with the limits of another one of the same site."""
    of_type = {of.name: of.limits for of in other.node_types}
    types = tuple(replace(of, limits=of_type[of.name]) for of in policy.node_types)
    return replace(policy, limits=other.limits, node_types=types)


def _limits(policy: Policy) -> tuple[object, ...]:
    return policy.limits, tuple(of.limits for of in policy.node_types)


def _with_schedule(policy: Policy, schedule: Schedule) -> Policy:
    types = tuple(_with_schedule_of_type(of, schedule) for of in policy.node_types)
    if schedule.node_types:
        return replace(policy, node_types=types)
    limits, rules = policy.limits, policy.rules
    nodes_max = schedule.nodes_max if schedule.nodes_max is not None else limits.nodes_max
    # Ensembles may keep more nodes than the site says: a schedule may raise that, but not take it away.
    nodes_min = limits.nodes_min
    if schedule.nodes_min is not None:
        nodes_min = max(schedule.nodes_min, policy.upkeep.nodes_min_of_ensembles)
    price = schedule.price_per_hour_max
    changed = replace(
        limits,
        nodes_max=nodes_max,
        nodes_min=min(nodes_min, nodes_max),
        price_per_hour_max=price if price is not None else limits.price_per_hour_max,
    )
    if schedule.idle_timeout_s is not None:
        rules = replace(rules, idle_timeout_s=schedule.idle_timeout_s)
    return replace(policy, limits=changed, rules=rules, node_types=types)


def _with_schedule_of_type(of: NodeType, schedule: Schedule) -> NodeType:
    if schedule.node_types and of.name not in schedule.node_types:
        return of
    spares = schedule.spares if schedule.spares is not None else of.spares
    idle_timeout_s = of.idle_timeout_s
    if schedule.idle_timeout_s is not None:  # of all types: those that an earlier schedule named have it too
        idle_timeout_s = schedule.idle_timeout_s if schedule.node_types else None
    limits = _limits_of_type(of.limits, schedule) if schedule.node_types else of.limits
    return replace(of, spares=spares, idle_timeout_s=idle_timeout_s, limits=limits)


def _limits_of_type(limits: TypeLimits, schedule: Schedule) -> TypeLimits:
    nodes_max = schedule.nodes_max if schedule.nodes_max is not None else limits.nodes_max
    nodes_min = schedule.nodes_min if schedule.nodes_min is not None else limits.nodes_min
    price = schedule.price_per_hour_max
    return TypeLimits(
        nodes_min=nodes_min if nodes_max is None else min(nodes_min, nodes_max),
        nodes_max=nodes_max,
        price_per_hour_max=price if price is not None else limits.price_per_hour_max,
        schedule=schedule.name if schedule.nodes_max is not None or price is not None else limits.schedule,
    )
