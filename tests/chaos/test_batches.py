"""Runs whose nodes are created and destroyed in batches: every fourth seed of ``flux-node-manager chaos``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from nodemanager.core.nodes import CloudNode, Identity, Launch
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType
from nodemanager.simulation.cloud.provider import SimulatedProvider
from tests.chaos.command import run_seed, scenario_for_seed, silence_logs
from tests.chaos.run.site import BATCHES_EVERY, nodes_per_call

WITH_BATCHES = range(BATCHES_EVERY - 2, 1000, BATCHES_EVERY)


@pytest.fixture(autouse=True)
def _silent() -> None:
    silence_logs()


def test_every_fourth_seed_creates_nodes_in_batches() -> None:
    assert [nodes_per_call(scenario_for_seed(seed).script) > 1 for seed in range(8)] == [
        seed in WITH_BATCHES for seed in range(8)
    ]


def test_batches_of_several_nodes_come_about(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: Counter[int] = Counter()
    create_many = SimulatedProvider.create_many

    def counting(
        self: SimulatedProvider, launches: Sequence[Launch], node_type: NodeType, identities: Sequence[Identity]
    ) -> list[CloudNode | CloudError]:
        sizes[len(launches)] += 1
        return create_many(self, launches, node_type, identities)

    monkeypatch.setattr(SimulatedProvider, "create_many", counting)
    for seed in WITH_BATCHES[:2]:
        assert run_seed(seed) is None
    assert sizes.total() >= 2
    assert min(sizes) > 1, "a single node has a call of its own"


def test_a_batch_that_is_repeated_after_a_lost_reply_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules must notice a provider without tokens that is asked twice: here each batch is created twice."""
    create_many = SimulatedProvider.create_many

    def twice(
        self: SimulatedProvider, launches: Sequence[Launch], node_type: NodeType, identities: Sequence[Identity]
    ) -> list[CloudNode | CloudError]:
        made = create_many(self, launches, node_type, identities)
        self._by_batch_token.clear()
        create_many(self, launches, node_type, identities)
        return made

    monkeypatch.setattr(SimulatedProvider, "create_many", twice)
    assert any(run_seed(seed) is not None for seed in WITH_BATCHES[:5])
