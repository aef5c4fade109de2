"""The simulator proves nothing unless it can fail: each rule broken on purpose is caught within a few seeds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog

from nodemanager.actors import manager
from nodemanager.facts import CloudCallFailed, FailureKind, NodeDestroyed, NodeDrained
from nodemanager.fleet import observe, pairing, retirement, sightings, supply
from nodemanager.fleet.policy import Policy
from nodemanager.fleet.snapshot import Node, Snapshot
from nodemanager.fleet.supply import Market
from nodemanager.model import NodeState, Reason
from nodemanager.simulation import scenario
from nodemanager.simulation.scenario import Scenario

SEEDS_MAX = 20

Patch = pytest.MonkeyPatch


def without_a_second_look(patch: Patch) -> None:
    def nothing_forbids(node: Node, rank: Any) -> Reason | None:
        return None

    patch.setattr(retirement, "second_look", nothing_forbids)


def believing_the_first_look(patch: Patch) -> None:
    def as_it_was(node: Node, fact: NodeDrained, _: Snapshot) -> Node:
        was = node.rank
        if was is not None:
            reason = sightings.drain_text(node.id)
            was = replace(was, allocated=False, schedulable=False, drain_reason=reason)
        return replace(node, call=None, drained_s=fact.started_s, rank=was)

    patch.setattr(sightings, "drained", as_it_was)


def believing_one_list(patch: Patch) -> None:
    def hasty(**settings: Any) -> Policy:
        return Policy(**{**settings, "absences": 1, "create_grace_s": 0.0})

    def never_too_many(snapshot: Snapshot, lacking: list[Node]) -> bool:
        return False

    patch.setattr(scenario, "Policy", hasty)
    patch.setattr(sightings, "_too_many_at_once", never_too_many)


def taking_a_lost_reply_for_a_refusal(patch: Patch) -> None:
    create_failed = sightings._create_failed

    def as_refused(snapshot: Snapshot, node: Node, fact: CloudCallFailed, policy: Policy) -> Snapshot:
        return create_failed(snapshot, node, replace(fact, kind=FailureKind.TRANSIENT), policy)

    patch.setattr(sightings, "_create_failed", as_refused)


def buying_two_too_many(patch: Patch) -> None:
    market = supply.market

    def generous(*arguments: Any) -> Market:
        made = market(*arguments)
        made.nodes_left += 2
        return made

    patch.setattr(supply, "market", generous)


def taking_accepted_for_gone(patch: Patch) -> None:
    destroyed = observe._destroyed

    def gone_at_once(snapshot: Snapshot, fact: NodeDestroyed, policy: Policy) -> Snapshot:
        snapshot = destroyed(snapshot, fact, policy)
        node = snapshot.nodes.get(fact.launch) if fact.launch is not None else None
        if node is None:
            return snapshot
        return replace(
            snapshot, nodes={**snapshot.nodes, node.id: replace(node, state=NodeState.GONE, retry_s=0.0)}
        )

    patch.setattr(observe, "_destroyed", gone_at_once)


def taking_strangers_for_ours(patch: Patch) -> None:
    pair = pairing.pair

    def greedy(nodes: Any, listed: Any, cluster: str, cluster_uuid: str) -> pairing.Pairing:
        made = pair(nodes, listed, cluster, cluster_uuid)
        untagged = tuple(node for node in listed if node.identity is None)
        return replace(made, strays=made.strays + untagged)

    patch.setattr(sightings, "pair", greedy)


def taking_no_notice_of_a_new_division(patch: Patch) -> None:
    patch.setattr(manager, "divided", lambda policy, _division: policy)


@pytest.mark.parametrize(
    "broken",
    [
        without_a_second_look,
        believing_the_first_look,
        believing_one_list,
        taking_a_lost_reply_for_a_refusal,
        buying_two_too_many,
        taking_accepted_for_gone,
        taking_strangers_for_ours,
        taking_no_notice_of_a_new_division,
    ],
)
def test_a_broken_rule_is_caught(broken: Callable[[Patch], None], monkeypatch: Patch) -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    broken(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            Scenario(seed).run()
        except AssertionError:
            return
    pytest.fail(f"{broken.__name__}: not caught in {SEEDS_MAX} seeds")
