"""The simulated cloud beyond the contract of its port: its faults, its bill, its determinism."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Launch, LaunchId
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType, Rank, SlotName
from nodemanager.simulation.cloud.faults import CloudFaults
from nodemanager.simulation.cloud.provider import SimulatedCloud, SimulatedProvider
from nodemanager.simulation.time.world import World
from tests.simulation.fleets import CLOUD, GPU


class Account:
    """A provider with round durations, and the events of its nodes."""

    def __init__(self, seed: int = 1, **faults: Any) -> None:
        self.world = World(seed)
        round_figures = CloudFaults(boot_delay_s=(10.0, 10.0), stop_delay_s=(5.0, 5.0), terminated_listed_s=60.0)
        assert set(faults) <= {field.name for field in fields(CloudFaults)}
        for name, value in faults.items():
            setattr(round_figures, name, value)
        self.booted: list[CloudNode] = []
        self.ended: list[CloudNode] = []
        self.provider = SimulatedProvider(
            self.world, round_figures, on_boot=self.booted.append, on_end=self.ended.append
        )
        self.port: SimulatedCloud = self.provider.port("ada", "uuid-1")
        self._launches = 0

    @property
    def faults(self) -> CloudFaults:
        return self.provider.faults

    def launch(self) -> Launch:
        self._launches += 1
        name = f"launch-{self._launches}"
        return Launch(LaunchId(name), SlotName("cloud1"), Rank(1), CLOUD.name, f"token-{name}", 0.0)

    def create(self, node_type: NodeType = CLOUD) -> CloudNode:
        return self.port.create(self.launch(), node_type)

    def state(self, node: CloudNode) -> CloudState | None:
        return next((seen.state for seen in self.port.list_nodes() if seen.provider_id == node.provider_id), None)


def test_a_node_boots_stops_and_is_forgotten_in_its_time() -> None:
    account = Account(user_data_s=(3.0, 3.0))
    node = account.create()
    states = []
    for at_s in (9.9, 10.1, 12.9, 13.1):
        account.world.advance_to(at_s)
        states.append((account.state(node), len(account.booted)))
    assert states == [
        (CloudState.PENDING, 0),
        (CloudState.RUNNING, 0),
        (CloudState.RUNNING, 0),
        (CloudState.RUNNING, 1),
    ]
    account.port.destroy(node.provider_id)
    assert (account.state(node), [ended.provider_id for ended in account.ended]) == (
        CloudState.STOPPING,
        [node.provider_id],
    )
    account.world.advance_by(5.0)
    assert account.state(node) is CloudState.TERMINATED
    account.world.advance_by(60.0)
    assert account.state(node) is None
    assert len(account.ended) == 1


def test_a_node_destroyed_while_it_boots_never_runs_its_user_data() -> None:
    account = Account()
    account.port.destroy(account.create().provider_id)
    account.world.advance_to(100.0)
    assert (account.booted, account.ended, account.provider.nodes()) == ([], [], ())


def test_the_bill_runs_from_creation_to_the_end_and_outlives_the_list() -> None:
    account = Account()
    first = account.create()
    account.world.advance_to(20.0)
    second = account.create(GPU)
    account.port.destroy(first.provider_id)
    account.world.advance_to(500.0)
    bill = account.provider.bill()
    assert [(line.provider_id, line.type_name, line.from_s, line.to_s) for line in bill] == [
        (first.provider_id, CLOUD.name, 0.0, 25.0),
        (second.provider_id, GPU.name, 20.0, None),
    ]


def test_a_refusal_that_might_have_been_a_success_makes_nothing() -> None:
    account = Account(p_refused_ambiguous=1.0)
    with pytest.raises(CloudError) as failed:
        account.create()
    assert failed.value.kind is FailureKind.AMBIGUOUS
    assert account.provider.nodes() == ()


def test_without_idempotency_a_repeated_create_makes_a_second_node() -> None:
    account = Account(idempotent=False)
    launch = account.launch()
    made = {account.port.create(launch, CLOUD).provider_id for _ in range(2)}
    assert len(made) == len(account.provider.nodes()) == 2


@pytest.mark.parametrize(
    ("knob", "kind"),
    [
        ({"capacity": 1}, FailureKind.CAPACITY),
        ({"capacity_of": {CLOUD.name: 1}}, FailureKind.CAPACITY),
        ({"capacity_of_size": {CLOUD.size: 1}}, FailureKind.CAPACITY),
        ({"quota": 1}, FailureKind.QUOTA),
        ({"quota_of_size": {CLOUD.size: 1}}, FailureKind.QUOTA),
    ],
)
def test_a_node_takes_room_until_it_has_terminated(knob: dict[str, Any], kind: FailureKind) -> None:
    account = Account(**knob)
    first = account.create()
    account.port.destroy(first.provider_id)
    with pytest.raises(CloudError) as failed:
        account.create()
    assert failed.value.kind is kind
    account.world.advance_by(5.0)
    assert account.create().state is CloudState.PENDING


def test_capacity_of_one_type_is_not_that_of_another() -> None:
    account = Account(capacity_of={CLOUD.name: 0})
    assert account.create(GPU).state is CloudState.PENDING
    with pytest.raises(CloudError, match="capacity"):
        account.create(CLOUD)


@pytest.mark.parametrize("knob", [{"capacity_of_size": {CLOUD.size: 0}}, {"quota_of_size": {CLOUD.size: 0}}])
def test_a_limit_of_one_size_is_not_that_of_another(knob: dict[str, Any]) -> None:
    account = Account(**knob)
    assert account.create(GPU).state is CloudState.PENDING
    with pytest.raises(CloudError, match=CLOUD.size):
        account.create(CLOUD)


def test_what_is_refused_until_somebody_acts_is_refused_each_time() -> None:
    account = Account(refuse_creates=FailureKind.CONFIG)
    for _ in range(2):
        with pytest.raises(CloudError) as failed:
            account.create()
        assert failed.value.kind is FailureKind.CONFIG
    account.faults.refuse_creates = None
    account.create()


def test_throttling_says_when_to_come_again() -> None:
    account = Account(p_throttle=1.0, throttle_retry_after_s=7.0)
    with pytest.raises(CloudError) as failed:
        account.port.list_nodes()
    assert (failed.value.kind, failed.value.retry_after_s) == (FailureKind.THROTTLED, 7.0)


def test_a_boot_that_fails_ends_the_node_with_its_cause() -> None:
    account = Account(p_boot_fail=1.0)
    account.create()
    account.world.advance_to(10.0)
    (seen,) = account.port.list_nodes()
    assert (seen.state, seen.died_because) == (CloudState.TERMINATED, "failed to boot")
    assert account.booted == []


def test_a_node_that_failed_stays_and_costs_until_it_is_destroyed() -> None:
    account = Account(p_boot_fail=1.0, boot_fail_state=CloudState.FAILED)
    node = account.create()
    account.world.advance_to(1000.0)
    assert (account.state(node), account.provider.bill()[0].to_s) == (CloudState.FAILED, None)
    account.port.destroy(node.provider_id)
    assert (account.state(node), account.provider.bill()[0].to_s) == (CloudState.TERMINATED, 1000.0)


def test_a_boot_that_hangs_runs_and_never_joins() -> None:
    account = Account(p_boot_hang=1.0)
    node = account.create()
    account.world.advance_to(1000.0)
    assert (account.state(node), account.booted) == (CloudState.RUNNING, [])


def test_nodes_die_by_themselves_at_the_rate_asked() -> None:
    account = Account(p_death_per_hour=0.5)
    for _ in range(200):
        account.create()
    account.world.advance_to(10.0 + 3600.0)
    died = len(account.ended)
    assert 70 <= died <= 130  # 100 ± 4 standard deviations; the seed is fixed
    assert len(account.provider.nodes()) == 200 - died


def test_a_new_node_is_missing_from_the_list_for_a_while() -> None:
    account = Account(list_lag_s=(4.0, 4.0))
    node = account.create()
    account.world.advance_to(3.9)
    assert account.state(node) is None
    account.world.advance_to(4.0)
    assert account.state(node) is CloudState.PENDING


def test_lists_that_are_not_true() -> None:
    account = Account()
    made = [account.create().provider_id for _ in range(4)]
    account.faults.p_empty_list = 1.0
    assert account.port.list_nodes() == ()
    account.faults.p_empty_list, account.faults.p_truncated_list = 0.0, 1.0
    assert [node.provider_id for node in account.port.list_nodes()] == made[:2]
    account.faults.p_truncated_list, account.faults.p_shuffled_list = 0.0, 1.0
    shuffled = [node.provider_id for node in account.port.list_nodes()]
    assert (sorted(set(shuffled)), len(shuffled)) == (made, 5)


def test_a_destroy_may_be_accepted_and_come_to_nothing() -> None:
    account = Account(p_destroy_ignored=1.0)
    node = account.create()
    account.port.destroy(node.provider_id)
    account.world.advance_to(100.0)
    assert account.state(node) is CloudState.RUNNING


def test_a_failed_destroy_or_list_changed_nothing() -> None:
    account = Account(p_transient=1.0)
    node = account.create()
    for call in (account.port.list_nodes, lambda: account.port.destroy(node.provider_id)):
        with pytest.raises(CloudError) as failed:
            call()
        assert failed.value.kind is FailureKind.TRANSIENT
    assert [seen.state for seen in account.provider.nodes()] == [CloudState.PENDING]


def a_busy_day(seed: int) -> list[object]:
    """Return everything observable in an hour with many faults."""
    account = Account(
        seed,
        boot_delay_s=(5.0, 50.0),
        stop_delay_s=(1.0, 30.0),
        p_boot_fail=0.1,
        p_lost_reply=0.1,
        p_refused_ambiguous=0.1,
        p_throttle=0.1,
        p_capacity=0.1,
        p_death_per_hour=0.5,
        p_truncated_list=0.1,
        p_shuffled_list=0.1,
    )
    seen: list[object] = []
    for _ in range(60):
        account.world.advance_by(60.0)
        for call in (account.create, account.port.list_nodes):
            try:
                seen.append(call())
            except CloudError as error:
                seen.append(str(error))
        for node in account.provider.nodes()[3:]:
            account.provider.kill(node.provider_id)
    return [*seen, account.provider.bill(), account.booted, account.ended]


def test_the_same_seed_gives_the_same_day() -> None:
    assert a_busy_day(4) == a_busy_day(4)
    assert a_busy_day(4) != a_busy_day(5)
