from __future__ import annotations

from typing import Any

import pytest

from nodemanager.flux.fluxion import QMANAGER, match_policy, queues_that_deny

FLUXION = {"mods": [{"name": "sched-fluxion-resource", "services": []}, {"name": QMANAGER, "services": ["sched"]}]}
SIMPLE = {"mods": [{"name": "sched-simple", "services": ["sched"]}]}


@pytest.mark.parametrize(
    ("config", "queues"),
    [
        ({}, ("default",)),
        ({QMANAGER: {"queue-policy": "fcfs"}}, ("default",)),
        ({QMANAGER: {"queue-policy": "easy"}}, ()),
        ({QMANAGER: {"queue-policy": "conservative"}, "queues": {"batch": {}}}, ()),
        ({"queues": {"batch": {}, "debug": {}}}, ("batch", "debug")),
        ({QMANAGER: {"queue-policy-per-queue": "batch:easy"}, "queues": {"batch": {}, "debug": {}}}, ("debug",)),
        (
            {
                QMANAGER: {"queue-policy": "hybrid", "queue-policy-per-queue": "debug:fcfs"},
                "queues": {"batch": {}, "debug": {}},
            },
            ("debug",),
        ),
        ({QMANAGER: {"queue-policy": "esay"}}, ("default",)),
        ({QMANAGER: "odd", "queues": 5}, ("default",)),
    ],
)
def test_the_queues_in_which_jobs_do_not_wait_for_nodes(config: dict[str, Any], queues: tuple[str, ...]) -> None:
    assert queues_that_deny(FLUXION, config) == queues


def test_only_fluxion_denies() -> None:
    assert queues_that_deny(SIMPLE, {QMANAGER: {"queue-policy": "fcfs"}}) == ()


def test_what_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match=r"module\.list\.mods"):
        queues_that_deny({"mods": 5}, {})


@pytest.mark.parametrize(("params", "policy"), [({"policy": "lonodex"}, "lonodex"), ({"policy": None}, "first")])
def test_the_policy_by_which_fluxion_chooses_nodes(params: dict[str, Any], policy: str) -> None:
    assert match_policy({"params": params}) == policy
