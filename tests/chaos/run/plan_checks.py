"""The checks of every plan: it uses fresh data, buys nothing twice, and forgets none of our nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from nodemanager.actors.manager import Publication
from nodemanager.core.drains import emptying_text, hold_text
from nodemanager.core.jobs import ANYWHERE, JobId, JobState, Shape
from nodemanager.core.nodes import (
    COMING,
    USABLE,
    CloudNode,
    CloudState,
    FailureKind,
    LaunchId,
    NodeState,
    ProviderId,
)
from nodemanager.core.orders import BootNode, CordonNode, CreateNode, DestroyNode, DrainNode, StopBroker
from nodemanager.core.reason_codes import Code
from nodemanager.core.slots import CloudName, Market, NodeType, SlotName, TypeName
from nodemanager.planner import spending
from nodemanager.planner.constraints import holds
from nodemanager.planner.plan import Action
from nodemanager.planner.policy import BLOCK_S
from nodemanager.simulation.cloud.provider import BillLine
from tests.chaos.run.invariants import Invariants, SubmittedJobs, Witness
from tests.chaos.run.script import HOSTILE_USER, SOUND, Script
from tests.chaos.run.site import BLOCK_SCALE, DISRUPTION_MAX, SOUND_NODES_MAX, limits_at
from tests.chaos.run.waste import IdleNodes

NEWS_DELAY_S = 3.0  # the longest delay of an answer, or of the news that a job started
QUEUE_STOP_KNOWN_S = 15.0  # the longest time until the manager knows that a queue is stopped: it polls for that
REFUSED_S = BLOCK_SCALE * BLOCK_S[FailureKind.CAPACITY]  # for how long a refused size is left alone
GRACE_FACTOR = 3.0  # of the orphan grace during faults: a wrong list restarts the grace


@dataclass
class PlanChecks:
    """The checks of one manager process's plans. Call ``check`` with every publication."""

    invariants: Invariants
    witness: Witness
    jobs: SubmittedJobs
    script: Script
    spend_is_knowable: bool = False
    peace: bool = False
    _unowned_s: dict[ProviderId, float] = field(default_factory=dict)
    _pending_s: dict[JobId, float] = field(default_factory=dict)
    _stopped_by_one_s: float | None = None  # since when it stands still for one cloud, although another answers

    def __post_init__(self) -> None:
        self._idle = IdleNodes(self.invariants.use)

    def begin_peace(self) -> None:
        """From now on no answer is wrong: an unowned node must have an owner within the plain grace."""
        self.peace = True
        self._unowned_s.clear()

    def check(self, published: Publication) -> None:
        snapshot, made = published.snapshot, published.plan
        now_s = snapshot.now_s
        aside = [bad.why for bad in snapshot.queues.unreadable.values() if bad.set_aside]
        self.invariants.require(not aside, f"jobs were set aside: {aside}")
        self.invariants.use.look()
        self._idle.check(published)
        self._check_not_given_up_unlisted(published)
        self._check_fresh_data(published)
        self._check_other_clouds_go_on(published)
        self._check_every_node_known(published)
        self._note_waiting_jobs(now_s)
        self._check_disruption(published)
        self._check_emptying(published)
        self._check_not_refilled(published)
        boots = [action for action in made.actions if isinstance(action, BootNode)]
        if boots:
            self._check_not_for_held_jobs(boots, now_s)
            self._check_sizes(published, boots)
            self._check_schedules(published, boots)
            self._check_budgets(published, boots)
            self._check_not_bought_twice(published, boots)
            self._check_whole_gangs(published, boots)
            self._check_near(published, boots)
        if made.stands_still is None:
            self._check_orphans(now_s)
        else:
            self._unowned_s.clear()

    # --- upkeep ---

    def _check_disruption(self, published: Publication) -> None:
        """No node may be drained to be replaced while as many as the site allows are under way.

        A node that a person held is not under way: it is undrained when it is released, and waits for its turn.
        """
        due, flux = published.plan.due, self.invariants.flux
        orders = [it for it in published.plan.actions if isinstance(it, CordonNode | DrainNode)]
        begun = {it.launch for it in orders if it.launch in due and it.reason == due[it.launch].why}
        drains = {id_: flux.drain_reason(published.snapshot.nodes[id_].launch.rank) for id_ in due}
        before = {id_ for id_, text in drains.items() if text not in (None, hold_text(id_))}
        self.invariants.require(
            not begun - before or len(begun | before) <= DISRUPTION_MAX,
            f"{sorted(begun - before)} are drained to be replaced, beside {sorted(before)}",
        )

    def _check_emptying(self, published: Publication) -> None:
        """No node may be kept free of new jobs while as many as the site allows are."""
        flux, nodes = self.invariants.flux, published.snapshot.nodes
        orders = (it for it in published.plan.actions if isinstance(it, CordonNode))
        begun = {it.launch for it in orders if it.text == emptying_text(it.launch)}
        up = [node for node in nodes.values() if node.state in USABLE]
        before = {it.id for it in up if flux.drain_reason(it.launch.rank) == emptying_text(it.id)}
        self.invariants.require(
            not begun - before or len(begun | before) <= DISRUPTION_MAX,
            f"{sorted(begun - before)} are to be emptied, beside {sorted(before)}",
        )

    def _check_not_refilled(self, published: Publication) -> None:
        """A node may be kept for no further job because of a cheaper type only if its jobs could run there."""
        for order in published.plan.actions:
            if not isinstance(order, CordonNode) or order.reason.code is not Code.NOT_REFILLED:
                continue
            instead = published.policy.types[TypeName(str(order.reason.figures["node_type"]))]
            there = [
                job.id
                for job in published.snapshot.jobs.values()
                if any(held.rank == order.rank for held in job.allocations)
            ]
            known = [shape for job in there if (shape := self.jobs.shapes.get(job)) is not None]
            self.invariants.require(
                all(_nodes_at_most(shape, instead) and self._matches(shape, instead) for shape in known),
                f"{order.launch} is not refilled because of {instead.name}, where some of {there} cannot run",
            )
            self.invariants.upkeep.not_refilled += 1

    def _check_schedules(self, published: Publication, boots: list[BootNode]) -> None:
        """Purchases must be within the limits of the schedules that are open at that moment."""
        if not self.script.upkeep or self.peace:
            return
        nodes_max, price_max = limits_at(self.script, published.snapshot.wall_at)
        invariants, types = self.invariants, published.policy.types
        standing = [node for node in invariants.our_nodes() if node.provider_id not in invariants.planted]
        count = len(standing) + len(boots)
        invariants.require(
            count <= nodes_max, f"{count} nodes with those bought, above {nodes_max} of the schedule"
        )
        paid = [it.identity.type_name for it in standing if it.identity and it.identity.launch not in self._prepaid]
        paid += [it.launch.type_name for it in boots if not it.launch.prepaid]
        price = sum((types[TypeName(name)].price_per_hour for name in paid), Decimal(0))
        invariants.require(
            price <= price_max, f"{price} an hour with those bought, above {price_max} of the schedule"
        )

    @property
    def _prepaid(self) -> Collection[LaunchId]:
        return self.invariants.upkeep.prepaid

    # --- fresh data ---

    def _check_fresh_data(self, published: Publication) -> None:
        if not published.plan.actions:
            return
        limit_s = self.invariants.policy.timing.stale_after_s
        answered = {source: self.witness.answered_s.get(source) for source in ("queue", "flux")}
        policy = self.invariants.policy
        concerned = {cloud for it in published.plan.actions if (cloud := _cloud_of(it, published)) is not None}
        if len(policy.cloud_names) == 1:
            concerned = {*policy.cloud_names}  # whatever the orders are about
        answered |= {cloud: self._listed_s(cloud) for cloud in concerned}
        for source, answered_s in answered.items():
            age_s = published.snapshot.now_s - answered_s if answered_s is not None else float("inf")
            self.invariants.require(age_s <= limit_s, f"decided on {source}, which last answered {age_s:.0f} s ago")

    def _listed_s(self, cloud: CloudName) -> float | None:
        return self.witness.listed[cloud][1] if cloud in self.witness.listed else None

    def _check_other_clouds_go_on(self, published: Publication) -> None:
        """A cloud whose lists are old must not stop the others."""
        still, policy = published.plan.stands_still, self.invariants.policy
        if (
            len(policy.cloud_names) == 1
            or still is None
            or not str(still.figures.get("source", "")).startswith("cloud")
        ):
            self._stopped_by_one_s = None
            return
        heard_s = [self._listed_s(cloud) for cloud in policy.cloud_names]
        # A list counts from the moment of the question, and takes a while to arrive.
        now_s, late_s = published.snapshot.now_s, 2 * policy.calls.call_timeout_s
        fresh = any(it is not None and now_s - it < policy.timing.stale_after_s - late_s for it in heard_s)
        arrived = any(account.source.seen_s is not None for account in published.snapshot.accounts.values())
        if not (fresh and arrived):
            self._stopped_by_one_s = None
            return
        if self._stopped_by_one_s is None:
            self._stopped_by_one_s = now_s
        # After a frozen manager goes on, its clouds answer before it has heard them.
        stopped_s = now_s - self._stopped_by_one_s
        self.invariants.require(stopped_s < late_s, f"{still}, although another cloud answers")

    # --- every node is known ---

    def _check_every_node_known(self, published: Publication) -> None:
        """Every node of ours in the list that the snapshot was made from must be in the snapshot."""
        for cloud, (listed, listed_s) in self.witness.listed.items():
            self._check_nodes_known(published, cloud, listed, listed_s)

    def _check_nodes_known(
        self, published: Publication, cloud: CloudName, listed: Iterable[CloudNode], listed_s: float
    ) -> None:
        snapshot = published.snapshot
        account = snapshot.account_of(cloud)
        if account.source.seen_s is None or account.source.seen_s < listed_s:
            return  # the manager has not received the latest list yet
        of_launch = {node.cloud.provider_id for node in snapshot.nodes.values() if node.cloud is not None}
        known = {
            *of_launch,
            *account.strays,
            *(node.provider_id for node in account.intruders),
        }
        for node in listed:
            if node.state is CloudState.TERMINATED or node.identity is None or node.provider_id in known:
                continue
            owner = snapshot.nodes.get(node.identity.launch)
            gone = owner is not None and owner.state is NodeState.GONE
            self.invariants.require(gone, f"{node.provider_id} is listed and neither known nor reported")

    def _check_not_given_up_unlisted(self, published: Publication) -> None:
        """No node may be given up because lists lack it while no list can show it yet."""
        given_up = [id_ for id_, why in published.plan.nodes.items() if why.code is Code.VANISHED]
        known = [node.cloud for id_ in given_up if (node := published.snapshot.nodes.get(id_)) is not None]
        ids = {cloud.provider_id for cloud in known if cloud is not None}
        unlisted = {id_ for provider in self.invariants.providers for id_ in provider.unlisted()} if ids else set()
        self.invariants.require(not ids & unlisted, f"{sorted(ids & unlisted)} are given up, and only listed late")

    # --- nothing is bought twice ---

    def _note_waiting_jobs(self, now_s: float) -> None:
        flux = self.invariants.flux
        if now_s - flux.queues_open_s > QUEUE_STOP_KNOWN_S:
            return
        for job in flux.active_jobs():
            if flux.job_state(job) in (JobState.SCHED, JobState.PRIORITY) and job not in self.jobs.held:
                self._pending_s[job] = now_s

    def _check_not_for_held_jobs(self, boots: Iterable[BootNode], now_s: float) -> None:
        held = self.jobs.held
        for boot in boots:
            waiting = [job for job in boot.serves if now_s - held.get(job, now_s) <= NEWS_DELAY_S]
            self.invariants.require(
                bool(waiting) or not boot.serves,
                f"{boot.launch.id} is bought for jobs that are held: {boot.serves}",
            )

    def _check_sizes(self, published: Publication, boots: Iterable[BootNode]) -> None:
        """No size may be bought that was just refused, nor a dearer one while a cheaper one was never refused.

        A size may also be blocked because the provider took a node of it back, or because one had too little.
        """
        if published.snapshot.learned.streaks:
            return  # nodes failed while they booted: then each size has a trial of its own
        since_s, require = self.witness.refused_since_s, self.invariants.require
        refused_s = REFUSED_S - self.script.idle_tick_s  # the manager counts from its last look at the clock
        blocked = {(scope.type_name, scope.size) for scope in published.snapshot.learned.blocks}
        for launch in (boot.launch for boot in boots):
            name, market = launch.type_name, launch.market
            rivals = [it.name for it in self.invariants.policy.types[name].sizes if it.market is market]
            if market is None or not rivals:
                continue
            age_s = since_s(name, launch.size, market, FailureKind.CAPACITY)
            require(
                not NEWS_DELAY_S < age_s < refused_s,
                f"{launch.id} is bought as {launch.size} ({market}), refused {age_s:.1f} s ago",
            )
            for cheaper in rivals[: rivals.index(launch.size)]:
                # A quota refuses a size on both markets.
                refused = any(since_s(name, cheaper, it) < float("inf") for it in Market)
                require(
                    refused or (name, cheaper) in blocked,
                    f"{launch.id} is bought as {launch.size}, and {cheaper} is cheaper and was never refused",
                )

    def _check_budgets(self, published: Publication, boots: Sequence[BootNode]) -> None:
        """Each budget must pay for an hour of the nodes that are bought, after what its owner spent in truth."""
        types = self.invariants.policy.types
        for (owner, _), limit in published.policy.budgets.items() if self.spend_is_knowable else ():
            bought = [
                types[it.launch.type_name]
                for it in boots
                if owner in (spending.WHOLE_SITE, spending.cloud_account(types[it.launch.type_name].cloud))
            ]
            if not bought:
                continue
            spent = self.invariants.true_cost(published.snapshot.now_s, self._counts_as_spent, owner=owner)
            whose = owner or "the site"
            self.invariants.require(
                spent < limit, f"bought with {spent:.4f} spent, of a budget of {limit} of {whose}"
            )
            price = sum((it.price_per_hour for it in bought), Decimal(0))
            paid = published.policy.has_prepaid or spent + price <= limit
            text = f"bought for {price} an hour, with {spent:.4f} spent of a budget of {limit} of {whose}"
            self.invariants.require(paid, text)

    def _counts_as_spent(self, line: BillLine) -> bool:
        """Whether this process can know a node's cost: it saw the node, or an earlier process recorded the cost."""
        invariants, launch = self.invariants, line.launch
        if launch in self.witness.seen_launches or launch in invariants.flux.spend.counted:
            return True
        leased = any(recorded.id == launch for recorded in invariants.flux.leases.values())
        return not leased and launch not in invariants.unseen_launches

    def _check_not_bought_twice(self, published: Publication, boots: list[BootNode]) -> None:
        """For each type, at most as many nodes may be booting or bought as the waiting jobs could use.

        Each job counts with one node for each of its nodes or slots. Each node that upkeep may replace at once has
        one more. In a stack, all slots below the highest one that a job may ask for are bought with it.
        """
        now_s = published.snapshot.now_s
        shapes = [
            self.jobs.shapes[job]
            for job, seen_s in self._pending_s.items()
            if now_s - seen_s <= NEWS_DELAY_S and job in self.jobs.shapes
        ]
        # Some odd jobs can be read, and are demand although the scheduler here never starts them.
        shapes += [job.shape for job in published.snapshot.jobs.values() if job.userid == HOSTILE_USER]
        for type_name in {boot.launch.type_name for boot in boots}:
            node_type = published.policy.types[type_name]
            bought = sum(boot.launch.type_name == type_name for boot in boots)
            coming = bought + sum(1 for node in self._booting_nodes(published) if _type_of(node) == type_name)
            matches = [(shape, self._matches(shape, node_type)) for shape in shapes]
            wanted = sum(_nodes_at_most(shape, node_type) for shape, matching in matches if matching)
            if published.policy.stacked:
                asking = (matching[-1] for shape, matching in matches if matching and shape.constraint != ANYWHERE)
                wanted += max(asking, default=0)
            self.invariants.require(
                coming <= wanted + DISRUPTION_MAX,
                f"{coming} nodes of {type_name} bought or coming, {wanted} wanted at the most",
            )

    def _check_whole_gangs(self, published: Publication, boots: Sequence[BootNode]) -> None:
        """If nodes of a placement group are bought for a job of several nodes, all of it must fit in their zone.

        Purchases that quotas put off count too, slots that are free in a moment, and nodes that drain, because they
        may be undrained for the job.
        """
        basis = published.plan.basis
        purchases = basis.needs.purchases if basis is not None else ()
        places = {(purchase.zone, purchase.place[0]) for purchase in purchases} | {
            (node.launch.zone, node.launch.slot)
            for node in published.snapshot.nodes.values()
            if node.state in (*USABLE, *COMING, NodeState.DRAINING)
        }
        there = Counter(zone for zone, _ in places)
        soon = sum(node.state is NodeState.GONE for node in published.snapshot.nodes.values())
        for boot in boots:
            wide = (self.jobs.shapes.get(job) for job in boot.serves if boot.launch.group)
            wanted = max((shape.nodes or 1 for shape in wide if shape is not None), default=0)
            zone = boot.launch.zone
            self.invariants.require(
                there[zone] + soon >= wanted, f"{boot.launch.id} is bought in {zone} for a job of {wanted} nodes"
            )

    def _check_near(self, published: Publication, boots: Sequence[BootNode]) -> None:
        """No node may be bought for jobs with data in the sound cloud if an equal one can be bought there."""
        basis, policy = published.plan.basis, published.policy
        if basis is None or not self.script.near:
            return
        supply, allocation = basis.placement.supply, basis.placement.allocation
        nodes = sum(node.launch.cloud == SOUND for node in published.snapshot.nodes.values())
        nodes += sum(boot.launch.cloud == SOUND for boot in boots)
        for boot in boots:
            bought, serves = policy.types[boot.launch.type_name], boot.serves
            wishes = [shape.near for job in serves if (shape := self.jobs.shapes.get(job)) is not None]
            if bought.cloud == SOUND or not wishes or any(it is None or it.cloud != SOUND for it in wishes):
                continue
            twin = next((it for it in policy.node_types if it.cloud == SOUND and it.size == bought.size), None)
            if twin is None or twin.name in supply.blocked or nodes >= SOUND_NODES_MAX or not allocation.nodes_left:
                continue
            left = supply.count_free(twin.name) - sum(it.launch.type_name == twin.name for it in boots)
            can_buy = left > 0 and basis.placement.price_left >= twin.price_per_hour
            text = f"{boot.launch.id} is bought for {serves}, whose data is where {twin.name} can be bought"
            self.invariants.require(not can_buy, text)

    def _matches(self, shape: Shape, node_type: NodeType) -> list[int]:
        """The slots of a type that satisfy a job's constraint, as indexes in the order of their ranks."""
        ranked = sorted((self.invariants.flux.rank_of[slot], slot) for slot in node_type.slots)
        return [
            at
            for at, (rank, slot) in enumerate(ranked)
            if holds(shape.constraint, properties=node_type.properties, host=slot, rank=rank)
        ]

    def _booting_nodes(self, published: Publication) -> Iterable[CloudNode]:
        """Yield the nodes that are truly booting and are expected to join in time."""
        snapshot, policy, flux = published.snapshot, published.policy, self.invariants.flux
        for node in self.invariants.our_nodes():
            if node.identity is None or node.state not in (CloudState.PENDING, CloudState.RUNNING):
                continue
            known = snapshot.nodes.get(node.identity.launch)
            if known is None or known.state is not NodeState.BOOTING or snapshot.steered(known):
                continue
            slot = node.identity.slot
            late = snapshot.now_s - known.create.requested_s >= policy.timing.boot_timeout_s
            if not late and not flux.online(flux.rank_of[slot]) and flux.drain_reason(flux.rank_of[slot]) is None:
                yield node

    # --- no node stays unowned ---

    def _check_orphans(self, now_s: float) -> None:
        """A node without a lease must get one, or be destroyed, within the grace."""
        records = {launch.id for launch in self.invariants.flux.leases.values()}
        unlisted = {id_ for provider in self.invariants.providers for id_ in provider.unlisted()}
        unowned = {
            node.provider_id
            for node in self.invariants.our_nodes()
            if node.identity is not None
            and node.state is not CloudState.STOPPING
            and node.identity.launch not in records
            and node.provider_id not in unlisted
            and not self._is_busy(node.identity.slot)
        }
        self._unowned_s = {
            id_: self._unowned_s.get(id_, now_s) for id_ in sorted(unowned - self.invariants.destroyed)
        }
        grace_s = self.invariants.policy.timing.orphan_grace_s
        limit_s = (grace_s if self.peace else GRACE_FACTOR * grace_s) + 60.0
        for id_, since_s in self._unowned_s.items():
            self.invariants.require(
                now_s - since_s <= limit_s, f"{id_} has had no owner for {now_s - since_s:.0f} s"
            )

    def _is_busy(self, slot: SlotName) -> bool:
        rank = self.invariants.flux.rank_of[slot]
        return any(grant.rank == rank for _, grant in self.invariants.flux.held_grants())


def _type_of(node: CloudNode) -> str:
    return node.identity.type_name if node.identity is not None else ""


def _nodes_at_most(shape: Shape, node_type: NodeType) -> int:
    """The most nodes of a type that a job could use: one for each of its nodes or slots."""
    fits = node_type.cores >= shape.cores_per_slot and node_type.gpus >= shape.gpus_per_slot
    return (shape.nodes or shape.slots) if fits else 0


def _cloud_of(action: Action, published: Publication) -> CloudName | None:
    """The cloud that an order calls, or whose node it takes out of service; None if it does neither."""
    match action:
        case BootNode(launch=launch) | CreateNode(launch=launch):
            return launch.cloud
        case DestroyNode(cloud=cloud):
            return cloud
        case DrainNode(launch=id_) | StopBroker(launch=id_):
            return published.snapshot.nodes[id_].launch.cloud
        case _:
            return None
