"""The contract of cloud ports on node types of several sizes: what refuses one size lets the next be bought."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.core.nodes import FailureKind, NodeState, QuotaScope
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market, NodeType, Size
from nodemanager.planner import billing
from nodemanager.planner.snapshot import Scope
from tests.builders import World, a_policy, a_snapshot, tasks
from tests.cloud.fleet_loop import FleetLoop
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, SIZES, SUBJECTS, CloudSubject, a_type

NEXT, FIRST = SIZES  # the smaller one is the dearer: a quota in cores refuses the larger one only
PRICES = {FIRST: Decimal("0.10"), NEXT: Decimal("0.20")}


@pytest.fixture(params=SUBJECTS)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudSubject]:
    subject = SUBJECTS[request.param](tmp_path / "cloud")
    try:
        if not subject.tells_sizes:
            pytest.skip("this provider has no sizes")
        yield subject
    finally:
        subject.close()


def of_two_sizes() -> NodeType:
    sizes = tuple(Size(name, Market.ON_DEMAND, price) for name, price in PRICES.items())
    return replace(a_type(), size=FIRST, price_per_hour=PRICES[FIRST], sizes=sizes)


def a_loop(cloud: CloudSubject, node_type: NodeType | None = None) -> FleetLoop:
    """The planner and the cloud's actors with one job, whose node may be bought as either size."""
    policy = replace(a_policy(node_type or of_two_sizes()), cluster=CLUSTER, cluster_uuid=CLUSTER_UUID)
    world = World(policy, a_snapshot(policy)).job(tasks(2))
    return FleetLoop(world, cloud.another_port, step_s=1.0)


def bought(loop: FleetLoop) -> list[tuple[str, NodeState]]:
    """Size and state of each node."""
    return [(node.launch.size, node.state) for node in loop.world.snapshot.nodes.values()]


def listed(cloud: CloudSubject) -> list[str]:
    return [node.size for node in cloud.standing()]


def run_until_only(loop: FleetLoop, size: str, cloud: CloudSubject) -> None:
    cloud.wait(
        lambda: bought(loop.run(1)) == [(size, NodeState.BOOTING)] and listed(cloud) == [size],
        f"a single node, a {size}",
    )


def test_the_cheapest_size_is_bought_and_listed(cloud: CloudSubject) -> None:
    loop = a_loop(cloud)
    run_until_only(loop, FIRST, cloud)
    assert billing.fleet_price_per_hour(loop.world.snapshot, loop.world.policy) == PRICES[FIRST]


def test_a_shortage_of_one_size_is_told_and_the_next_one_is_bought(cloud: CloudSubject) -> None:
    with cloud.short_of(FIRST):
        loop = a_loop(cloud)
        run_until_only(loop, NEXT, cloud)
        (block,) = loop.world.snapshot.learned.blocks.items()
    assert (block[0].size, block[0].market, block[1].kind) == (FIRST, Market.ON_DEMAND, FailureKind.CAPACITY)
    assert billing.fleet_price_per_hour(loop.world.snapshot, loop.world.policy) == PRICES[NEXT]


def of_two_markets() -> NodeType:
    """Two spot sizes, and the same two on demand, which are dearer."""
    spot = tuple(Size(name, Market.SPOT, price / 4) for name, price in PRICES.items())
    of = of_two_sizes()
    return replace(of, market=Market.SPOT, price_per_hour=spot[0].price_per_hour, sizes=(*spot, *of.sizes))


def test_without_spot_capacity_of_any_size_the_cheapest_is_bought_on_demand(cloud: CloudSubject) -> None:
    with cloud.short_of_spot():
        loop = a_loop(cloud, of_two_markets())
        run_until_only(loop, FIRST, cloud)
        (node,) = loop.world.snapshot.nodes.values()
        assert node.launch.market is Market.ON_DEMAND
        blocked = {(it.size, it.market): of.kind for it, of in loop.world.snapshot.learned.blocks.items()}
        assert blocked == {(size, Market.SPOT): FailureKind.CAPACITY for size in PRICES}
        # Both blocks are known now: a node for another job is bought on demand at once.
        loop.world.job(tasks(2))
        cloud.wait(lambda: len(bought(loop.run(1))) == 2 == len(listed(cloud)), "a second node")
    assert {it.launch.market for it in loop.world.snapshot.nodes.values()} == {Market.ON_DEMAND}
    assert billing.fleet_price_per_hour(loop.world.snapshot, loop.world.policy) == 2 * PRICES[FIRST]


def test_a_quota_of_one_size_is_told_and_the_next_one_is_bought(cloud: CloudSubject) -> None:
    with cloud.at_quota_of(FIRST):
        loop = a_loop(cloud)
        run_until_only(loop, NEXT, cloud)
    assert list(loop.world.snapshot.learned.quotas) == [Scope(of_two_sizes().name, size=FIRST)]
    assert loop.world.snapshot.learned.blocks == {}
    assert billing.fleet_price_per_hour(loop.world.snapshot, loop.world.policy) == PRICES[NEXT]


def test_a_quota_says_that_it_concerns_the_size_and_makes_nothing(cloud: CloudSubject) -> None:
    with cloud.at_quota_of(FIRST), pytest.raises(CloudError) as failed:
        cloud.port.create(cloud.launch(), of_two_sizes())
    assert (failed.value.kind, failed.value.quota_scope) == (FailureKind.QUOTA, QuotaScope.TYPE)
    assert cloud.port.list_nodes() == ()


@pytest.mark.parametrize("refusing", ["short_of", "at_quota_of"])
def test_a_size_that_is_to_be_had_again_serves_the_next_launch(cloud: CloudSubject, refusing: str) -> None:
    refused: AbstractContextManager[None] = getattr(cloud, refusing)(FIRST)
    with refused:
        loop = a_loop(cloud)
        run_until_only(loop, NEXT, cloud)
    made = cloud.port.create(cloud.launch("later", "node-2"), of_two_sizes())
    sizes = {node.provider_id: node.size for node in cloud.port.list_nodes()}
    assert sizes[made.provider_id] == FIRST
