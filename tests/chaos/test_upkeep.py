"""Runs with all of upkeep on: every fourth seed of ``flux-node-manager chaos``.

``test_seeds`` looks for seeds that break a rule. Here each rule is broken on purpose, and a seed catches it. Each
mutation is listed with a seed that caught it. That seed is tried first, and after a change of the simulator others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.slots import Billing, Tariff
from nodemanager.core.upkeep.windows import is_open, next_change_at
from nodemanager.planner import billing, brain, consolidation, free_room, node_steps, plan, upkeep
from nodemanager.simulation.flux.job_manager import JobManager
from tests.chaos.command import UPKEEP_EVERY, run_seed, scenario_for_seed, silence_logs
from tests.chaos.run.script import UPKEEP_KINDS, draw_script
from tests.chaos.run.site import START_AT, chaos_policy, limits_at

SEEDS_MAX = 200
WITH_UPKEEP = range(UPKEEP_EVERY - 1, SEEDS_MAX, UPKEEP_EVERY)

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _quiet() -> None:
    silence_logs()


def test_every_fourth_seed_has_all_of_upkeep_on() -> None:
    assert [scenario_for_seed(seed).script.upkeep for seed in range(8)] == [False, False, False, True] * 2


def test_jobs_give_nodes_back_and_the_slots_are_used_again_and_data_is_said_late() -> None:
    scenarios = [scenario_for_seed(seed) for seed in WITH_UPKEEP[:12]]
    for scenario in scenarios:
        scenario.run()
    truths = [scenario.upkeep for scenario in scenarios]
    assert sum(len(truth.gave_back) for truth in truths) > 5
    assert sum(truth.used_again for truth in truths) > 3
    assert sum(truth.not_refilled for truth in truths) > 0
    assert sum(truth.said_late for truth in truths) > 20
    assert sum(len(truth.prepaid) for truth in truths) > 5


def test_every_kind_of_fault_of_upkeep_happens() -> None:
    drawn = {act.kind for seed in range(10) for act in draw_script(seed, upkeep=True).acts}
    assert drawn >= {*UPKEEP_KINDS, "upkeep.new_image", "upkeep.ages", "upkeep.operator_replaces"}


@pytest.mark.parametrize("seed", WITH_UPKEEP[:20])
def test_schedules_open_and_close_within_the_run(seed: int) -> None:
    script = draw_script(seed, upkeep=True)
    policy = chaos_policy(script)
    for schedule in policy.upkeep.schedules:
        assert START_AT - 60 <= next_change_at(schedule.windows, START_AT) <= START_AT + 160
        assert not is_open(schedule.windows, START_AT + 300)
    assert limits_at(script, START_AT + 300) == (policy.limits.nodes_max, policy.limits.price_per_hour_max)


# --- rules that are broken on purpose ---


def not_waiting_for_data(patch: Patch) -> None:
    patch.setattr(node_steps, "why_held_for_data", lambda *_: None)


def taking_all_ranks_of_a_job_that_gave_one_back(patch: Patch) -> None:
    def all_of_them(manager: JobManager) -> Any:
        return {grant.rank: job.id for job in manager._giving_back.values() for grant in job.grants}

    patch.setattr(JobManager, "given_back", all_of_them)


def taking_nodes_that_no_job_gave_back(patch: Patch) -> None:
    def leaves(manager: JobManager) -> Any:
        """All ranks but the first of each running job that holds whole nodes, as if it had given them back."""
        running = [job for job in manager._active.values() if job.started]
        grants = [(job.id, it) for job in running for it in sorted(job.grants, key=lambda it: it.rank)[1:]]
        cores = {rank: it.cores for rank, it in manager._pool.ranks.items()}
        return {it.rank: id_ for id_, it in grants if it.cores.bit_count() == cores[it.rank]}

    patch.setattr(JobManager, "given_back", leaves)


def taking_the_first_rank_of_a_job_that_gave_others_back(patch: Patch) -> None:
    def first(manager: JobManager) -> Any:
        giving = (job for job in manager._giving_back.values() if job.grants)
        return {min(it.rank for it in job.grants): job.id for job in giving}

    patch.setattr(JobManager, "given_back", first)


def emptying_more_than_may_be(patch: Patch) -> None:
    patch.setattr(consolidation, "takes_no_more", lambda _: False)


def emptying_dear_nodes_whose_jobs_need_them(patch: Patch) -> None:
    patch.setattr(free_room._Search, "_is_suited", lambda *_: True)


def replacing_more_than_may_be(patch: Patch) -> None:
    patch.setattr(upkeep._Turns, "_why_no_turn", lambda *_: None)


def ignoring_schedules(patch: Patch) -> None:
    patch.setattr(brain, "scheduled_policy", lambda policy, _wall_at: policy)


def taking_more_nodes_for_prepaid(patch: Patch) -> None:
    patch.setattr(plan, "prepaid_left", lambda *_: {"large": 9})


def charging_for_prepaid_nodes(patch: Patch) -> None:
    patch.setattr(billing, "PREPAID", Tariff(Decimal(300), Billing(1.0)))


MUTATIONS: dict[Callable[[Patch], None], int] = {
    not_waiting_for_data: 7,
    taking_all_ranks_of_a_job_that_gave_one_back: 23,
    taking_nodes_that_no_job_gave_back: 3,
    taking_the_first_rank_of_a_job_that_gave_others_back: 23,
    emptying_more_than_may_be: 71,
    emptying_dear_nodes_whose_jobs_need_them: 23,
    replacing_more_than_may_be: 11,
    ignoring_schedules: 35,
    taking_more_nodes_for_prepaid: 27,
    charging_for_prepaid_nodes: 3,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", MUTATIONS)
def test_a_broken_rule_is_caught(broken: Callable[[Patch], None], monkeypatch: Patch) -> None:
    broken(monkeypatch)
    seeds: Collection[int] = [MUTATIONS[broken], *WITH_UPKEEP]
    caught_by = next((seed for seed in seeds if run_seed(seed) is not None), None)
    assert caught_by is not None, f"{broken.__name__}: no seed of {WITH_UPKEEP} catches it"
    if caught_by != MUTATIONS[broken]:
        print(f"{broken.__name__}: list seed {caught_by} with it, to find it at once")
