"""The actor between the manager and the join service: it posts the roster and fetches the reports of nodes."""

from __future__ import annotations

from typing import Any

import structlog

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.messages import Mailbox
from nodemanager.core.facts import JoinFact
from nodemanager.core.nodes import Roster
from nodemanager.core.orders import PostRoster
from nodemanager.core.ports import JoinError, JoinPort

BEAT_S = 5.0  # an unchanged roster is posted again after this long, as a sign of life


class JoinClerk(CrashOnlyActor):
    """Gets the roster with every plan and every second. Posts it if it has changed or a sign of life is due."""

    def __init__(self, port: JoinPort, manager: Mailbox[JoinFact], fate: Fate) -> None:
        super().__init__(fate)
        self._port = port
        self._manager = manager
        self._log: Any = structlog.get_logger()
        self._posted: Roster | None = None
        self._beat_due_s = 0.0
        self._logged = ""

    def on_receive(self, message: PostRoster) -> None:
        try:
            if message.roster != self._posted or message.now_s >= self._beat_due_s:
                self._port.post(message.roster, message.wall_at)
                self._posted = message.roster
                self._beat_due_s = message.now_s + BEAT_S
            for report in self._port.reports():
                self._manager.tell(report)
        except JoinError as error:
            # Retried with the next roster. Until then the join service uses the last one.
            if str(error) != self._logged:
                self._log.error("join_exchange_failed", why=str(error))
            self._logged = str(error)
        else:
            self._logged = ""
