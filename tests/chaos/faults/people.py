"""What users and operators do during a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from random import Random

from nodemanager.core.facts import DecisionsPaused, DecisionsResumed, HoldPlaced, NodeReleased, RetirementRequested
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.nodes import LaunchId
from nodemanager.core.records import Mark
from nodemanager.simulation.odd_jobspecs import odd_jobspec
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import HOSTILE_USER, Act, pick

HOSTILE_URGENCY = 1
ODD_AT_ONCE_MAX = 3
AGAIN_S = 5.0
CUT_TO = Decimal("0.001"), Decimal("0.01"), Decimal("0.05")


def _pending(run: Run) -> list[JobId]:
    return [job for job in run.flux.active_jobs() if run.flux.job_state(job) is JobState.SCHED]


def _cancels(run: Run, act: Act) -> None:
    job = pick(run.flux.active_jobs(), act.amount)
    if job is not None and run.flux_is_up():
        run.flux.cancel(job)
        if run.peers is not None:
            run.peers.truth.cancelled.add(job)


def _writes_odd_jobs(run: Run, act: Act) -> EndFault | None:
    """Submit a few odd jobs, which the scheduler never starts. Cancel them when the faults stop."""
    if not run.flux_is_up():
        return None
    draws = Random(f"{run.script.seed}/{act.number}/odd")
    jobs = [
        run.flux.submit_unscheduled(odd_jobspec(draws), urgency=HOSTILE_URGENCY, userid=HOSTILE_USER)
        for _ in range(draws.randint(1, ODD_AT_ONCE_MAX))
    ]

    def end() -> None:
        if run.flux_is_up():
            for job in jobs:
                run.flux.cancel(job)
        else:
            run.world.after(AGAIN_S, end)

    return end


def _holds_a_job(run: Run, act: Act) -> None:
    """Hold a job for good: it is no demand, and is still pending at the end.

    One that the manager holds already is left out: to hold it changes nothing that Flux shows.
    """
    job = pick([job for job in _pending(run) if job not in run.flux.held_jobs], act.amount)
    if job is not None and run.flux_is_up():
        run.flux.set_urgency(job, 0)
        run.jobs.held[job] = run.world.now_s


def _operator_drains(run: Run, act: Act) -> EndFault | None:
    rank = pick(sorted(run.flux.rank_of.values()), act.amount)
    if rank is None or run.flux.drain_reason(rank) is not None:
        return None
    run.flux.drain(rank, "looked at")

    def end() -> None:
        if run.flux.drain_reason(rank) == "looked at":
            run.flux.undrain(rank)

    return end


def _mark(run: Run) -> Mark:
    return Mark("operator", run.world.wall_at())


def _leased(run: Run, act: Act) -> LaunchId | None:
    launch = pick(sorted(run.flux.leases.values(), key=lambda launch: launch.rank), act.amount)
    return launch.id if launch is not None else None


def _operator_holds(run: Run, act: Act) -> EndFault | None:
    launch = _leased(run, act)
    if launch is None:
        return None
    run.tell_manager(HoldPlaced(launch, _mark(run)))
    return lambda: run.tell_manager(NodeReleased(launch))


def _operator_retires(run: Run, act: Act) -> None:
    launch = _leased(run, act)
    if launch is not None:
        run.tell_manager(RetirementRequested(launch, _mark(run)))


def _operator_pauses(run: Run, act: Act) -> EndFault:
    del act
    run.tell_manager(DecisionsPaused(_mark(run)))
    return lambda: run.tell_manager(DecisionsResumed())


def _stops_the_queue(run: Run, act: Act) -> EndFault:
    del act
    run.flux.stop_queue()
    return run.flux.start_queue


def _cuts_a_budget(run: Run, act: Act) -> EndFault | None:
    """Cut the budget of a cloud for a while to so little that it is spent soon, or already."""
    owner = pick(sorted(it for it in run.policy.budget_owners if it), act.amount)
    if owner is None:
        return None
    key = next(it for it in run.policy.budgets if it[0] == owner)
    before, cut = run.policy.budgets[key], CUT_TO[int(act.amount * 1000) % len(CUT_TO)]
    run.use_policy(replace(run.policy, budgets={**run.policy.budgets, key: cut}))

    def end() -> None:
        if not run.peace:  # which raises all budgets itself
            run.use_policy(replace(run.policy, budgets={**run.policy.budgets, key: before}))

    return end


PEOPLE_FAULTS: Mapping[str, FaultAction] = {
    "user.cancels": _cancels,
    "user.writes_odd_jobs": _writes_odd_jobs,
    "user.holds_a_job": _holds_a_job,
    "operator.drains": _operator_drains,
    "operator.holds": _operator_holds,
    "operator.retires": _operator_retires,
    "operator.pauses": _operator_pauses,
    "operator.stops_the_queue": _stops_the_queue,
    "operator.cuts_a_budget": _cuts_a_budget,
}
