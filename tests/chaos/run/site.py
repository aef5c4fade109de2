"""The site of every chaos run: three node types, the shapes of jobs, and short timeouts, which keep runs short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from random import Random

from nodemanager.core.jobs import HasProperty, Near, OnHosts, Shape
from nodemanager.core.nodes import CloudState
from nodemanager.core.slots import (
    Billing,
    CloudName,
    Market,
    NodePlacement,
    NodeType,
    Rank,
    Size,
    Slot,
    SlotName,
    TypeName,
)
from nodemanager.core.upkeep.rules import Disruption, Schedule
from nodemanager.core.upkeep.windows import DAY_MINUTES, Window
from nodemanager.planner import spending
from nodemanager.planner.policy import BLOCK_S, GIB, Calls, CloudRules, Fixed, Limits, Policy, Rules, Timing, Upkeep
from nodemanager.simulation.cloud.faults import CloudFaults
from tests.chaos.run.script import FAILING, SOUND, Act, Script, pick

CLUSTER = "sim"
CREATE_GRACE_S = 15.0
CLUSTER_UUID = "5eed0000-0000-4000-8000-000000000000"

DISRUPTION_MAX = 2
PATIENCE_S = 30.0  # with all of upkeep on: longer than most boots, so that cheaper nodes are worth waiting for
ZONES = ("a", "b")
SWEEP_S = 20.0  # with placement groups: a sweep must find each left group twice before the run ends
SCHEDULE_SHARE = 0.6  # of the schedules, in a run with all of upkeep on
START_AT = 1_700_000_000.0  # when a run begins, in seconds since the epoch: a Tuesday at 22:13:20, UTC
EPOCH_DAY = 3  # of the week: a Thursday
BLOCK_SCALE = 1 / 8  # of the usual time for which a refused create blocks other creates


def _slots(prefix: str, count: int) -> tuple[SlotName, ...]:
    return tuple(SlotName(f"{prefix}{number}") for number in range(1, count + 1))


NODE_TYPES = (
    NodeType(
        TypeName("small"),
        "s",
        4,
        0,
        2**34,
        Decimal("0.20"),
        Billing(10.0, 10.0),
        _slots("small", 3),
    ),
    NodeType(
        TypeName("large"),
        "l",
        16,
        0,
        2**36,
        Decimal("0.80"),
        Billing(60.0),
        _slots("large", 2),
        properties=frozenset({"large"}),
    ),
    NodeType(
        TypeName("gpu"),
        "g",
        8,
        2,
        2**36,
        Decimal("3.00"),
        Billing(60.0),
        _slots("gpu", 2),
        properties=frozenset({"gpu"}),
    ),
)
SLOTS = tuple(
    Slot(slot, Rank(rank), node_type.name)
    for rank, (slot, node_type) in enumerate(
        ((slot, node_type) for node_type in NODE_TYPES for slot in node_type.slots), start=1
    )
)
SHAPES = (
    Shape(slots=1, cores_per_slot=1),
    Shape(slots=3, cores_per_slot=2),
    Shape(nodes=1, slots=1, cores_per_slot=4),
    Shape(nodes=3, slots=1, cores_per_slot=1, exclusive=True),
    Shape(nodes=2, slots=2, cores_per_slot=1),
    Shape(slots=1, cores_per_slot=2, gpus_per_slot=1),
    Shape(slots=1, cores_per_slot=8, constraint=HasProperty("large")),
)


def _sizes(name: str, price: str) -> tuple[Size, ...]:
    """Four sizes that serve as nodes of one type, the cheapest first: two on the spot market, two on demand."""
    on_demand = Decimal(price)
    prices = ((f"{name}1", on_demand), (f"{name}2", on_demand * Decimal("1.2")))
    spot = tuple(Size(size, Market.SPOT, each * Decimal("0.4")) for size, each in prices)
    return (*spot, *(Size(size, Market.ON_DEMAND, each) for size, each in prices))


# The same types, each of several sizes.
TYPES_WITH_SIZES = tuple(
    replace(
        of,
        size=(sizes := _sizes(of.size, str(of.price_per_hour)))[0].name,
        market=sizes[0].market,
        price_per_hour=sizes[0].price_per_hour,
        sizes=sizes,
    )
    for of in NODE_TYPES
)

BATCHES_EVERY = 4  # of so many seeds one creates its nodes in batches
ONE_PROVIDER_EVERY = 16  # of so many seeds with two clouds, in one both are accounts of one provider

# The site of a run with a MiniCluster: six pods, all alike.
PODS = (NodeType(TypeName("pod"), "pod", 4, 0, 2**34, Decimal("0.20"), Billing(1.0), _slots("pod", 6)),)
POD_SLOTS = tuple(Slot(slot, Rank(rank), PODS[0].name) for rank, slot in enumerate(PODS[0].slots, start=1))
POD_SHAPES = (
    Shape(slots=1, cores_per_slot=1),
    Shape(slots=3, cores_per_slot=2),
    Shape(nodes=1, slots=1, cores_per_slot=4),
    Shape(nodes=3, slots=1, cores_per_slot=1, exclusive=True),
    Shape(nodes=2, slots=2, cores_per_slot=1),
    Shape(nodes=1, slots=1, cores_per_slot=1, exclusive=True, constraint=OnHosts(("pod3",))),
)

# The site of a run with all of upkeep on: small nodes wait for the data of their jobs, and a large one is prepaid.
SCRATCH = "scratch"
PREPAID = 1
UPKEEP_TYPES = (
    replace(NODE_TYPES[0], properties=frozenset({SCRATCH})),
    replace(NODE_TYPES[1], prepaid=PREPAID),
    NODE_TYPES[2],
)
UPKEEP_SHAPES = (
    *SHAPES,
    Shape(nodes=3, slots=1, cores_per_slot=4, exclusive=True),
    Shape(nodes=2, slots=1, cores_per_slot=1, exclusive=True),
    Shape(nodes=2, slots=1, cores_per_slot=8, exclusive=True, constraint=HasProperty("large")),
)


# The site of a run with two clouds.
SOUND_NODES_MAX = 4
_SMALL, _LARGE, _GPU = (replace(node_type, cloud=FAILING) for node_type in NODE_TYPES)
TWIN_TYPES = (
    _SMALL,
    _LARGE,
    _GPU,
    replace(_SMALL, name=TypeName("tiny"), cloud=SOUND, price_per_hour=Decimal("0.30"), slots=_slots("tiny", 3)),
    replace(_LARGE, name=TypeName("huge"), cloud=SOUND, price_per_hour=Decimal("1.10"), slots=_slots("huge", 2)),
)
# The same, if the second cloud is own hosts: they are used first, although they are dearer.
OWN_HOSTS_TYPES = tuple(replace(it, priority=int(it.cloud == SOUND)) for it in TWIN_TYPES)
OWN_HOSTS = 3
P_LOSES_POWER = 0.4  # of an own host that has booted
# Where the data of jobs is. Only egress of the cloud that has the faults has a price.
EGRESS_PRICE_PER_GIB = Decimal("0.01")
WISHES = (
    None,
    Near(SOUND),
    Near(SOUND),
    Near(SOUND, 200 * GIB),
    Near(FAILING),
    Near(FAILING, GIB),
    Near(FAILING, 200 * GIB),
    Near(CloudName("mars"), GIB),
)
TWIN_SLOTS = tuple(
    Slot(slot, Rank(rank), node_type.name)
    for rank, (slot, node_type) in enumerate(
        ((slot, node_type) for node_type in TWIN_TYPES for slot in node_type.slots), start=1
    )
)


def close_types(node_types: Sequence[NodeType]) -> tuple[NodeType, ...]:
    """The same types in two zones. Those that wide jobs run on have placement groups."""
    return tuple(
        replace(it, zones=ZONES, placement=NodePlacement.ANYWHERE if it.gpus else NodePlacement.CLUSTER)
        for it in node_types
    )


def types_of(script: Script) -> tuple[NodeType, ...]:
    """The node types of a script's site."""
    if script.twin:
        return OWN_HOSTS_TYPES if script.own_hosts else TWIN_TYPES
    if script.stacked:
        return PODS
    if script.sizes:
        return TYPES_WITH_SIZES
    types = UPKEEP_TYPES if script.upkeep else NODE_TYPES
    return close_types(types) if script.groups else types


def slots_of(script: Script) -> tuple[Slot, ...]:
    """The slots of a script's site."""
    if script.twin:
        return TWIN_SLOTS
    return POD_SLOTS if script.stacked else SLOTS


def shapes_of(script: Script) -> tuple[Shape, ...]:
    """The shapes of the jobs of a script."""
    if script.upkeep:
        return UPKEEP_SHAPES
    return POD_SHAPES if script.stacked else SHAPES


def shape_of_job(script: Script, act: Act) -> Shape:
    """The shape of the job of an act. Some jobs also say in which cloud their data is."""
    shapes = shapes_of(script)
    shape = pick(shapes, act.amount) or shapes[0]
    return replace(shape, near=Random(f"{script.seed}/near/{act.number}").choice(WISHES)) if script.near else shape


def healthy_cloud() -> CloudFaults:
    """Return the settings of a provider without faults."""
    return CloudFaults(
        boot_delay_s=(3.0, 15.0), user_data_s=(0.0, 3.0), stop_delay_s=(1.0, 8.0), terminated_listed_s=60.0
    )


def own_hosts() -> CloudFaults:
    """Return a few hosts that boot slowly, cannot always be woken, and do not always heed a sleep."""
    return CloudFaults(
        boot_delay_s=(10.0, 40.0),
        user_data_s=(0.0, 3.0),
        stop_delay_s=(1.0, 20.0),
        terminated_listed_s=60.0,
        capacity=OWN_HOSTS,
        p_boot_fail=0.2,
        boot_fail_state=CloudState.FAILED,  # neither its wake nor its sleep worked
        p_boot_hang=0.1,
        p_boot_slow=0.2,
        p_lost_reply=0.1,
        p_refused_ambiguous=0.1,
        p_capacity=0.2,
        p_transient=0.1,
        p_destroy_ignored=0.2,
    )


def nodes_per_call(script: Script) -> int:
    """Return how many nodes one call creates: in every fourth run several, few enough to need a second call."""
    return 4 if script.seed % BATCHES_EVERY == BATCHES_EVERY - 2 and not script.stacked else 1


def one_provider(script: Script) -> bool:
    """Whether two clouds are accounts of one provider: its proof of an instance does not tell of which."""
    return script.twin and script.seed % ONE_PROVIDER_EVERY == ONE_PROVIDER_EVERY - 2


def chaos_policy(script: Script) -> Policy:
    """Return the policy of a script's site, with short timeouts."""
    calls = Calls(15.0, 2, nodes_per_create=nodes_per_call(script), nodes_per_destroy=nodes_per_call(script))
    price = EGRESS_PRICE_PER_GIB if script.near else None
    clouds = {
        FAILING: CloudRules(calls, egress_price_per_gib=price),
        SOUND: CloudRules(calls, nodes_max=SOUND_NODES_MAX),
    }
    return Policy(
        cluster=CLUSTER,
        cluster_uuid=CLUSTER_UUID,
        node_types=types_of(script),
        stacked=script.stacked,
        bursts=script.peers > 2,
        limits=Limits(nodes_max=script.nodes_max, price_per_hour_max=Decimal("8.00")),
        timing=Timing(
            boot_timeout_s=60.0 + script.list_lag_s,  # no boot takes longer, so no lag of a list does
            rejoin_timeout_s=20.0,
            create_grace_s=CREATE_GRACE_S + (script.list_lag_s if script.covers_lag else 0.0),
            orphan_grace_s=45.0,
            stale_after_s=60.0,
            relist_s=20.0,
            housekeeping_max_s=10.0,
            safe_mode_max_s=300.0,
            sweep_s=SWEEP_S if script.groups else Timing().sweep_s,
        ),
        rules=Rules(
            idle_timeout_s=script.idle_timeout_s, stop_lead_s=10.0, patience_s=PATIENCE_S if script.upkeep else 0.0
        ),
        calls=calls,
        clouds=clouds if script.twin else {},
        upkeep=_upkeep(script),
        fixed=Fixed(block_s={kind: BLOCK_SCALE * block_s for kind, block_s in BLOCK_S.items()}),
        budgets=_budgets(script),
    )


def _budgets(script: Script) -> dict[tuple[str, str], Decimal]:
    budgets = {(spending.WHOLE_SITE, "month"): script.budget} if script.budget is not None else {}
    of_clouds = script.cloud_budgets.items()
    return budgets | {(spending.cloud_account(CloudName(name)), "day"): Decimal(it) for name, it in of_clouds}


def _upkeep(script: Script) -> Upkeep:
    # Half of the seeds consolidate.
    upkeep = Upkeep(disruption=Disruption(nodes=DISRUPTION_MAX), consolidate=script.seed % 2 == 1 or script.upkeep)
    if not script.upkeep:
        return upkeep
    return replace(upkeep, schedules=tuple(_schedules(script)), wait_for_data=SCRATCH, data_max_s=60.0)


def _schedules(script: Script) -> Iterator[Schedule]:
    """Draw schedules that open and close within the phase with faults. A week's minutes count from Monday, UTC."""
    draws = Random(f"{script.seed}/schedules")
    for schedule in (
        Schedule("fewer", (), nodes_max=script.nodes_max - draws.randint(1, 2)),
        Schedule("more", (), nodes_max=script.nodes_max + 1, price_per_hour_max=Decimal("9.00")),
        Schedule("cheap", (), price_per_hour_max=Decimal("4.00")),
        Schedule("ready", (), nodes_min=1, idle_timeout_s=60.0),
        Schedule("spare", (), node_types=("small",), spares=1, idle_timeout_s=20.0),
    ):
        if draws.random() < SCHEDULE_SHARE:
            begins = int(START_AT // 60) + draws.randint(0, 2)
            yield replace(schedule, windows=(_window(begins, begins + draws.randint(1, 2)),))


def _window(begin: int, end: int) -> Window:
    """The window between two minutes since the epoch."""
    day = (begin // DAY_MINUTES + EPOCH_DAY) % 7
    return Window((day,), begin % DAY_MINUTES, end % DAY_MINUTES)


def limits_at(script: Script, wall_at: float) -> tuple[int, Decimal]:
    """The most nodes and the highest price an hour that the site allows at a moment, counted in minutes."""
    policy, minute = chaos_policy(script), int(wall_at // 60)
    nodes, price = policy.limits.nodes_max, policy.limits.price_per_hour_max
    for schedule in policy.upkeep.schedules:
        window = schedule.windows[0]
        if window.begin_minute <= minute % DAY_MINUTES < window.end_minute:
            nodes = nodes if schedule.nodes_max is None else schedule.nodes_max
            price = price if schedule.price_per_hour_max is None else schedule.price_per_hour_max
    return nodes, price
