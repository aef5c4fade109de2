"""Take in what the provider reports: lists of its nodes, created nodes, and failed calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodemanager.core.facts import CloudCallFailed, CloudListed, NodeCreated
from nodemanager.core.nodes import CallKind, CloudNode, CloudState, FailureKind, LaunchId, NodeState
from nodemanager.core.slots import CloudName
from nodemanager.planner import timings
from nodemanager.planner.backoff import apply_refusal, apply_success, end_pauses
from nodemanager.planner.breakers import NOT_UP_YET, count_ended_boots
from nodemanager.planner.calls import end_call, fail_call, is_old, newer, waits_for
from nodemanager.planner.frozen import replace
from nodemanager.planner.node_index import node_index_of, with_nodes
from nodemanager.planner.observe_flux import follow_rank
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Account, Event, Misread, Node, Snapshot, Source, Stray, allows, move
from nodemanager.planner.why_not import note_refused_node

LIST_RETRY_S_MAX = 16.0  # well below ``stale_after``, at which a cloud that answers again would still stand still
VANISHED_S_MAX = 3600.0  # a node that no list shows for so long is forgotten even if no destroy of it succeeds
FEW_VANISHED = 2  # a list that lacks no more nodes than this is believed at once


def apply_create(snapshot: Snapshot, fact: NodeCreated, policy: Policy) -> Snapshot:
    """The provider answered the create, perhaps long after we stopped waiting for it."""
    if fact.launch not in snapshot.nodes:
        return snapshot
    node = apply_create_to_node(snapshot.nodes[fact.launch], fact, snapshot, policy)
    return apply_success(with_nodes(snapshot, {node.id: node}), node, policy)


def apply_create_to_node(node: Node, fact: NodeCreated, snapshot: Snapshot, policy: Policy) -> Node:
    """The node after the provider answered its create."""
    del policy
    return _apply_listing(end_call(node, CallKind.CREATE), fact.node, snapshot, snapshot.now_s)


def apply_cloud_list(snapshot: Snapshot, fact: CloudListed, policy: Policy) -> Snapshot:
    """The snapshot after a list of the cloud. Lists that are older than what we know are ignored."""
    cloud_name = policy.only_cloud(fact.cloud)
    account = snapshot.account_of(cloud_name)
    if is_old(account.source, fact.started_s):
        return snapshot
    here = _nodes_of_cloud(snapshot, policy, cloud_name)
    pairing = pair(here, fact.nodes, policy.cluster, policy.cluster_uuid)
    lacking = [
        node
        for node in here.values()
        if node.id not in pairing.paired and fact.started_s > node.listing.known_s and _should_be_listed(node)
    ]
    doubted = account.doubted_lists + 1 if _too_many_vanished(here, lacking) else 0
    believed = doubted == 0 or doubted > policy.timing.absences
    nodes: dict[LaunchId, Node] = {}
    for id_, cloud in pairing.paired.items():
        if not _is_listed_unchanged(snapshot.nodes[id_], cloud):
            node = _apply_listing(snapshot.nodes[id_], cloud, snapshot, fact.started_s)
            nodes[id_] = node if node.listing.listed else replace(node, listing=replace(node.listing, listed=True))
    if believed:
        for node in lacking:
            nodes[node.id] = _count_absence(node, fact.started_s, snapshot, policy)
    for id_, cloud in pairing.paired.items():
        if cloud.died_of is not None and snapshot.nodes[id_].state in NOT_UP_YET:
            # Accepted, but never made: for the next create this means the same as a refusal.
            node, kind, detail = snapshot.nodes[id_], cloud.died_of, cloud.died_because
            snapshot = apply_refusal(snapshot, node, kind, detail, policy)
            snapshot = note_refused_node(snapshot, node, kind, detail, policy)
    taught = timings.with_reclaims(timings.with_stops(snapshot, nodes, fact.started_s), nodes)
    snapshot = count_ended_boots(snapshot.nodes, nodes, taught, policy)
    strays = [cloud for cloud in pairing.strays if not _is_of_another_cloud(cloud, snapshot, here)]
    seen = replace(
        account,
        source=Source(seen_s=fact.started_s, news_s=newer(account.source.news_s, fact.started_s)),
        doubted_lists=doubted,
        failed_lists=0,
        misread={operation: it for operation, it in account.misread.items() if operation != "list"},
        strays={it.provider_id: _stray_seen(it, account, snapshot.now_s) for it in strays},
        intruders=pairing.intruders,
        strangers=pairing.strangers,
    )
    return end_pauses(with_nodes(snapshot, nodes)).with_account(cloud_name, seen)


def _stray_seen(cloud: CloudNode, account: Account, now_s: float) -> Stray:
    """The stray as the list shows it, with since when it is known."""
    return replace(account.strays.get(cloud.provider_id, Stray(cloud, now_s)), node=cloud)


def _nodes_of_cloud(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> Mapping[LaunchId, Node]:
    """The nodes whose launches belong to a cloud."""
    if all(policy.cloud_of_name(name) == cloud for name in node_index_of(snapshot).count_by_cloud):
        return snapshot.nodes
    return {id_: node for id_, node in snapshot.nodes.items() if policy.cloud_of(node.launch) == cloud}


def _is_of_another_cloud(cloud: CloudNode, snapshot: Snapshot, here: Mapping[LaunchId, Node]) -> bool:
    """Whether its launch belongs to a node of another cloud. Then two sections name one account: leave it alone."""
    launch = cloud.identity.launch if cloud.identity is not None else None
    return launch in snapshot.nodes and launch not in here


def _should_be_listed(node: Node) -> bool:
    """Whether its absence from a list means anything: its create was sent and is not in flight."""
    return node.call is None and node.create.sent_s is not None and node.state is not NodeState.GONE


def _too_many_vanished(nodes: Mapping[LaunchId, Node], lacking: list[Node]) -> bool:
    """Whether a list lacks so many known nodes that it is more likely wrong than true."""
    vanished = sum(1 for node in lacking if node.exists_at_provider)
    if vanished <= FEW_VANISHED:
        return False
    shown = sum(1 for node in nodes.values() if node.exists_at_provider)
    return vanished > shown // 2


def _is_listed_unchanged(node: Node, cloud: CloudNode) -> bool:
    """Whether the list says nothing new about the node. (``known_s`` matters only while the node is missing.)"""
    return (
        node.listing.absences == 0
        and node.listing.listed
        and node.listing.billed_from_s is not None
        and not cloud.queued
        and (node.cloud is cloud or node.cloud == cloud)
        and not allows(node, Event.ENDED if cloud.state is CloudState.TERMINATED else Event.APPEARED)
    )


def _apply_listing(node: Node, cloud: CloudNode, snapshot: Snapshot, seen_s: float) -> Node:
    """The node as the provider listed it at ``seen_s``. Lists are long, so each node is replaced only once."""
    billed_from_s = node.listing.billed_from_s
    if cloud.queued:  # so far it costs nothing, and does not boot
        billed_from_s = snapshot.now_s
        node = replace(node, create=replace(node.create, queued_s=snapshot.now_s))
    elif billed_from_s is None:
        age_s = max(0.0, snapshot.wall_at - cloud.created_at) if cloud.created_at is not None else 0.0
        billed_from_s = snapshot.now_s - age_s
    node = replace(
        node,
        cloud=cloud,
        listing=replace(
            node.listing,
            billed_from_s=billed_from_s,
            absences=0,
            absent_s=None,
            vanished=False,
            known_s=max(node.listing.known_s, seen_s),
        ),
    )
    event = Event.ENDED if cloud.state is CloudState.TERMINATED else Event.APPEARED
    if not allows(node, event):
        return node
    node = move(node, event, snapshot.now_s)
    if event is Event.ENDED:
        return _clear_retries(node)
    # It may have joined before the provider listed it.
    return follow_rank(node, node.rank, snapshot) if node.rank is not None else node


def _count_absence(node: Node, started_s: float, snapshot: Snapshot, policy: Policy) -> Node:
    absent_s = node.listing.absent_s if node.listing.absent_s is not None else started_s
    node = replace(node, listing=replace(node.listing, absences=node.listing.absences + 1, absent_s=absent_s))
    if node.listing.absences < policy.timing.absences:
        return node
    long_enough = started_s - node.listing.known_s >= policy.timing.create_grace_s
    if node.state is NodeState.REQUESTED:
        return move(node, Event.DISPROVED, snapshot.now_s) if long_enough else node
    if node.rank is not None and node.rank.online:
        return node  # Flux still reaches it: the provider may be wrong, and a job may run there
    if not _is_due_in_lists(node, started_s, policy):
        return node
    if node.state is NodeState.BOOTING and not policy.stacked:
        # It may boot and cost money, so it is not bought again yet.
        return replace(node, listing=replace(node.listing, vanished=long_enough))
    if node.listing.vanished and node.stop.destroyed_s is None:
        # It may exist all the same. If a list shows it after it was forgotten, it is destroyed as a stray.
        is_forgotten = node.tries > 0 and started_s - node.listing.known_s >= VANISHED_S_MAX
        return _clear_retries(move(node, Event.ENDED, snapshot.now_s)) if is_forgotten else node
    return _clear_retries(move(node, Event.ENDED, snapshot.now_s))


def _is_due_in_lists(node: Node, started_s: float, policy: Policy) -> bool:
    """Whether a list that lacks the node says anything about it.

    Some providers list a new node minutes after they have created it. Until a list has shown it, it has as long as
    for its boot.
    """
    overdue = started_s - node.create.boots_from_s >= policy.timing.boot_timeout_s
    return policy.stacked or node.listing.listed or overdue


def _clear_retries(node: Node) -> Node:
    """Forget the wait before the next try to stop it: the node is gone, and its slot should be freed."""
    return replace(node, retry_s=0.0, tries=0, failure="")


def apply_cloud_failure(snapshot: Snapshot, fact: CloudCallFailed, policy: Policy) -> Snapshot:
    """The snapshot after a call to the cloud failed."""
    name = policy.only_cloud(fact.cloud)
    account = snapshot.account_of(name)
    if not fact.foreseen:
        account = replace(account, misread={**account.misread, fact.operation: _misread(account, fact, snapshot)})
        snapshot = snapshot.with_account(name, account)
    if fact.operation == "list":
        wait_s = max(fact.retry_after_s, min(LIST_RETRY_S_MAX, 2.0**account.failed_lists))
        failed = replace(account.source, answer_due_s=None, failure=fact.detail, retry_s=snapshot.now_s + wait_s)
        return snapshot.with_account(
            name, replace(account, source=failed, failed_lists=min(account.failed_lists + 1, 30))
        )
    node = snapshot.nodes.get(fact.launch) if fact.launch is not None else None
    if node is None:
        return snapshot
    if fact.operation == "create":
        return _apply_create_failure(snapshot, node, fact, policy)
    if not waits_for(node, CallKind.DESTROY):
        return snapshot
    failed_node = fail_call(node, snapshot.now_s, fact.retry_after_s, fact.detail)
    return with_nodes(snapshot, {node.id: failed_node})


def _misread(account: Account, fact: CloudCallFailed, snapshot: Snapshot) -> Misread:
    times = account.misread[fact.operation].times if fact.operation in account.misread else 0
    return Misread(times + 1, snapshot.now_s, fact.detail)


def _apply_create_failure(snapshot: Snapshot, node: Node, fact: CloudCallFailed, policy: Policy) -> Snapshot:
    if waits_for(node, CallKind.CREATE):
        node = fail_call(node, snapshot.now_s, fact.retry_after_s, fact.detail)
    if fact.kind is FailureKind.AMBIGUOUS:
        return with_nodes(snapshot, {node.id: replace(node, create=replace(node.create, failure=fact.detail))})
    if allows(node, Event.DISPROVED):
        node = replace(move(node, Event.DISPROVED, snapshot.now_s), retry_s=0.0, tries=0, failure="")
    snapshot = with_nodes(snapshot, {node.id: node})
    cloud = policy.cloud_of(node.launch)
    if fact.kind is FailureKind.THROTTLED and policy.calls_of(cloud).nodes_per_create > 1:
        # The provider counts nodes, and its bucket has fewer left than were asked for. From now on creates come no
        # faster than it refills, so the next call is smaller and is not throttled too.
        account = replace(
            snapshot.account_of(cloud), create_credit=0.0, create_calls_credit=0.0, create_credit_s=snapshot.now_s
        )
        snapshot = snapshot.with_account(cloud, account)
    snapshot = apply_refusal(snapshot, node, fact.kind, fact.detail, policy, fact.retry_after_s, fact.quota_scope)
    return note_refused_node(snapshot, node, fact.kind, fact.detail, policy)


# --- match the cloud nodes that a provider lists with the launches we know --------------------------------
#
# Only the launch id decides, which a node carries in its tags from its creation. Names and addresses are reused,
# and clocks differ.


@dataclass(frozen=True, slots=True)
class Pairing:
    """A provider's list, sorted by owner."""

    paired: Mapping[LaunchId, CloudNode]
    strays: tuple[CloudNode, ...]  # ours and alive, but without a launch, or a second machine of one
    intruders: tuple[CloudNode, ...]  # of a cluster of our name with another UUID
    strangers: int


def pair(nodes: Mapping[LaunchId, Node], listed: Iterable[CloudNode], cluster: str, cluster_uuid: str) -> Pairing:
    """Sort a provider's list by owner. The order of the list does not matter."""
    ours: dict[LaunchId, CloudNode] = {}
    twins_of: dict[LaunchId, list[CloudNode]] = {}  # cloud nodes that share a launch
    intruders = []
    strangers = 0
    for cloud in listed:
        identity = cloud.identity
        if identity is not None and identity.cluster_uuid == cluster_uuid:
            first = ours.setdefault(identity.launch, cloud)
            if first is not cloud:
                twins_of.setdefault(identity.launch, [first]).append(cloud)
        elif identity is not None and identity.cluster == cluster:
            intruders.append(cloud)
        else:
            strangers += 1
    paired = {}
    strays: list[CloudNode] = []
    for launch, cloud in ours.items():
        node = nodes.get(launch)
        if node is not None and launch not in twins_of:
            paired[launch] = cloud
            continue
        rest = twins = twins_of.get(launch, [cloud])
        if node is not None:
            known = node.cloud
            paired[launch], *rest = sorted(_without_repeats(twins), key=lambda twin: _preference(twin, known))
        strays += [twin for twin in _without_repeats(rest) if twin.state is not CloudState.TERMINATED]
    return Pairing(
        paired,
        tuple(sorted(strays, key=lambda node: node.provider_id)),
        tuple(sorted(intruders, key=lambda node: node.provider_id)),
        strangers,
    )


def _without_repeats(twins: Iterable[CloudNode]) -> Iterable[CloudNode]:
    """Drop entries that a list shows twice."""
    return {twin.provider_id: twin for twin in twins}.values()


def _preference(twin: CloudNode, known: CloudNode | None) -> tuple[bool, bool, float, str]:
    """The sort key of cloud nodes that share a launch: prefer the known one, then a living one, then the older."""
    return (
        known is None or twin.provider_id != known.provider_id,
        twin.state is CloudState.TERMINATED,
        twin.created_at if twin.created_at is not None else float("inf"),
        twin.provider_id,
    )
