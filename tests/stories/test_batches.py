"""A burst of jobs gets its nodes by few calls, and a provider that throttles is not asked faster than it allows."""

from __future__ import annotations

from dataclasses import replace

from nodemanager.planner.policy import Calls
from nodemanager.simulation.time.world import World
from tests.benchmarks.burst_world import Burst
from tests.cloud.ec2.moto_faults import InstanceBucket

NODES = 60
CALLS = Calls(creates_per_s=2.0, creates_burst=1_000, nodes_per_create=25, nodes_per_destroy=25)


def test_a_burst_takes_few_calls_to_come_and_few_to_leave() -> None:
    burst = Burst(NODES, CALLS, run_s=60.0)
    burst.submit()
    burst.until(lambda: burst.count_joined() == NODES, 30.0)
    assert sorted(count for _, count in burst.provider.ordered) == [10, 25, 25]
    assert burst.provider.bucket.throttled == 0
    burst.until(lambda: burst.count_standing() == 0, 900.0, step_s=1.0)
    assert burst.provider.destroy_calls <= 6
    assert len(burst.provider.bill()) == NODES, "each launch got exactly one node"


def test_calls_are_paced_as_the_provider_takes_them() -> None:
    small = replace(CALLS, nodes_per_create=5, create_calls_per_s=2.0, create_calls_burst=5.0)
    burst = Burst(NODES, small)
    submitted_s = burst.submit()
    burst.until(lambda: burst.count_joined() == NODES, 60.0)
    assert burst.provider.bucket.throttled == 0
    assert [count for _, count in burst.provider.ordered] == [5] * (NODES // 5)
    last_s, _ = burst.provider.ordered[-1]
    assert last_s - submitted_s < 15.0, "five calls at once, and seven at two a second"


def _drained(world: World) -> InstanceBucket:
    """The bucket of an account that others use too."""
    return InstanceBucket(lambda: world.now_s, size=20.0)


def test_an_account_that_others_have_drained_throttles_each_call_once_and_no_smaller_one_after_it() -> None:
    burst = Burst(NODES, CALLS, _drained)
    burst.submit()
    burst.until(lambda: burst.count_joined() == NODES, 200.0)
    calls_at_once = 3  # 25, 25 and 10 nodes are under way before the first answer
    assert burst.provider.bucket.throttled <= calls_at_once
    last_s, _ = burst.provider.ordered[-1]
    first_s, _ = burst.provider.ordered[0]
    assert last_s - first_s < 1.5 * NODES / 2.0, "as fast as the bucket refills"
    assert len(burst.provider.bill()) == NODES


def test_without_batches_each_node_has_a_call_of_its_own() -> None:
    burst = Burst(10, replace(CALLS, nodes_per_create=1, nodes_per_destroy=1), run_s=60.0)
    burst.submit()
    burst.until(lambda: burst.count_joined() == 10, 200.0)
    assert {count for _, count in burst.provider.ordered} == {1}


def test_a_partial_batch_leaves_no_launch_without_an_end() -> None:
    burst = Burst(NODES, CALLS)
    burst.provider.faults.capacity = 40
    burst.submit()
    burst.until(lambda: burst.count_joined() == 40, 60.0)
    burst.until(lambda: len(burst.flux.leases) == 40, 60.0)
    burst.provider.faults.capacity = None
    burst.until(lambda: burst.count_joined() == NODES, 900.0, step_s=1.0)
    assert len(burst.provider.bill()) == NODES


def test_a_lost_reply_of_a_batch_makes_no_second_node() -> None:
    burst = Burst(NODES, CALLS)
    burst.provider.faults.p_lost_reply = 1.0
    burst.submit()
    burst.until(lambda: burst.count_ordered() == NODES, 30.0)
    burst.provider.faults.p_lost_reply = 0.0
    burst.until(lambda: burst.count_joined() == NODES, 300.0)
    burst.world.advance_by(300.0)
    assert burst.count_ordered() == len(burst.provider.bill()) == NODES
