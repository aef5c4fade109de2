from __future__ import annotations

from typing import Any

import pytest

from nodemanager.core.jobs import NodeOrder
from nodemanager.flux.fluxion import QMANAGER, match_policy, node_order_of, queues_that_deny

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


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("first", NodeOrder.EMPTY_FIRST),
        ("firstnodex", NodeOrder.EMPTY_FIRST),
        ("low", NodeOrder.LEAST_USED),
        ("high", NodeOrder.MOST_FREE),
        ("lonode", NodeOrder.LOWEST),
        ("lonodex", NodeOrder.LOWEST),
        ("hinode", NodeOrder.HIGHEST),
        ("hinodex", NodeOrder.HIGHEST),
        ("locality", None),
        ("policy=low node_centric=true", None),
    ],
)
def test_each_match_policy_has_an_order_of_nodes_or_is_not_modelled(policy: str, order: NodeOrder | None) -> None:
    assert node_order_of(policy) is order
