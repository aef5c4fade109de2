"""The actor between the manager and the join service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import structlog
from structlog.testing import capture_logs

from nodemanager.actors.base import Fate
from nodemanager.actors.join import BEAT_S, JoinClerk
from nodemanager.core.facts import NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId, Roster, RosterEntry
from nodemanager.core.orders import PostRoster
from nodemanager.core.ports import JoinError
from nodemanager.core.slots import SlotName

ENTRY = RosterEntry(LaunchId("cloud1-1"), SlotName("cloud1"), 10.0, may_start=True, online=False)
REPORT = NodeReported(LaunchId("cloud1-1"), JoinPhase.STARTED, "", 1.0)


@dataclass
class Port:
    posted: list[Roster] = field(default_factory=list)
    waiting: list[NodeReported] = field(default_factory=list)
    why_not: str = ""

    def post(self, roster: Roster, wall_at: float) -> None:
        if self.why_not:
            raise JoinError(self.why_not)
        self.posted.append(roster)

    def reports(self) -> tuple[NodeReported, ...]:
        reports, self.waiting = tuple(self.waiting), []
        return reports


@dataclass
class Post:
    told: list[Any] = field(default_factory=list)

    def tell(self, message: Any) -> None:
        self.told.append(message)


def test_a_roster_is_posted_when_it_is_new_and_again_as_a_sign_of_life() -> None:
    port = Port()
    clerk = JoinClerk(port, Post(), Fate())
    for now_s in (0.0, 1.0, BEAT_S - 0.1):
        clerk.on_receive(PostRoster(now_s, now_s, (ENTRY,)))
    assert port.posted == [(ENTRY,)]
    clerk.on_receive(PostRoster(BEAT_S, BEAT_S, (ENTRY,)))
    clerk.on_receive(PostRoster(BEAT_S + 0.1, BEAT_S, ()))
    assert port.posted == [(ENTRY,), (ENTRY,), ()]


def test_what_nodes_report_reaches_the_manager_each_time_it_is_asked_for() -> None:
    port, manager = Port(waiting=[REPORT]), Post()
    clerk = JoinClerk(port, manager, Fate())
    for now_s in (0.0, 1.0):
        clerk.on_receive(PostRoster(now_s, now_s, ()))
    assert manager.told == [REPORT]


def test_a_disk_that_fails_is_said_once_and_tried_again() -> None:
    structlog.reset_defaults()
    port = Port(why_not="the disk is full")
    clerk = JoinClerk(port, Post(), Fate())
    with capture_logs() as lines:
        clerk = JoinClerk(port, Post(), Fate())
        clerk.on_receive(PostRoster(0.0, 0.0, (ENTRY,)))
        clerk.on_receive(PostRoster(1.0, 1.0, (ENTRY,)))
    assert [line["why"] for line in lines] == ["the disk is full"]
    port.why_not = ""
    clerk.on_receive(PostRoster(2.0, 2.0, (ENTRY,)))
    assert port.posted == [(ENTRY,)]
