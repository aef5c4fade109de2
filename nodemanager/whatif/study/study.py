"""A study: one workload under one site's policy, others like it, and the baselines; and what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TextIO

from nodemanager.config.site import Site
from nodemanager.service.service import policy_of
from nodemanager.whatif.cloud.learned import Learned
from nodemanager.whatif.cloud.parameters import Figure, cloud_conditions
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.replay.engine import Decider, ReplayEngine, RunSetup
from nodemanager.whatif.replay.lower_bounds import UnitDemand, WindowCover
from nodemanager.whatif.replay.planner_driver import PlannerDriver
from nodemanager.whatif.replay.result import Outcome, build_outcome
from nodemanager.whatif.replay.totals import RunTotals
from nodemanager.whatif.workload.event_log import EventLog
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, Workload

Progress = Callable[[str, int], None]  # the run, and how many jobs have come
TELL_EVERY = 64  # jobs: what is shown, and passed on from another process


@dataclass(frozen=True, slots=True)
class CostBounds:
    """What no fleet can undercut that serves as many jobs (:mod:`bound`), in the site's currency."""

    same_starts: float  # with every job starting when it did on the fixed cluster
    work: float  # at any wait


@dataclass(slots=True)
class Study:
    """All runs of one study. ``main`` is the site as it stands."""

    site: Site
    workload: Workload
    main: Outcome
    compared: dict[str, Outcome] = field(default_factory=dict)
    differences: dict[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    swept: dict[str, Outcome] = field(default_factory=dict)
    baselines: dict[str, Outcome] = field(default_factory=dict)
    bounds: CostBounds | None = None
    oddities: Oddities = field(default_factory=Oddities)
    cloud: tuple[Figure, ...] = ()  # what the simulated cloud does, and where that is from

    @property
    def outcomes(self) -> list[Outcome]:
        """Of all runs, in the order in which they are shown."""
        return [self.main, *self.compared.values(), *self.baselines.values(), *self.swept.values()]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs policies over one workload. ``jobs_max``: only so many jobs; ``learned``: how nodes have fared."""

    workload: Workload
    progress: Progress
    jobs_max: int | None = None
    learned: Learned | None = None

    def run_production(
        self, name: str, site: Site, sink: TextIO | None = None, oddities: Oddities | None = None
    ) -> Outcome:
        """The site's own policy, by the production code."""
        journal = EventLog(sink)
        manager = PlannerDriver(policy_of(site), journal)
        return self._run(name, self._setup(site), manager, RunTotals(), journal, oddities or Oddities())

    def run_baseline(self, name: str, site: Site) -> tuple[Outcome, CostBounds]:
        """A baseline on the site's nodes; and the bounds, which are those of the fixed cluster's run."""
        setup = self._setup(site)
        loses = any(habit.lost_per_hour for habit in setup.conditions.behaviours.values())
        demand = UnitDemand(WindowCover(site.node_types), may_lose_runs=loses)
        manager = BASELINES[name](fixed_ranks(site, self.workload))
        outcome = self._run(name, setup, manager, RunTotals(unit_demand=demand), EventLog(), Oddities())
        return outcome, CostBounds(float(demand.cover.cost()), float(demand.work_cost()))

    def _setup(self, site: Site) -> RunSetup:
        return run_setup(site, self.workload, self.learned)

    def _run(
        self,
        name: str,
        setup: RunSetup,
        manager: Decider,
        totals: RunTotals,
        journal: EventLog,
        oddities: Oddities,
    ) -> Outcome:
        began_s = time.perf_counter()
        journal.write_run(name, setup.seed, setup.start_at)
        engine = ReplayEngine(setup, totals, journal)
        engine.run(manager, self._jobs(oddities), lambda jobs: self.progress(name, jobs))
        took_s = time.perf_counter() - began_s
        return build_outcome(name, totals, events=engine.events, plans=manager.plans, took_s=took_s)

    def _jobs(self, oddities: Oddities) -> Iterator[TraceJob]:
        return islice(self.workload.read(oddities), self.jobs_max)


def run_setup(site: Site, workload: Workload, learned: Learned | None = None) -> RunSetup:
    """The site's nodes and limits, and the cloud as it was learned or as ``[Simulation]`` has it."""
    conditions, _ = cloud_conditions(site, learned)
    return RunSetup(
        node_types=site.node_types,
        nodes_max=site.limits.nodes_max,
        price_per_hour_max=site.limits.price_per_hour_max,
        queue_policy=site.policy.queue_policy,
        conditions=conditions,
        seed=site.simulation.seed,
        start_at=workload.start_at,
    )


def fixed_ranks(site: Site, workload: Workload) -> list[int]:
    """The slots of the fixed cluster: each type by its share, as many as the traced machine had processors.

    All that may be at once, where nobody says how many these were.
    """
    types = [
        ((place + 0.5) / len(node_type.slots), node_type)
        for node_type in site.node_types
        for place in range(len(node_type.slots))
    ]
    in_turn = sorted(enumerate(types, start=1), key=lambda it: (it[1][0], it[1][1].price_per_hour, it[0]))
    ranks: list[int] = []
    processors = 0
    for rank, (_, node_type) in in_turn[: site.limits.nodes_max]:
        if workload.processors and processors >= workload.processors:
            break
        ranks.append(rank)
        processors += node_type.cores if workload.each is Processors.CORES else 1
    return ranks


def cost_at_wait(points: list[Outcome], other: Outcome) -> float | None:
    """What a policy costs at the mean wait of another one, between its points on the Pareto front.

    Only points that serve as many jobs count. None where none of them waits so little. At a wait that exceeds all
    of them the cheapest counts: nobody has to use the patience that is there.
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
    """Of those that serve the most jobs, those that no other one beats in both cost and mean wait.

    The shortest wait comes first; there are none where no job is served.
    """
    front: list[Outcome] = []
    most = max([1, *(it.jobs_served for it in points)])
    for point in sorted(points, key=lambda it: (it.wait_mean_s, it.cost)):
        if point.jobs_served == most and (not front or point.cost < front[-1].cost):
            front.append(point)
    return front
