"""Reloads and the nodes that ensembles keep come from several threads, and the latest policy is the one in use."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodemanager.actors.messages import UsePolicy
from nodemanager.config.site import Site
from nodemanager.planner.policy import Policy
from nodemanager.service import service as module
from nodemanager.service.service import Service
from tests.builders import a_policy

RELOAD_WITHIN_S = 0.2  # it is over long before, unless it waits for its turn


def test_a_reload_while_nodes_are_kept_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy of the old site is made, the site is reloaded, and then the old policy is told."""
    old, new = (SimpleNamespace(path=Path(name)) for name in ("old", "new"))
    told: list[Policy] = []
    reloads: list[threading.Thread] = []
    policies = {id(old): a_policy(nodes_max=1), id(new): a_policy(nodes_max=2)}

    def policy_of(site: Site) -> Policy:
        if not reloads:
            reloads.append(threading.Thread(target=service.reload))
            reloads[0].start()
            reloads[0].join(RELOAD_WITHIN_S)
        return policies[id(site)]

    class Told:
        def tell(self, message: UsePolicy) -> None:
            told.append(message.policy)

    monkeypatch.setattr(module, "policy_of", lambda _: a_policy())
    monkeypatch.setattr(module, "wire", lambda *_: Told())
    ports: Any = SimpleNamespace(delegation=None, clock=None)
    service = Service(SimpleNamespace(path=Path("old"), acts=True), ports)  # type: ignore[arg-type]
    service._site = old  # type: ignore[assignment]
    monkeypatch.setattr(module, "policy_of", policy_of)
    monkeypatch.setattr(module, "load_site", lambda _: new)
    monkeypatch.setattr(module, "with_cluster_uuid", lambda site: site)
    monkeypatch.setattr(module, "needs_restart", lambda *_: [])

    service.keep_nodes(1)
    reloads[0].join()
    assert told[-1].limits.nodes_max == 2
    assert told[-1].limits.nodes_min == 1
