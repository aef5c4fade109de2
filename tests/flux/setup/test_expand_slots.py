"""The slots that ``flux-node-manager`` adds to another instance."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from nodemanager.core.ports import FluxError
from nodemanager.core.slots import SlotName
from nodemanager.flux.setup import expand

FREE = {"small": ["small1", "small2"], "large": ["large1", "large2", "large3"]}


def chosen(monkeypatch: pytest.MonkeyPatch, count: int, *promised: str) -> tuple[object, object]:
    port = SimpleNamespace(ranks=tuple, launches=tuple, close=lambda: None)
    monkeypatch.setattr("nodemanager.flux.bindings.connection", lambda _: nullcontext())
    monkeypatch.setattr(expand, "owner_of", lambda *_, **__: None)
    monkeypatch.setattr(expand, "RealFlux", lambda *_, **__: SimpleNamespace(port=lambda: port))
    monkeypatch.setattr(expand, "free_slots", lambda *_: FREE)
    site: Any = SimpleNamespace(flux=SimpleNamespace(uri="local:///x"), cluster_uuid="u")
    clock: Any = SimpleNamespace()
    return expand._choose_slots(site, count, clock, frozenset(SlotName(it) for it in promised))


def test_the_last_slots_of_a_type_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, 2) == (("small1", "small2"), "small")
    assert chosen(monkeypatch, 3) == (("large1", "large2", "large3"), "large")


def test_a_promised_slot_is_not_chosen_and_too_few_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, 2, "small1") == (("large1", "large2"), "large")
    with pytest.raises(FluxError, match="4 slots of one type are needed, but at most 3 are free"):
        chosen(monkeypatch, 4)
