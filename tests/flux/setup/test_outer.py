"""Nodes that are jobs of an outer instance, as its lists show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from nodemanager.core.nodes import CloudState, Identity, LaunchId
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.flux.setup import outer
from nodemanager.simulation.time.world import World

IDENTITY = Identity("demo", "uuid-1", LaunchId("cloud1-1"), SlotName("cloud1"), TypeName("cloud"))
WAITING, RUNNING, ENDED = 8, 16, 64  # flux-core's job.h


def test_a_node_that_ends_between_two_questions_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question asks for active jobs, the other for ended ones, and the node ends after the first."""
    asked: list[str] = []

    def listed(_handle: object, _name: str, states: Mapping[str, Any], *_: object, **__: object) -> dict[int, Any]:
        wants_ended = states["states"] == ["inactive"]
        asked.append("ended" if wants_ended else "active")
        has_ended = len(asked) > 1
        state = ENDED if has_ended else RUNNING
        return {7: {"id": 7, "state": state, "t_submit": 1.0}} if wants_ended is has_ended else {}

    @contextmanager
    def no_handle(_self: outer.OuterFlux) -> Iterator[None]:
        yield None

    monkeypatch.setattr(outer, "_list_jobs", listed)
    monkeypatch.setattr(outer, "_read_jobspec", lambda *_, **__: {})
    monkeypatch.setattr(outer, "_identity_in", lambda _: IDENTITY)
    monkeypatch.setattr(outer.OuterFlux, "_handle", no_handle)
    port = outer.OuterFlux("", "demo", "uuid-1", lambda *_: "", World(1).clock())
    (node,) = port.list_nodes()
    assert node.identity == IDENTITY
    assert node.state is not CloudState.PENDING


@pytest.mark.parametrize(("state", "queued"), [(WAITING, True), (RUNNING, False)])
def test_a_node_that_waits_in_the_outer_queue_is_queued(state: int, queued: bool) -> None:
    port = outer.OuterFlux("", "demo", "uuid-1", lambda *_: "", World(1).clock())
    port._identities[7] = IDENTITY
    assert port._node({"id": 7, "state": state, "t_submit": 1.0}).queued is queued
