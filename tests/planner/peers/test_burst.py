"""Which waiting jobs go to a peer without being asked to: by cost and wait, against own and new nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from nodemanager.core.elsewhere.peers import PeerOffer
from nodemanager.core.facts import PeersSeen
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.orders import BootNode, DelegateJob
from nodemanager.core.reason_text import to_sentence
from nodemanager.core.slots import TypeName
from tests.builders import WALL_AT, World, a_world, boots, nodes, orders, tasks, whole_nodes

OWNER = 0
FREE = PeerOffer("b", nodes=2, nodes_free=2, cores=16, cores_free=16, jobs_left=9)
BOOTS = {TypeName("cloud"): (60.0, 60.0, 60.0)}  # measured


def a_world_with(
    *peers: PeerOffer, refused: Mapping[JobId, frozenset[str]] | None = None, **settings: Any
) -> World:
    world = a_world(**{"bursts": True, **settings}).but(boots_s=BOOTS)
    return world.see(PeersSeen(peers, OWNER, refused=refused or {})).wait(1.0)


def sent(world: World) -> list[str]:
    return [order for order in orders(world.plan()) if order.startswith("delegate")]


def test_a_peer_that_is_free_now_beats_a_new_node_that_must_boot() -> None:
    world = a_world_with(FREE).job(whole_nodes(1), userid=OWNER)
    assert (sent(world), boots(world.plan())) == (["delegate 1 b"], [])
    (order,) = [it for it in world.plan().actions if isinstance(it, DelegateJob)]
    assert str(order.reason) == (
        "peer_chosen peer=b wait=0 s price_per_hour=0 others=new nodes: wait 60 s, 0.4 an hour"
    )
    assert world.why_job(1) == order.reason


def test_a_job_that_names_no_number_of_nodes_fits_on_a_peer_of_one_node() -> None:
    one = replace(FREE, nodes=1, nodes_free=1)
    assert sent(a_world_with(one).job(tasks(4), userid=OWNER)) == ["delegate 1 b"]
    assert not sent(a_world_with(one).job(whole_nodes(2), userid=OWNER))


def test_own_idle_nodes_come_first_and_what_was_not_taken_is_named() -> None:
    world = a_world_with(FREE).idle_node("cloud1").job(whole_nodes(1), userid=OWNER)
    assert not sent(world)
    assert world.plan().bursts.describe_not_taken(JobId(1)) == "b: wait 0 s, 0 an hour"


def test_the_reason_of_a_bought_node_names_the_peers_not_taken_with_their_figures() -> None:
    dear, away = replace(FREE, price_per_core_hour=Decimal("0.3")), PeerOffer("c", "connection refused")
    world = a_world_with(dear, away).job(tasks(4), userid=OWNER, patience_s=60.0)
    (bought,) = [it for it in world.plan().actions if isinstance(it, BootNode)]
    assert str(bought.reason) == (
        "demand node_type=cloud job_count=1 not_taken=b: wait 0 s, 1.2 an hour; c: connection refused"
    )
    assert to_sentence(bought.reason.code, bought.reason.figures) == (
        "bought for 1 job; not taken: b: wait 0 s, 1.2 an hour; c: connection refused"
    )


def test_a_job_that_waits_for_a_booting_node_has_the_ways_not_taken_beside_its_reason() -> None:
    world = a_world_with(replace(FREE, waiting=1)).job(whole_nodes(1), userid=OWNER)
    world.decide()
    world.wait(1.0)
    assert world.plan().bursts.describe_not_taken(JobId(1)) == "b: wait unknown, 0 an hour"
    assert "not_taken" not in world.why_job(1).figures, "it changes all the time, and a memo should not"


@pytest.mark.parametrize(
    ("price", "patience_s", "where"),
    [("0.05", 0.0, "b"), ("0.05", 60.0, "b"), ("0.30", 0.0, "b"), ("0.30", 60.0, "new node")],
    ids=["cheap", "cheap, and time", "dear, but now", "dear, and there is time for a new node"],
)
def test_cost_counts_among_those_that_start_within_the_patience(price: str, patience_s: float, where: str) -> None:
    world = a_world_with(replace(FREE, price_per_core_hour=Decimal(price)))
    world.job(tasks(4), userid=OWNER, patience_s=patience_s)  # 0.40 an hour on a new node, 4 x the price there
    assert (sent(world), boots(world.plan())) == ((["delegate 1 b"], []) if where == "b" else ([], ["cloud1"]),)[0]


@pytest.mark.parametrize(("behind_s", "goes"), [(30.0, True), (90.0, False)])
def test_a_busy_peer_is_weighed_by_its_forecast(behind_s: float, goes: bool) -> None:
    busy = replace(FREE, cores_free=0, nodes_free=0, waiting=1, starts_at=WALL_AT + 1.0 + behind_s)
    world = a_world_with(busy).job(whole_nodes(1), userid=OWNER)
    assert bool(sent(world)) is goes
    assert bool(boots(world.plan())) is not goes


def test_an_unknown_wait_counts_as_the_longest() -> None:
    world = a_world_with(replace(FREE, waiting=1)).job(whole_nodes(1), userid=OWNER)
    assert (sent(world), boots(world.plan())) == ([], ["cloud1"])


def test_a_job_that_the_limits_keep_from_new_nodes_goes_to_a_peer() -> None:
    world = a_world_with(FREE, nodes_max=1).job(whole_nodes(2), userid=OWNER)
    assert sent(world) == ["delegate 1 b"]


WHY_NOT = {
    "it cannot be reached": PeerOffer("b", "connection refused"),
    "it is too small": replace(FREE, cores=2),
    "it has enough of our jobs": replace(FREE, jobs_left=0),
    "it lacks the queue": replace(FREE, queues=frozenset({"debug"})),
}


@pytest.mark.parametrize("offer", WHY_NOT.values(), ids=WHY_NOT)
def test_a_peer_that_cannot_take_the_job(offer: PeerOffer) -> None:
    world = a_world_with(offer).job(tasks(4), userid=OWNER, queue="batch")
    assert (sent(world), boots(world.plan())) == ([], ["cloud1"])


def test_a_peer_that_refused_the_job_is_not_asked_again_and_the_next_one_is() -> None:
    second = replace(FREE, name="c")
    world = a_world_with(FREE, second, refused={JobId(1): frozenset({"b"})}).job(tasks(4), userid=OWNER)
    assert sent(world) == ["delegate 1 c"]


@pytest.mark.parametrize(
    "changes",
    [{"userid": 1000}, {"urgency": 0, "priority": 0}, {"state": JobState.DEPEND}, {"held_by_us": True}],
    ids=["another user's", "held", "waits for a dependency", "held by us"],
)
def test_jobs_that_stay(changes: dict[str, Any]) -> None:
    assert not sent(a_world_with(FREE).job(tasks(4), **{"userid": OWNER, **changes}))


def test_without_burst_nothing_goes() -> None:
    world = a_world_with(FREE, bursts=False).job(tasks(4), userid=OWNER)
    assert (sent(world), boots(world.plan())) == ([], ["cloud1"])


def test_what_one_job_gets_the_next_does_not_find_free() -> None:
    world = a_world_with(replace(FREE, cores=8, cores_free=8)).job(*3 * [tasks(4)], userid=OWNER)
    assert sent(world) == ["delegate 1 b", "delegate 2 b"]
    assert boots(world.plan()) == ["cloud1"], "the third would wait there for a time that nobody knows"


def test_no_order_is_given_twice_and_no_node_is_bought_for_a_job_on_its_way() -> None:
    world = a_world_with(FREE).job(nodes(1, cores=4), userid=OWNER)
    assert orders(world.decide()) == ["delegate 1 b"]
    world.wait(1.0)
    assert (orders(world.plan()), world.why_job(1).code) == ([], "sent_to_a_peer")
    world.see(PeersSeen((FREE,), OWNER, taken=frozenset({JobId(1)}))).wait(60.0).all_is_fresh().wait(1.0)
    assert (sent(world), boots(world.plan())) == ([], []), "it is there, whatever its urgency here"


def test_an_order_that_nobody_carried_out_lapses() -> None:
    world = a_world_with(FREE).job(tasks(4), userid=OWNER)
    world.decide()
    world.wait(29.0).all_is_fresh()
    assert not sent(world)
    world.wait(2.0).all_is_fresh().wait(1.0)
    assert sent(world) == ["delegate 1 b"]


def test_at_most_a_hundred_go_at_once_and_in_the_order_of_the_queue() -> None:
    large = replace(FREE, nodes=500, nodes_free=500, cores=2000, cores_free=2000, jobs_left=500)
    world = a_world_with(large).job(*120 * [tasks(1)], userid=OWNER)
    first = sent(world)
    assert (len(first), first[0], first[-1]) == (100, "delegate 1 b", "delegate 100 b")
