"""The metrics for Prometheus. Gauges are read from the latest publication; counters and histograms count events.

Names begin with ``node_manager_``. Money is an estimate in the site's currency.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import CloudCallFailed, CloudListed, Fact, LeftoversRemoved, NodeCreated, NodeDestroyed
from nodemanager.core.jobs import JobState
from nodemanager.core.slots import NodeType
from nodemanager.delegation.view import DelegationView
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.node_lives import FAILED_OUTCOMES, NOT_CREATED, NodeLife
from nodemanager.planner import billing, breakers, budget, node_health, spending
from nodemanager.planner.backoff import refusal_reason
from nodemanager.planner.breakers import current_record_fault, users_put_off
from nodemanager.planner.trust import clouds_with_nodes
from nodemanager.web.api.documents import jobs_waiting, nodes_wanted, sources
from nodemanager.web.state.board import Board

PREFIX = "node_manager_"
BOOT_BUCKETS_S = (1, 5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1800)
PHASE_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

BOOT_OUTCOMES = ("joined", *FAILED_OUTCOMES)
# The operation of each successful cloud call, by the fact that reports it.
OPERATION_OF_ANSWER: Mapping[type[Fact], str] = {
    CloudListed: "list",
    NodeCreated: "create",
    NodeDestroyed: "destroy",
    LeftoversRemoved: "sweep",
}


class Metrics:
    """The metrics of one service, in their own registry, so that other libraries cannot add to it."""

    def __init__(self, board: Board) -> None:
        self._types: tuple[NodeType, ...] = ()
        self.registry = CollectorRegistry()
        self.registry.register(_StateCollector(board))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, label: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(PREFIX + name, text, [label], registry=self.registry, buckets=tuple(buckets))

        self._decisions = counter(
            "decisions",
            "Orders that were given (kind decided) or only reported (kind would).",
            "kind",
            "order",
            "reason",
        )
        self._calls = counter("cloud_calls", "Successful calls to the provider.", "operation")
        self._errors = counter(
            "cloud_call_errors",
            "Failed calls to the provider. Kind throttled: too many calls.",
            "operation",
            "kind",
        )
        self._boots = counter(
            "boots", "Completed boots by outcome: joined, or why the node did not join.", "node_type", "outcome"
        )
        self._cost = counter("cost", "The cost of nodes since this process started.", "node_type", "use")
        self._began = counter("jobs_begun", "Jobs that started to run.")
        self._up = histogram(
            "node_up_seconds", "Time from a node's order until it runs.", "node_type", BOOT_BUCKETS_S
        )
        self._joined = histogram(
            "node_joined_seconds", "Time from a node's order until its rank is online.", "node_type", BOOT_BUCKETS_S
        )
        self._first_job = histogram(
            "node_first_job_seconds", "Time from a node's order until its first job.", "node_type", BOOT_BUCKETS_S
        )
        self._phases = histogram(
            "phase_seconds", "Duration of one decision by phase: observe, plan, act.", "phase", PHASE_BUCKETS_S
        )

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        page: bytes = generate_latest(self.registry)
        return page

    # --- counting ---

    def take_in(self, update: HistoryUpdate) -> None:
        """Count an update of the history. Called by the history thread."""
        self._start_boot_series(update.newest.policy.node_types)
        for event in update.events:
            if event.kind in ("decided", "would"):
                self._decisions.labels(event.kind, event.what, event.code).inc()
            elif event.kind == "job" and event.what == "began":
                self._began.inc()
        for fact in update.facts:
            self._count_call(fact)
        for was, now in update.life_changes:
            self._count_life(was, now)
        for key, cost_sum in update.costs.items():
            self._cost.labels(key.node_type, key.use).inc(cost_sum.cost)
        for phases_s in update.phases_s:
            for phase, took_s in phases_s.items():
                self._phases.labels(phase).observe(took_s)

    def _start_boot_series(self, node_types: tuple[NodeType, ...]) -> None:
        """Create each boot counter at 0: Prometheus does not see the first increase of a new series."""
        if node_types is not self._types:
            self._types = node_types
            for node_type, outcome in product(node_types, BOOT_OUTCOMES):
                self._boots.labels(node_type.name, outcome)

    def _count_call(self, fact: Fact) -> None:
        if isinstance(fact, CloudCallFailed):
            self._errors.labels(fact.operation, str(fact.kind)).inc()
        elif (operation := OPERATION_OF_ANSWER.get(type(fact))) is not None:
            self._calls.labels(operation).inc()

    def _count_life(self, was: NodeLife | None, now: NodeLife) -> None:
        if now.outcome not in ("", NOT_CREATED) and (was is None or not was.outcome) and not now.found:
            self._boots.labels(now.node_type, now.outcome).inc()
        if now.found:
            return  # its boot began under an earlier process, so the durations are unknown
        for milestone, histogram in (
            ("up_at", self._up),
            ("joined_at", self._joined),
            ("first_job_at", self._first_job),
        ):
            at = getattr(now, milestone)
            if at is not None and (was is None or getattr(was, milestone) is None):
                histogram.labels(now.node_type).observe(max(0.0, at - now.requested_at))


class _StateCollector(Collector):
    """Reads the gauges from the latest publication. Before the first one, there is only ``silent_seconds``."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield _gauge("silent_seconds", "Time since the last decision was completed.", self._board.silent_s)
        text = "1 while the history cannot be written."
        yield _gauge("journal_failing", text, int(bool(self._board.journal_failure())))
        yield from _ensemble_gauges(self._board)
        posted = self._board.latest
        if posted is not None:
            yield from _node_gauges(posted.published)
            yield from _job_gauges(posted.published)
            yield from _cost_gauges(posted.published)
            yield from _service_gauges(posted.published)
        if (view := self._board.delegation) is not None:
            yield from _peer_gauges(view)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _gauges(
    name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _ensemble_gauges(board: Board) -> Iterator[Metric]:
    """Read the ensembles. A site without any has none of these metrics."""
    if kept := board.nodes_kept:
        text = "Nodes that are kept because an ensemble asks for them."
        yield _gauges("ensemble_nodes_kept", text, ("ensemble",), {(name,): count for name, count in kept.items()})
    if not (ensembles := board.ensembles):
        return
    members: dict[tuple[str, ...], float] = {
        (name, group, state): count
        for name, summary in ensembles.items()
        for group, counts in summary["groups"].items()
        for state, count in counts.items()
        if state != "finished"  # success and failed together
    }
    text = "Members of the service's ensembles: active by state, ended by how they ended."
    yield _gauges("ensemble_members", text, ("ensemble", "group", "state"), members)
    runs: dict[tuple[str, ...], float] = {
        (name, str(number)): rule["runs"]
        for name, summary in ensembles.items()
        for number, rule in enumerate(summary["rules"], start=1)
    }
    yield _gauges("ensemble_rule_runs", "How often each rule has run.", ("ensemble", "rule"), runs)


def _node_gauges(published: Publication) -> Iterator[Metric]:
    snapshot, policy = published.snapshot, published.policy
    counts: Tally[tuple[str, ...]] = Tally()
    for node in snapshot.nodes.values():
        node_type = policy.types.get(node.launch.type_name)
        market = node.launch.market or (node_type.market if node_type is not None else "")
        counts[(str(node.state), node.launch.type_name, str(market))] += 1
    yield _gauges("nodes", "Nodes by state.", ("state", "node_type", "market"), counts)
    yield _gauges(
        "nodes_wanted",
        "Nodes that the plan wants, for other tools to follow.",
        ("node_type",),
        {(name,): count for name, count in nodes_wanted(published).items()},
    )
    yield _gauge("nodes_max", "The limit on nodes.", policy.limits.nodes_max)
    yield _gauge("nodes_held", "Nodes that an operator holds.", len(snapshot.operator.steering.holds))
    drained = node_health.drained_nodes(snapshot, policy)
    yield _gauges(
        "nodes_drained",
        "Nodes that cost money and take no jobs, because Flux itself (by flux) or a person drained them.",
        ("by",),
        {(by,): it.count for by, it in drained.items()},
    )
    yield _gauges(
        "nodes_drained_price_per_hour",
        "Price an hour of the nodes that Flux itself or a person drained.",
        ("by",),
        {(by,): float(it.price_per_hour) for by, it in drained.items()},
    )
    yield _gauge(
        "users_put_off",
        "Users for whom nothing is bought, because their jobs made Flux drain node after node.",
        len(users_put_off(snapshot)),
    )
    yield _gauge("orphans", "Nodes with our tags that no launch owns.", len(billing.ownerless_strays(snapshot)))
    yield _gauge("intruders", "Nodes with our cluster's name but another UUID.", len(snapshot.intruders))
    yield _gauge(
        "strangers",
        "Other machines in the account.",
        snapshot.strangers,
    )
    standing: dict[tuple[str, ...], float] = {
        (scope.type_name, str(scope.market or ""), scope.zone or "", refusal_reason(block).code): 1.0
        for scope, block in snapshot.learned.blocks.items()
        if block.until_s > snapshot.now_s
    }
    yield _gauges(
        "capacity_blocks", "1 for each block on buying nodes.", ("node_type", "market", "zone", "reason"), standing
    )
    yield _gauges(
        "boot_breaker",
        "1 if too many boots in a row failed: nodes of the type are no longer bought, only tried one at a time.",
        ("node_type",),
        {(it.name,): float(breakers.open_breaker(it, snapshot, policy) is not None) for it in policy.node_types},
    )


def _job_gauges(published: Publication) -> Iterator[Metric]:
    states: Tally[tuple[str, ...]] = Tally({(str(state),): 0 for state in JobState})
    for job in published.snapshot.jobs.values():
        states[(str(job.state),)] += 1
    states[("inactive",)] = published.snapshot.queues.jobs_ended
    yield _gauges("jobs", "Jobs by state. Inactive: ended jobs that the instance remembers.", ("state",), states)
    pending: dict[tuple[str, ...], float] = {(code,): count for code, count in jobs_waiting(published.plan).items()}
    yield _gauges("jobs_pending", "Waiting jobs by reason.", ("reason",), pending)
    unreadable = published.snapshot.queues.unreadable
    yield _gauge("jobs_unreadable", "Jobs whose jobspec cannot be read.", len(unreadable))
    aside = sum(bad.set_aside for bad in unreadable.values())
    yield _gauge("jobs_set_aside", "Jobs that this program cannot handle: a fault of it.", aside)


def _peer_gauges(view: DelegationView) -> Iterator[Metric]:
    """The gauges of delegation: only for a site that delegates."""
    jobs: dict[tuple[str, ...], float] = {(peer.name,): float(peer.jobs) for peer in view.peers}
    yield _gauges("peer_jobs", "Our jobs at each peer.", ("peer",), jobs)
    up: dict[tuple[str, ...], float] = {(peer.name,): float(peer.reachable) for peer in view.peers}
    yield _gauges("peer_up", "1 if the peer can be reached.", ("peer",), up)
    seen = {(peer.name,): peer.load for peer in view.peers if peer.load is not None}
    free: dict[tuple[str, ...], float] = {name: float(load.cores_free) for name, load in seen.items()}
    yield _gauges("peer_cores_free", "Free cores of each peer.", ("peer",), free)
    waiting: dict[tuple[str, ...], float] = {name: float(load.waiting) for name, load in seen.items()}
    yield _gauges("peer_jobs_waiting", "Jobs that wait at each peer, of everybody.", ("peer",), waiting)
    waits = {name: load.wait_s for name, load in seen.items()}
    known: dict[tuple[str, ...], float] = {name: wait_s for name, wait_s in waits.items() if wait_s is not None}
    text = "How long a job of one core would wait at each peer that forecasts it."
    yield _gauges("peer_wait_seconds", text, ("peer",), known)
    price: dict[tuple[str, ...], float] = {(peer.name,): float(peer.price_per_core_hour) for peer in view.peers}
    yield _gauges("peer_price_per_core_hour", "The price of each peer.", ("peer",), price)
    yield _counter("delegated_jobs_ended", "Delegated jobs that ended since the service started.", view.ended)
    yield _gauge("delegation_stopped", "1 while no job can be delegated.", int(bool(view.fault)))


def _cost_gauges(published: Publication) -> Iterator[Metric]:
    price, most = published.plan.price_per_hour, published.policy.limits.price_per_hour_max
    yield _gauge("price_per_hour", "Price an hour of all nodes that cost or may cost.", float(price))
    yield _gauge("price_per_hour_max", "The limit on the price an hour.", float(most))
    yield _gauge("budget_left_per_hour", "The price an hour that is left below its limit.", float(most - price))
    amounts = budget.left_by_period(published.snapshot, published.policy)
    left: dict[tuple[str, ...], float] = {
        (period,): float(amount) for (owner, period), amount in amounts.items() if owner == spending.WHOLE_SITE
    }
    yield _gauges("budget_left", "The rest of the budget of the day and of the month.", ("period",), left)
    of_clouds: dict[tuple[str, ...], float] = {
        (owner.removeprefix(spending.CLOUD), period): float(amount)
        for (owner, period), amount in amounts.items()
        if owner != spending.WHOLE_SITE
    }
    yield from _cloud_gauges(published)
    text = "The rest of each cloud's own budget of the day and of the month."
    yield _gauges("cloud_budget_left", text, ("cloud", "period"), of_clouds)


def _cloud_gauges(published: Publication) -> Iterator[Metric]:
    """The nodes of each cloud and their price, with those that no launch owns: as its limits count them."""
    rooms = {
        name: billing.room_of(name, published.snapshot, published.policy)
        for name in clouds_with_nodes(published.snapshot, published.policy)
    }
    count: dict[tuple[str, ...], float] = {(name,): float(it.nodes) for name, it in rooms.items()}
    price: dict[tuple[str, ...], float] = {(name,): float(it.price_per_hour) for name, it in rooms.items()}
    yield _gauges("cloud_nodes", "Nodes of each cloud that cost or may cost.", ("cloud",), count)
    yield _gauges("cloud_price_per_hour", "Price an hour of the nodes of each cloud.", ("cloud",), price)


def _service_gauges(published: Publication) -> Iterator[Metric]:
    snapshot = published.snapshot
    ages: dict[tuple[str, ...], float] = {
        (name,): source["age_s"] for name, source in sources(published).items() if source["age_s"] is not None
    }
    yield _gauges("data_age_seconds", "Age of the data from each source.", ("source",), ages)
    still = published.plan.stands_still
    yield _gauges(
        "stands_still",
        "1 while nothing is decided, by reason.",
        ("reason",),
        {(still.code,): 1.0} if still is not None else {},
    )
    yield _gauge(
        "paused", "1 while an operator pauses decisions.", int(snapshot.operator.steering.paused is not None)
    )
    lost = bool(snapshot.operator.steering_lost)
    yield _gauge("not_steerable", "1 while nobody can steer the manager, so that it buys nothing.", int(lost))
    fault = current_record_fault(snapshot)
    yield _gauge(
        "record_failures",
        "Leases that Flux refused to record in a row.",
        fault.failures if fault is not None else 0,
    )
    yield _gauge("acts", "1 while decisions are carried out.", int(published.acts and snapshot.sources.claimed))
