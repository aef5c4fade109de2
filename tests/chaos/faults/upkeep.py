"""What makes nodes due for replacement during a run, or free before their jobs end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodemanager.core.facts import ReplacementsRequested
from nodemanager.core.jobs import JobState
from nodemanager.core.records import Mark
from nodemanager.core.upkeep.rules import PARTS, fingerprint_of
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.run.run import Run
from tests.chaos.run.script import Act, pick

AGE_S = (10.0, 100.0)


def _new_image(run: Run, act: Act) -> None:
    """The site names another image from now on."""
    made_from = fingerprint_of({**dict.fromkeys(PARTS, ""), "image": act.number})
    types = tuple(replace(node_type, made_from=made_from) for node_type in run.policy.node_types)
    run.use_policy(replace(run.policy, node_types=types))


def _ages(run: Run, act: Act) -> EndFault:
    """The site limits the age of nodes for a while."""
    least_s, most_s = AGE_S
    _limit_age(run, least_s + act.amount * (most_s - least_s))
    return lambda: _limit_age(run, None)


def _limit_age(run: Run, max_age_s: float | None) -> None:
    types = tuple(replace(node_type, max_age_s=max_age_s) for node_type in run.policy.node_types)
    run.use_policy(replace(run.policy, node_types=types))


def _operator_replaces(run: Run, act: Act) -> None:
    """An operator has all nodes replaced."""
    del act
    launches = tuple(launch.id for launch in run.flux.leases.values())
    run.tell_manager(ReplacementsRequested(launches, Mark("operator", run.world.wall_at())))


def _gives_back(run: Run, act: Act) -> None:
    """A running job on several whole nodes, which is an instance, gives some of them back."""
    running = (job for job in run.flux.active_jobs() if run.flux.job_state(job) is JobState.RUN)
    shapes = run.jobs.shapes
    instances = [job for job in running if job in shapes and shapes[job].exclusive and (shapes[job].nodes or 0) > 1]
    job = pick(instances, act.amount)
    if job is not None and run.flux_is_up():
        run.upkeep.give_back(job, (act.amount * 7) % 1.0)


UPKEEP_FAULTS: Mapping[str, FaultAction] = {
    "upkeep.new_image": _new_image,
    "upkeep.ages": _ages,
    "upkeep.operator_replaces": _operator_replaces,
    "upkeep.gives_back": _gives_back,
}
