"""Which orders one call carries out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.actors.manager import gather_orders
from nodemanager.core.nodes import LaunchId, ProviderId, launch_id
from nodemanager.core.orders import CreateNode, DestroyNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.core.slots import Market, Rank, SlotName
from tests.contract.cloud_subjects import a_launch, a_type


def a_create(
    number: int, *, plan: str = "p1", zone: str = "", size: str = "s", market: Market = Market.ON_DEMAND
) -> CreateNode:
    slot = SlotName(f"node-{number}")
    launch = replace(a_launch(), id=launch_id(slot, plan), slot=slot, rank=Rank(number), zone=zone)
    return CreateNode(launch, replace(a_type(), size=size, market=market))


def a_destroy(number: int) -> DestroyNode:
    return DestroyNode(LaunchId(f"node-{number}-p1"), ProviderId(f"i-{number}"), because(Code.STOPPING))


creates = st.builds(
    a_create,
    st.integers(1, 5),
    plan=st.sampled_from(["p1", "p2"]),
    zone=st.sampled_from(["", "a", "b"]),
    size=st.sampled_from(["s", "l"]),
    market=st.sampled_from(Market),
)
destroys = st.builds(a_destroy, st.integers(1, 5))


@given(st.lists(creates | destroys, max_size=20), st.integers(1, 6), st.integers(1, 6))
def test_every_order_is_in_one_call_and_a_call_creates_only_what_differs_by_slot(
    orders: list[CreateNode | DestroyNode], nodes_per_create: int, nodes_per_destroy: int
) -> None:
    calls = list(gather_orders(orders, nodes_per_create, nodes_per_destroy))
    assert sorted((order for call in calls for order in call), key=repr) == sorted(orders, key=repr)
    for call in calls:
        of_creates = [order for order in call if isinstance(order, CreateNode)]
        assert not of_creates or len(of_creates) == len(call)
        assert len(call) <= (nodes_per_create if of_creates else nodes_per_destroy)
        assert len({(it.node_type, it.launch.zone, it.launch.id.partition("-p")[2]) for it in of_creates}) <= 1


def test_calls_are_as_full_as_they_may_be() -> None:
    orders = [a_create(number) for number in range(1, 8)]
    assert [len(call) for call in gather_orders(orders, 3, 1)] == [3, 3, 1]


def test_an_adopted_launch_is_created_by_itself() -> None:
    odd = replace(a_create(1), launch=replace(a_launch(), id=LaunchId("of-an-older-manager")))
    assert sorted(len(call) for call in gather_orders([odd, a_create(2), a_create(3)], 10, 10)) == [1, 2]
