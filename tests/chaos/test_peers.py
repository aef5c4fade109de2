"""Runs with other instances in which jobs may run: every third seed of ``flux-node-manager chaos``.

``test_seeds`` looks for seeds that break a rule. Here each rule is broken on purpose, and a seed catches it. Each
mutation is listed with a seed that caught it. That seed is tried first, and after a change of the simulator others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodemanager.actors.delegation import stepper
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.delegation import next_step
from nodemanager.delegation.jobs import SUBMITTED, Phase
from nodemanager.delegation.next_step import AskPeer, NextStep, Sides, SubmitTo, Wait, record_refusal
from nodemanager.delegation.ports import ChangeUrgency, PostEvent, ShowFinished, Validate
from nodemanager.delegation.relay import OutputRelay
from tests.chaos.command import PEERS_EVERY, run_seed, scenario_for_seed, silence_logs
from tests.chaos.run.script import PEER_JOB, PEER_KINDS, PEER_KNOBS, draw_script
from tests.chaos.scenario import Scenario

SEEDS_MAX = 200
WITH_PEERS = range(PEERS_EVERY // 2, SEEDS_MAX, PEERS_EVERY)

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _quiet() -> None:
    silence_logs()


def test_every_third_seed_has_peers() -> None:
    assert [bool(scenario_for_seed(seed).script.peers) for seed in range(6)] == [False, True, False] * 2


def test_every_kind_of_fault_of_peers_happens() -> None:
    drawn = {act.kind for seed in range(30) for act in draw_script(seed, peers=True).acts}
    assert drawn >= {PEER_JOB, *PEER_KNOBS, *PEER_KINDS}


def test_without_faults_every_job_for_a_peer_runs_there_once() -> None:
    for seed in WITH_PEERS[:3]:
        scenario = Scenario(draw_script(seed, peers=True).without_faults())
        scenario.run()
        assert scenario.peers is not None
        truth, home = scenario.peers.truth, scenario.peers.home
        asked = [job for job in home.jobs.values() if "dependencies" in job.submitted["attributes"]["system"]]
        assert asked
        assert all(job.ended and not job.failed for job in asked)
        assert all(not truth.starts[job.id][0].startswith("home") for job in asked)


def test_the_same_seed_gives_the_same_run() -> None:
    assert scenario_for_seed(WITH_PEERS[0]).run() == scenario_for_seed(WITH_PEERS[0]).run()


def test_jobs_go_to_peers_also_without_being_asked_and_refused_ones_are_tried_elsewhere() -> None:
    seen: Counter[str] = Counter()
    for seed in WITH_PEERS[:12]:
        scenario = scenario_for_seed(seed)
        scenario.run()
        assert scenario.peers is not None
        for job in scenario.peers.home.jobs.values():
            seen.update(it.name for it in job.events if it.name.startswith("delegate::"))
    assert seen.keys() == {f"delegate::{what}" for what in ("submit", "start", "take", "return", "refused")}


# --- mutations --------------------------------------------------------------------------------------------


def mutate(patch: Patch, change: Callable[[NextStep, Sides], NextStep]) -> None:
    """Replace the next step of every job by what ``change`` makes of it."""
    right = next_step.next_step
    patch.setattr(stepper, "next_step", lambda sides: change(right(sides), sides))


def running_copies_that_are_not_on_record(patch: Patch) -> None:
    def hasty(step: NextStep, sides: Sides) -> NextStep:
        for view in sides.peers.values():
            for copy in view.copies:
                if sides.proxy.placed is None and not copy.urgency and copy.phase.value < Phase.ENDING.value:
                    return AskPeer(view.name, ChangeUrgency(copy.remote, 16))
        return step

    mutate(patch, hasty)


def starting_a_lost_job_elsewhere(patch: Patch) -> None:
    patch.setattr(
        next_step,
        "_look_up_or_give_up",
        lambda job, view, remote: record_refusal(job, 0.0, view.name, f"it lost {remote}"),
    )


def taking_a_silent_peer_for_one_that_refuses(patch: Patch) -> None:
    def refused(step: NextStep, sides: Sides) -> NextStep:
        placed = sides.proxy.placed
        if placed is None or not isinstance(step, Wait) or step.reason.code is not Code.PEER_UNREACHABLE:
            return step
        return record_refusal(sides.proxy.id, sides.now_at, placed.peer, "it does not answer")

    mutate(patch, refused)


def showing_success_whatever_happened(patch: Patch) -> None:
    patch.setattr(next_step, "_end_as", lambda job, *_: ShowFinished(job, 0))


def leaving_the_copies_of_ended_jobs(patch: Patch) -> None:
    patch.setattr(next_step, "_stray_copy", lambda _: None)


def not_looking_for_a_copy_before_a_submission(patch: Patch) -> None:
    def blind(step: NextStep, sides: Sides) -> NextStep:
        submits = sides.proxy.placed is None and sides.chosen is not None and _records_a_copy(step)
        known = sum(len(view.copies) for view in sides.peers.values())
        return SubmitTo(sides.chosen) if submits and sides.chosen is not None and known < 2 else step

    mutate(patch, blind)
    patch.setattr(next_step, "_stray_copy", lambda _: None)


def _records_a_copy(step: NextStep) -> bool:
    return isinstance(step, PostEvent) and step.event.name == SUBMITTED


def not_reminding_alloc_bypass_after_a_restart(patch: Patch) -> None:
    def forgetful(step: NextStep, sides: Sides) -> NextStep:
        after_a_restart = isinstance(step, Validate) and sides.home_started_at > sides.proxy.submitted_at
        return Wait(because(Code.DELEGATED_STARTING, peer="it")) if after_a_restart else step

    mutate(patch, forgetful)


def letting_a_job_run_here_and_there(patch: Patch) -> None:
    right = next_step._keep_from_running_here

    def careless(sides: Sides) -> NextStep | None:
        return right(replace(sides, proxy=replace(sides.proxy, inert=True, urgency=0)))

    patch.setattr(next_step, "_keep_from_running_here", careless)


def passing_on_output_twice(patch: Patch) -> None:
    patch.setattr(OutputRelay, "take", without_counting(OutputRelay.take))


def without_counting(take: Any) -> Any:
    def again(relay: Any, key: str, events: Any) -> str:
        relay._skip = dict.fromkeys(relay._skip, 0)
        return str(take(relay, key, events))

    return again


# Each with a seed that caught it.
MUTATIONS: dict[Callable[[Patch], None], int] = {
    running_copies_that_are_not_on_record: 1,
    starting_a_lost_job_elsewhere: 1,
    taking_a_silent_peer_for_one_that_refuses: 1,
    showing_success_whatever_happened: 1,
    leaving_the_copies_of_ended_jobs: 1,
    not_looking_for_a_copy_before_a_submission: 1,
    not_reminding_alloc_bypass_after_a_restart: 22,
    letting_a_job_run_here_and_there: 22,
    passing_on_output_twice: 1,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", MUTATIONS)
def test_a_broken_rule_is_caught(broken: Callable[[Patch], None], monkeypatch: Patch) -> None:
    broken(monkeypatch)
    seeds = [MUTATIONS[broken], *WITH_PEERS]
    caught = next(((seed, found.rule) for seed in seeds if (found := run_seed(seed)) is not None), None)
    assert caught is not None, f"{broken.__name__}: none of {len(WITH_PEERS)} seeds catches it"
    if caught[0] != seeds[0]:
        print(f"{broken.__name__}: list seed {caught[0]} with it, to find it at once")
