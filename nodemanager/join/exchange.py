"""What the manager and the join service leave for each other, as files in one folder that only their user reads.

    roster.json      written by the manager, replaced whole: who holds a slot, and that a manager lives
    ledger.sqlite    written by the service, read by the manager: what nodes reported

Neither waits for the other. The service goes on with the last roster while there is no manager.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import structlog

from nodemanager.core.facts import JoinFact
from nodemanager.core.nodes import LaunchId, Roster, RosterEntry
from nodemanager.core.ports import JoinError
from nodemanager.core.slots import SlotName
from nodemanager.join.ticket_store import ReportPage, TicketStoreError, read_page

_VERSION = 1


class RosterUnreadableError(Exception):
    """There is no roster, or none that can be read."""


class ExchangePaths:
    """Where the files of one site are."""

    def __init__(self, material_dir: Path) -> None:
        self.roster = material_dir / "roster.json"
        self.ledger = material_dir / "ledger.sqlite"


class FileExchange:
    """``JoinPort`` over those files: the manager's side."""

    def __init__(self, folder: ExchangePaths) -> None:
        self._paths = folder
        self._store_mark = 0
        self._read_until = 0
        self._log: Any = structlog.get_logger()

    def post(self, roster: Roster, wall_at: float) -> None:
        path = self._paths.roster
        draft = path.with_name(f".{path.name}.new")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(encode_roster(roster, wall_at))
            draft.replace(path)
        except OSError as error:
            raise JoinError(f"{path} cannot be written: {error.strerror}") from error

    def reports(self) -> tuple[JoinFact, ...]:
        pages: list[ReportPage] = []
        ledger, read_until = self._store_mark, self._read_until
        try:
            while page := read_page(self._paths.ledger, ledger, read_until):
                pages.append(page)
                ledger, read_until = page.store_mark, page.last_id
                if page.is_last:
                    break
        except TicketStoreError as error:
            raise JoinError(str(error)) from error
        self._store_mark, self._read_until = ledger, read_until
        for why in (why for page in pages for why in page.unreadable):
            self._log.error("report_unreadable", why=why)
        return tuple(fact for page in pages for fact in page.facts)


def encode_roster(roster: Roster, wall_at: float) -> str:
    entries = [
        [entry.launch, entry.slot, entry.redeemable_until_at, entry.may_start, entry.online, entry.addresses]
        for entry in roster
    ]
    return json.dumps({"version": _VERSION, "written_at": wall_at, "entries": entries})


def decode_roster(text: str) -> tuple[Roster, float]:
    """The roster, and when it was written. Raises ``ValueError``."""
    read: Any = json.loads(text)
    try:
        if read["version"] != _VERSION:
            raise ValueError(f"version {_VERSION} is needed")
        entries = tuple(
            RosterEntry(LaunchId(launch), SlotName(slot), float(until_at), may_start, online, tuple(addresses))
            for launch, slot, until_at, may_start, online, addresses in read["entries"]
        )
        return entries, float(read["written_at"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not what a manager writes ({type(error).__name__})") from error


class RosterSource(Protocol):
    """The service's side: the roster as it stands, and the age of the manager's last sign of life."""

    def current(self) -> tuple[Roster, float]:
        """Raises :class:`RosterUnreadableError`."""
        ...


class RosterFile:
    """Reads the file again whenever it was replaced.

    The age counts on a clock that does not jump, from the moment a new roster was first seen; only of a roster that
    was there before us is it reckoned from when it says it was written.
    """

    def __init__(self, path: Path, monotonic_s: Callable[[], float], wall_at: Callable[[], float]) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._wall_at = wall_at
        self._stamp: tuple[int, int] | None = None
        self._roster: Roster = ()
        self._heartbeat_s = 0.0

    def current(self) -> tuple[Roster, float]:
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self._stamp:
                self._load(stamp)
        except (OSError, ValueError) as error:
            raise RosterUnreadableError(f"{self._path}: {error}; does a manager run?") from error
        return self._roster, self._monotonic_s() - self._heartbeat_s

    def _load(self, stamp: tuple[int, int]) -> None:
        roster, written_at = decode_roster(self._path.read_text(encoding="utf-8"))
        age_s = max(0.0, self._wall_at() - written_at) if self._stamp is None else 0.0
        self._stamp, self._roster = stamp, roster
        self._heartbeat_s = self._monotonic_s() - age_s
