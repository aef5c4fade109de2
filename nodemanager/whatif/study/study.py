"""A study: one workload under a site's policy, under variants of it, and under the baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import TextIO

from nodemanager.config.site import Site
from nodemanager.service.assembly.policy import policy_of
from nodemanager.whatif.cloud.learned import LearnedCloud
from nodemanager.whatif.cloud.parameters import Figure, cloud_conditions
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.replay.engine import Decider, ReplayEngine, RunSetup
from nodemanager.whatif.replay.lower_bounds import UnitDemand, WindowCover
from nodemanager.whatif.replay.planner_driver import PlannerDriver
from nodemanager.whatif.replay.result import Outcome, build_outcome
from nodemanager.whatif.replay.totals import RunTotals
from nodemanager.whatif.workload.event_log import EventLog
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, Workload

Progress = Callable[[str, int], None]  # the run, and how many jobs have been submitted
TELL_EVERY = 64  # jobs between two reports of progress


@dataclass(frozen=True, slots=True)
class CostBounds:
    """The lower bounds of a fleet that serves as many jobs (:mod:`lower_bounds`), in the site's currency."""

    same_starts: float  # if every job starts when it did on the fixed cluster
    work: float  # with any waits


@dataclass(slots=True)
class Study:
    """The results of all runs of one study. ``main`` is the unchanged site."""

    site: Site
    workload: Workload
    main: Outcome
    compared: dict[str, Outcome] = field(default_factory=dict)
    differences: dict[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    swept: dict[str, Outcome] = field(default_factory=dict)
    baselines: dict[str, Outcome] = field(default_factory=dict)
    bounds: CostBounds | None = None
    compared_bounds: dict[str, CostBounds] = field(default_factory=dict)  # of sites with other nodes or prices
    oddities: Oddities = field(default_factory=Oddities)
    cloud: tuple[Figure, ...] = ()  # the figures of the simulated cloud, with their sources

    @property
    def outcomes(self) -> list[Outcome]:
        """The results of all runs, in the order in which they are shown."""
        return [self.main, *self.compared.values(), *self.baselines.values(), *self.swept.values()]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs policies on one workload. ``jobs_max``: the number of jobs to replay; None is all.

    ``learned``: observations that the simulated cloud is built from.
    """

    workload: Workload
    progress: Progress
    jobs_max: int | None = None
    learned: LearnedCloud | None = None

    def run_production(
        self, name: str, site: Site, sink: TextIO | None = None, oddities: Oddities | None = None
    ) -> Outcome:
        """Run the site's own policy, by the production code. ``sink``: the file for the event log."""
        event_log = EventLog(sink)
        decider = PlannerDriver(policy_of(site), event_log)
        outcome = self._run(name, self._setup(site), decider, RunTotals(), event_log, oddities or Oddities())
        return replace(outcome, broken=decider.broken_rules())

    def run_baseline(self, name: str, site: Site) -> tuple[Outcome, CostBounds]:
        """Run a baseline on the site's nodes. Also return the lower bounds, which count only for "fixed"."""
        setup = self._setup(site)
        may_lose_runs = any(behaviour.lost_per_hour for behaviour in setup.conditions.behaviours.values())
        demand = UnitDemand(WindowCover(site.node_types), may_lose_runs=may_lose_runs)
        decider = BASELINES[name](fixed_ranks(site, self.workload))
        outcome = self._run(name, setup, decider, RunTotals(unit_demand=demand), EventLog(), Oddities())
        return outcome, CostBounds(float(demand.cover.cost()), float(demand.work_cost()))

    def _setup(self, site: Site) -> RunSetup:
        return run_setup(site, self.workload, self.learned)

    def _run(
        self,
        name: str,
        setup: RunSetup,
        decider: Decider,
        totals: RunTotals,
        event_log: EventLog,
        oddities: Oddities,
    ) -> Outcome:
        began_s = time.perf_counter()
        event_log.write_run(name, setup.seed, setup.start_at)
        engine = ReplayEngine(setup, totals, event_log)
        engine.run(decider, self._jobs(oddities), lambda jobs: self.progress(name, jobs))
        took_s = time.perf_counter() - began_s
        return build_outcome(name, totals, events=engine.events, plans=decider.plans, took_s=took_s)

    def _jobs(self, oddities: Oddities) -> Iterator[TraceJob]:
        return islice(self.workload.read(oddities), self.jobs_max)


def run_setup(site: Site, workload: Workload, learned: LearnedCloud | None = None) -> RunSetup:
    """Build a run's setup: the site's nodes and limits, and the cloud from ``learned`` and ``[Simulation]``."""
    conditions, _ = cloud_conditions(site, learned)
    return RunSetup(
        node_types=site.node_types,
        nodes_max=site.limits.nodes_max,
        price_per_hour_max=site.limits.price_per_hour_max,
        queue_policy=site.policy.queue_policy,
        conditions=conditions,
        seed=site.simulation.seed,
        start_at=workload.start_at,
        early_release=site.policy.early_release,
    )


def fixed_ranks(site: Site, workload: Workload) -> list[int]:
    """Choose the ranks of the fixed cluster: as many processors as the traced machine had, or all that are allowed.

    Each node type has the same share of the nodes as of the slots.
    """
    types = [
        ((place + 0.5) / len(node_type.slots), node_type)
        for node_type in site.node_types
        for place in range(len(node_type.slots))
    ]
    ordered = sorted(enumerate(types, start=1), key=lambda it: (it[1][0], it[1][1].price_per_hour, it[0]))
    ranks: list[int] = []
    processors = 0
    for rank, (_, node_type) in ordered[: site.limits.nodes_max]:
        if workload.processors and processors >= workload.processors:
            break
        ranks.append(rank)
        processors += node_type.cores if workload.each is Processors.CORES else 1
    return ranks


def cost_at_wait(points: list[Outcome], other: Outcome) -> float | None:
    """Interpolate what a policy costs at the mean wait of ``other``, between its points on the Pareto front.

    Only points that serve as many jobs as ``other`` count. None if all of them have longer waits. If ``other``
    waits longer than all of them, the cheapest point counts.
    """
    wait_s = other.wait_mean_s
    front = pareto_front([it for it in points if it.serves_as_many(other)])
    if not front or front[0].wait_mean_s > wait_s:
        return None
    for before, after in pairwise(front):
        if after.wait_mean_s > wait_s:
            share = (wait_s - before.wait_mean_s) / (after.wait_mean_s - before.wait_mean_s)
            return before.cost + share * (after.cost - before.cost)
    return front[-1].cost


def pareto_front(points: list[Outcome]) -> list[Outcome]:
    """Return the points that serve the most jobs and that no other such point beats in both cost and mean wait.

    The shortest wait is first. The front is empty if no job is served.
    """
    front: list[Outcome] = []
    most = max([1, *(it.jobs_served for it in points)])
    for point in sorted(points, key=lambda it: (it.wait_mean_s, it.cost)):
        if point.jobs_served == most and (not front or point.cost < front[-1].cost):
            front.append(point)
    return front
