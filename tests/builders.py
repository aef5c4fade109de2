"""Builders for tests of the planner, so that each test reads like a short story.

    world = a_world(nodes_max=2).idle_node("cloud1", hour_ends_in_s=50)
    assert world.why("cloud1") == "window_closes"

A :class:`World` replaces the manager's loop: it holds the snapshot, takes in facts, decides, and commits. The
functions make single values and fill in what a test does not care about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from itertools import takewhile
from typing import Any, TypeVar, assert_never

from nodemanager.core.drains import drain_text
from nodemanager.core.facts import (
    ClaimHeld,
    CloudListed,
    Fact,
    NodeDrained,
    QueueProbed,
    QueueSeen,
    RanksSeen,
    Tick,
)
from nodemanager.core.jobs import ANYWHERE, Constraint, Job, JobId, JobRequest, JobState, Shape, UnreadableJob
from nodemanager.core.nodes import (
    Call,
    CallKind,
    CloudNode,
    CloudState,
    FluxRank,
    Identity,
    Launch,
    LaunchId,
    NodeState,
    ProviderId,
)
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    CordonNode,
    CreateNode,
    DelegateJob,
    DestroyNode,
    DrainNode,
    EndLease,
    HoldJobs,
    KillHousekeeping,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    StartCopy,
    StopBroker,
    UndrainNode,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.records import NOTHING_SPENT
from nodemanager.core.slots import DEFAULT_CLOUD, Billing, NodeType, OnlyFor, Rank, SlotName, Tariff, TypeName
from nodemanager.planner.brain import Brain
from nodemanager.planner.plan import Action, Plan, plan
from nodemanager.planner.policy import Calls, Fixed, Limits, Policy, Rules, Timing, Upkeep
from nodemanager.planner.snapshot import (
    Account,
    Create,
    Health,
    JoinReport,
    Learned,
    Listing,
    News,
    Node,
    Operator,
    Queues,
    Seen,
    SlotSettings,
    Snapshot,
    Source,
    Sources,
    Spending,
    Stop,
)

_OF_POLICY = (Limits, Timing, Rules, Calls, Upkeep, Fixed)
_OF_SNAPSHOT = (Sources, Queues, News, Operator, SlotSettings, Account, Learned, Spending)
_OF_NODE = (Create, Listing, Seen, Stop, JoinReport, Health)
GROUPS = (*_OF_POLICY, *_OF_SNAPSHOT, *_OF_NODE)
_Value = TypeVar("_Value", Policy, Snapshot, Node)

NOW_S = 100_000.0
WALL_AT = 1_800_000_000.0
CLUSTER = "demo"
CLUSTER_UUID = "0f9c1d7e-0000-4000-8000-000000000001"


# --- node types and policies ------------------------------------------------------------------------------


def a_type(
    name: str = "cloud",
    *,
    slots: int = 4,
    cores: int = 4,
    gpus: int = 0,
    price: str = "0.40",
    window_s: float = 3600.0,
    minimum_s: float = 0.0,
    properties: Iterable[str] = (),
) -> NodeType:
    """A type with slots ``cloud1`` to ``cloud4``, of 4 cores each, billed by the hour."""
    return NodeType(
        name=TypeName(name),
        size=f"{name}.size",
        cores=cores,
        gpus=gpus,
        memory_bytes=2**34,
        price_per_hour=Decimal(price),
        billing=Billing(window_s, minimum_s),
        slots=tuple(SlotName(f"{name}{number}") for number in range(1, slots + 1)),
        properties=frozenset(properties),
    )


CLOUD = a_type("cloud")
GPU = a_type("gpu", slots=2, cores=8, gpus=2, price="3.00", properties=["gpu"])
GPU_FOR_ALL = replace(GPU, only_for=OnlyFor.ANY)  # bought for jobs without GPUs too


def a_policy(*node_types: NodeType, **changes: Any) -> Policy:
    """Four cloud slots (ranks 1 to 4) and two GPU slots (5 and 6), unless other types are given."""
    limits = Limits(nodes_max=6, price_per_hour_max=Decimal(100))
    return with_settings(Policy(CLUSTER, CLUSTER_UUID, node_types or (CLOUD, GPU), limits), **changes)


def with_settings(policy: Policy, **changes: Any) -> Policy:
    """The policy with other settings, each named as in its group."""
    return changed(policy, **changes)


def changed(value: _Value, **changes: Any) -> _Value:
    """A copy of a grouped value with other fields, each named as in the value or in one of its groups.

    In a snapshot, what is known of the only cloud counts as a group; ``cloud`` is its source.
    """
    if isinstance(value, Snapshot):
        if "cloud" in changes:
            changes["source"] = changes.pop("cloud")
        own = {name: changes.pop(name) for name in _names(value.account_of()) & changes.keys()}
        if own:
            changes["accounts"] = {**value.accounts, DEFAULT_CLOUD: replace(value.account_of(), **own)}
    for it in fields(value):
        group = getattr(value, it.name)
        own = {name: changes.pop(name) for name in _names(group) & changes.keys()} if type(group) in GROUPS else {}
        if own:
            changes[it.name] = replace(changes.get(it.name, group), **own)
    return replace(value, **changes)


def _names(group: Any) -> set[str]:
    return {it.name for it in fields(group)}


def rank_of(policy: Policy, slot: str) -> Rank:
    """The rank of a slot: ranks count up from 1, in the order of the types."""
    name, place = policy.index_of_slot[SlotName(slot)]
    before = takewhile(lambda node_type: node_type.name != name, policy.node_types)
    return Rank(sum(len(node_type.slots) for node_type in before) + place + 1)


# --- shapes and jobs --------------------------------------------------------------------------------------


def nodes(count: int, *, cores: int = 1, where: Constraint = ANYWHERE) -> Shape:
    """The shape of ``flux submit -N count -n count -c cores``."""
    return Shape(slots=1, cores_per_slot=cores, nodes=count, constraint=where)


def whole_nodes(count: int, *, where: Constraint = ANYWHERE) -> Shape:
    """The shape of ``flux submit -N count --exclusive``."""
    return Shape(slots=1, cores_per_slot=1, nodes=count, exclusive=True, constraint=where)


def tasks(count: int, *, cores: int = 1, gpus: int = 0, where: Constraint = ANYWHERE) -> Shape:
    """The shape of ``flux submit -n count -c cores -g gpus``: slots on any nodes."""
    return Shape(slots=count, cores_per_slot=cores, gpus_per_slot=gpus, constraint=where)


def a_job(number: int = 1, shape: Shape | None = None, **changes: Any) -> Job:
    """A job that the scheduler would start at once if there were room."""
    asked = {name: changes.pop(name) for name in JobRequest.__dataclass_fields__ if name in changes}
    request = JobRequest(**({"shape": shape if shape is not None else whole_nodes(1)} | asked))
    fields: dict[str, Any] = {
        "id": JobId(number),
        "state": JobState.SCHED,
        "request": request,
        "submitted_at": WALL_AT - 60,
    }
    return Job(**(fields | changes))


# --- nodes at the provider and in Flux --------------------------------------------------------------------


def a_launch(
    slot: str = "cloud1", policy: Policy | None = None, *, number: int = 1, age_s: float = 600.0
) -> Launch:
    policy = policy if policy is not None else a_policy()
    id_ = LaunchId(f"{slot}-{number:x}")
    node_type = policy.type_of_slot[SlotName(slot)]
    return Launch(
        id=id_,
        slot=SlotName(slot),
        rank=rank_of(policy, slot),
        type_name=node_type.name,
        client_token=f"token-{id_}",
        requested_at=WALL_AT - age_s,
        tariff=Tariff(node_type.price_per_hour, node_type.billing),
        size=node_type.size,
        market=node_type.market,
    )


def a_cloud_node(launch: Launch, *, provider_id: str = "", **changes: Any) -> CloudNode:
    """The running cloud node of a launch, with our tags."""
    fields: dict[str, Any] = {
        "provider_id": ProviderId(provider_id or f"i-{launch.id}"),
        "state": CloudState.RUNNING,
        "identity": Identity(CLUSTER, CLUSTER_UUID, launch.id, launch.slot, launch.type_name),
        "created_at": launch.requested_at,
    }
    return CloudNode(**(fields | changes))


def a_rank(slot: str, policy: Policy | None = None, *, online: bool = False, **changes: Any) -> FluxRank:
    """The rank of a slot: offline, or online with all its cores free."""
    policy = policy if policy is not None else a_policy()
    node_type = policy.type_of_slot[SlotName(slot)]
    fields: dict[str, Any] = {
        "rank": rank_of(policy, slot),
        "host": SlotName(slot),
        "online": online,
        "cores": node_type.cores,
        "gpus": node_type.gpus,
        "cores_free": node_type.cores if online else 0,
        "gpus_free": node_type.gpus if online else 0,
        "schedulable": online,
    }
    return FluxRank(**(fields | changes))


def busy(rank: FluxRank, *, cores_free: int = 0) -> FluxRank:
    return replace(rank, online=True, allocated=True, schedulable=True, cores_free=cores_free, gpus_free=0)


def drained(rank: FluxRank, reason: str) -> FluxRank:
    return replace(rank, drain_reason=reason, schedulable=False, cores_free=0, gpus_free=0)


def a_node(
    slot: str = "cloud1", state: NodeState = NodeState.IDLE, policy: Policy | None = None, **changes: Any
) -> Node:
    """A node as a running manager's snapshot holds it, with the fields that belong to its state."""
    policy = policy if policy is not None else a_policy()
    launch = changes.pop("launch", None) or a_launch(slot, policy)
    node = Node(launch, state, NOW_S - 300, Create(NOW_S - 600))
    fields: dict[str, Any] = {
        "recorded": True,
        "rank": _rank_in(state, slot, launch, policy),
        "rank_seen_s": NOW_S,
    }
    if state is not NodeState.REQUESTED:
        fields |= {
            "sent_s": NOW_S - 600,
            "image": policy.type_of_slot[launch.slot].image,
            "cloud": a_cloud_node(launch),
            "billed_from_s": NOW_S - 600,
            "known_s": NOW_S - 1,
            "listed": True,
        }
    if state is NodeState.IDLE:
        fields |= {"idle_looks": 2, "idle_since_s": NOW_S - 300}
    if state in (NodeState.DRAINING, NodeState.STOPPING):
        fields |= {
            "retiring": because(Code.WINDOW_CLOSES, idle_s=300.0, window_left_s=50.0, stop_lead_s=60.0),
            "drained_s": NOW_S - 1,
        }
    return changed(node, **(fields | changes))


def _rank_in(state: NodeState, slot: str, launch: Launch, policy: Policy) -> FluxRank:
    up = a_rank(slot, policy, online=True)
    if state is NodeState.IDLE:
        return up
    if state is NodeState.BUSY:
        return busy(up)
    if state in (NodeState.DRAINING, NodeState.STOPPING):
        return drained(up, drain_text(launch.id))
    return a_rank(slot, policy)


def a_call(kind: CallKind, *, started_s: float = NOW_S, lasts_s: float = 60.0) -> Call:
    return Call(kind, started_s, started_s + lasts_s)


# --- snapshots and worlds ---------------------------------------------------------------------------------


def a_snapshot(
    policy: Policy | None = None,
    *,
    nodes: Sequence[Node] = (),
    jobs: Iterable[Job] = (),
    ranks: Iterable[FluxRank] = (),
    **changes: Any,
) -> Snapshot:
    """A fresh snapshot, claimed and settled. Slots without a node are offline, unless ``ranks`` says more."""
    policy = policy if policy is not None else a_policy()
    by_slot = {slot: a_rank(slot, policy) for node_type in policy.node_types for slot in node_type.slots}
    by_slot |= {node.launch.slot: node.rank for node in nodes if node.rank is not None}
    by_slot |= {rank.host: rank for rank in ranks}
    fresh = Source(seen_s=NOW_S - 1)
    known: dict[str, Any] = {
        "now_s": NOW_S,
        "wall_at": WALL_AT,
        "claim": fresh,
        "claimed": True,
        "queue": fresh,
        "flux": fresh,
        "cloud": fresh,
        "swept_s": NOW_S - 1,
        "jobs": {job.id: job for job in jobs},
        "changed_s": NOW_S - 60,
        "ranks": {rank.rank: rank for rank in by_slot.values()},
        "rank_of_slot": {rank.host: rank.rank for rank in by_slot.values()},
        "nodes": {node.id: node for node in nodes},
        "on_record": NOTHING_SPENT,
    }
    return changed(Snapshot(), **(known | changes))


class World:
    """A brain, and a short way to say what it knows, what happens to it, and what it decides."""

    def __init__(self, policy: Policy, snapshot: Snapshot) -> None:
        self.brain = Brain(policy, snapshot=snapshot)

    @property
    def policy(self) -> Policy:
        return self.brain.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self.brain = Brain(policy, snapshot=self.brain.snapshot)

    @property
    def snapshot(self) -> Snapshot:
        return self.brain.snapshot

    @snapshot.setter
    def snapshot(self, snapshot: Snapshot) -> None:
        self.brain = Brain(self.brain.policy, snapshot=snapshot)

    # -- the state so far

    def node(self, slot: str, state: NodeState, **changes: Any) -> World:
        node = a_node(slot, state, self.policy, **changes)
        rank = node.rank if node.rank is not None else a_rank(slot, self.policy)
        self.snapshot = replace(
            self.snapshot,
            nodes={**self.snapshot.nodes, node.id: node},
            ranks={**self.snapshot.ranks, rank.rank: rank},
        )
        return self

    def idle_node(self, slot: str = "cloud1", *, hour_ends_in_s: float = 1800.0, **changes: Any) -> World:
        """A node that is confirmed idle for five minutes, in a billing window of an hour."""
        return self.node(slot, NodeState.IDLE, billed_from_s=NOW_S - 3600 + hour_ends_in_s, **changes)

    def busy_node(self, slot: str = "cloud1", *, cores_free: int = 0, **changes: Any) -> World:
        rank = busy(a_rank(slot, self.policy), cores_free=cores_free)
        return self.node(slot, NodeState.BUSY, rank=rank, **changes)

    def booting_node(self, slot: str = "cloud1", **changes: Any) -> World:
        return self.node(slot, NodeState.BOOTING, **changes)

    def draining_node(self, slot: str = "cloud1", **changes: Any) -> World:
        """A node that we drained, and that is free by the second look."""
        return self.node(slot, NodeState.DRAINING, **changes)

    def stopping_node(self, slot: str = "cloud1", **changes: Any) -> World:
        return self.node(slot, NodeState.STOPPING, **changes)

    def job(self, *shapes: Shape, **changes: Any) -> World:
        """Add waiting jobs, one of each shape, with consecutive ids."""
        for shape in shapes:
            job = a_job(len(self.snapshot.jobs) + 1, shape, **changes)
            self.snapshot = replace(self.snapshot, jobs={**self.snapshot.jobs, job.id: job})
        return self

    def unreadable_job(self, number: int, why: str) -> World:
        bad = UnreadableJob(JobId(number), why)
        self.snapshot = changed(self.snapshot, unreadable={**self.snapshot.queues.unreadable, bad.id: bad})
        return self

    def rank(self, slot: str, **changes: Any) -> World:
        """Change a rank that has no node of ours."""
        rank = a_rank(slot, self.policy, **changes)
        self.snapshot = replace(self.snapshot, ranks={**self.snapshot.ranks, rank.rank: rank})
        return self

    def but(self, **changes: Any) -> World:
        self.snapshot = changed(self.snapshot, **changes)
        return self

    # -- what happens next

    def wait(self, seconds: float, *, wall_jumps_s: float = 0.0) -> World:
        now_s, wall_at = self.snapshot.now_s + seconds, self.snapshot.wall_at + seconds + wall_jumps_s
        self.brain.advance(Tick(now_s, wall_at))
        return self

    def see(self, *facts: Fact) -> World:
        for fact in facts:
            self.brain.take(fact)
        return self

    def see_queue(self, *jobs: Job) -> World:
        return self.see(QueueSeen(self.snapshot.now_s, jobs))

    def see_ranks(self, *changed: FluxRank, age_s: float = 0.0) -> World:
        """A look at all ranks, of which these have changed."""
        ranks = {**self.snapshot.ranks, **{rank.rank: rank for rank in changed}}
        return self.see(RanksSeen(self.snapshot.now_s - age_s, tuple(ranks.values())))

    def see_cloud(self, *listed: CloudNode, age_s: float = 0.0) -> World:
        return self.see(CloudListed(self.snapshot.now_s - age_s, listed))

    def see_claim(self, *launches: Launch) -> World:
        return self.see(ClaimHeld(self.snapshot.now_s, launches))

    def see_drained(self, slot: str, rank: FluxRank | None = None) -> World:
        """Answer the drain of a slot's node; the second look shows it drained, or the given rank."""
        node = self[slot]
        looked = rank if rank is not None else drained(self.rank_now(slot), drain_text(node.id))
        return self.see(NodeDrained(node.id, self.snapshot.now_s, looked))

    def all_is_fresh(self) -> World:
        """Every source answers and reports nothing new."""
        listed = [node.cloud for node in self.snapshot.nodes.values() if node.cloud is not None]
        strays = [stray.node for stray in self.snapshot.account_of().strays.values()]
        return self.see(QueueProbed(self.snapshot.now_s)).see_ranks().see_cloud(*listed, *strays)

    # -- what is decided

    def plan(self) -> Plan:
        return plan(self.snapshot, self.policy)

    def decide(self) -> Plan:
        """Decide, and count the orders as given."""
        return self.brain.decide().plan

    # -- what is known

    def __getitem__(self, slot: str) -> Node:
        """The one node of a slot."""
        (node,) = (node for node in self.snapshot.nodes.values() if node.launch.slot == slot)
        return node

    def id(self, slot: str) -> LaunchId:
        return self[slot].id

    def has(self, slot: str) -> bool:
        return any(node.launch.slot == slot for node in self.snapshot.nodes.values())

    def rank_now(self, slot: str) -> FluxRank:
        return self.snapshot.ranks[rank_of(self.policy, slot)]

    def why(self, slot: str) -> str:
        """The code of the reason for the step of a slot's node, or for taking none."""
        return self.plan().nodes[self.id(slot)].code

    def why_job(self, number: int) -> Reason:
        return self.plan().jobs[JobId(number)]


def a_world(*node_types: NodeType, **settings: Any) -> World:
    """An empty fleet: no node runs and no job waits."""
    policy = a_policy(*node_types, **settings)
    return World(policy, a_snapshot(policy))


# --- reading a plan ---------------------------------------------------------------------------------------


def orders(made: Plan) -> list[str]:
    """The actions in short form, for example ``["drain cloud1-1", "boot cloud2"]``."""
    return [_in_short(action) for action in made.actions]


def boots(made: Plan) -> list[str]:
    """The slots for which nodes are bought, in order."""
    return [order.removeprefix("boot ") for order in orders(made) if order.startswith("boot ")]


def _in_short(action: Action) -> str:  # noqa: C901, PLR0912 - one arm an order
    match action:
        case BootNode(launch=launch):
            return f"boot {launch.slot}"
        case RecordLaunches(launches=launches):
            return " ".join(["record", *(launch.id for launch in launches)])
        case CreateNode(launch=launch):
            return f"create {launch.id}"
        case DrainNode(launch=launch_id):
            return f"drain {launch_id}"
        case CordonNode(launch=launch_id, text=text):
            return f"cordon {launch_id} {text}"
        case UndrainNode(launch=launch_id):
            return f"undrain {launch_id}"
        case StopBroker(launch=launch_id):
            return f"stop-broker {launch_id}"
        case RequeueJob(job=job):
            return f"requeue {job}"
        case ReadResult(job=job, original=original):
            return f"read-result {original} for {job}"
        case StartCopy(job=job):
            return f"start-copy {job}"
        case CancelCopy(job=job):
            return f"cancel-copy {job}"
        case KillHousekeeping(launch=launch_id):
            return f"kill-housekeeping {launch_id}"
        case DestroyNode(provider_id=provider_id):
            return f"destroy {provider_id}"
        case EndLease(launch=launch):
            return f"end-lease {launch.id}"
        case ChangeSlots(moves=moves):
            return " ".join(["change", *(f"{slot}={name}" for slot, name in moves.items())])
        case RefuseSlots(reason=reason):
            return f"refuse {reason.code}"
        case HoldJobs(jobs=jobs):
            return " ".join(["hold", *map(str, jobs)])
        case ReleaseJobs(jobs=jobs):
            return " ".join(["release", *map(str, jobs)])
        case DelegateJob(job=job, peer=peer):
            return f"delegate {job} {peer}"
        case _:
            assert_never(action)
