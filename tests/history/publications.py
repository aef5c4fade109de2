"""Publications in a row, as a manager makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import Fact
from nodemanager.core.jobs import Job
from nodemanager.history.follower import Follower, HistoryUpdate
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node
from tests.builders import NOW_S, WALL_AT, a_policy, a_snapshot, changed


def a_moment(
    after_s: float = 0.0,
    *,
    nodes: Sequence[Node] = (),
    jobs: Sequence[Job] = (),
    facts: Sequence[Fact] = (),
    policy: Policy | None = None,
    acts: bool = True,
    **changes: Any,
) -> Publication:
    """A publication a number of seconds into the story. Every source has just answered."""
    policy = policy if policy is not None else a_policy()
    snapshot = a_snapshot(policy, nodes=nodes, jobs=jobs, **changes)
    seen_s = NOW_S + after_s - 1
    snapshot = changed(
        snapshot,
        now_s=NOW_S + after_s,
        wall_at=WALL_AT + after_s,
        claim=replace(snapshot.sources.claim, seen_s=seen_s),
        queue=replace(snapshot.sources.queue, seen_s=seen_s),
        flux=replace(snapshot.sources.flux, seen_s=seen_s),
        cloud=replace(snapshot.account_of().source, seen_s=seen_s),
    )
    return Publication(snapshot, plan(snapshot, policy), policy, acts, tuple(facts))


def told(*publications: Publication, charged_until_at: float = inf) -> list[HistoryUpdate]:
    follower = Follower(charged_until_at)
    return [follower.follow([it]) for it in publications]


def lines(happened: HistoryUpdate, *kinds: str) -> list[str]:
    """The events in short form, such as "decided BootNode demand"."""
    return [
        " ".join(filter(None, (entry.kind, entry.what, entry.code)))
        for entry in happened.events
        if not kinds or entry.kind in kinds
    ]
