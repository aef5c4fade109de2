"""The files through which the manager and the join service exchange data. Only their user can read the folder.

    roster.json      the manager replaces it as a whole: which launches hold slots, and a sign of life
    ledger.sqlite    the service writes it, and the manager reads the nodes' reports from it

Neither process waits for the other. If there is no manager, the service continues with the last roster.
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
from nodemanager.core.slots import DEFAULT_CLOUD, SlotName
from nodemanager.core.untrusted import read_json
from nodemanager.join.ticket_store import ReportPage, TicketStoreError, read_page

_VERSION = 1


class RosterUnreadableError(Exception):
    """The roster is missing or unreadable."""


class ExchangePaths:
    """The paths of the exchanged files in ``material_dir``."""

    def __init__(self, material_dir: Path) -> None:
        self.roster = material_dir / "roster.json"
        self.ledger = material_dir / "ledger.sqlite"


class FileExchange:
    """``JoinPort`` over the exchanged files, for the manager."""

    def __init__(self, paths: ExchangePaths) -> None:
        self._paths = paths
        self._store_mark = 0
        self._read_until = 0
        self._log: Any = structlog.get_logger()

    def post(self, roster: Roster, wall_at: float) -> None:
        """Replace the roster's file. Raises :class:`JoinError`."""
        path = self._paths.roster
        draft = path.with_name(f".{path.name}.new")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(encode_roster(roster, wall_at))
            draft.replace(path)
        except OSError as error:
            raise JoinError(f"{path} cannot be written: {error.strerror}") from error

    def reports(self) -> tuple[JoinFact, ...]:
        """Return the reports since the last call, oldest first. Raises :class:`JoinError`."""
        pages: list[ReportPage] = []
        store_mark, read_until = self._store_mark, self._read_until
        try:
            while page := read_page(self._paths.ledger, store_mark, read_until):
                pages.append(page)
                store_mark, read_until = page.store_mark, page.last_id
                if page.is_last:
                    break
        except TicketStoreError as error:
            raise JoinError(str(error)) from error
        self._store_mark, self._read_until = store_mark, read_until
        for why in (why for page in pages for why in page.unreadable):
            self._log.error("report_unreadable", why=why)
        return tuple(fact for page in pages for fact in page.facts)


def encode_roster(roster: Roster, wall_at: float) -> str:
    """Return the roster as JSON. ``wall_at`` is the time of writing."""
    entries = [
        [entry.launch, entry.slot, entry.redeemable_until_at, entry.may_start, entry.online, entry.addresses]
        for entry in roster
    ]
    document: dict[str, object] = {"version": _VERSION, "written_at": wall_at, "entries": entries}
    # By themselves, so that a join service of an earlier version can still read the entries.
    if instances := {entry.launch: entry.provider_id for entry in roster if entry.provider_id is not None}:
        document["instances"] = instances
        document["clouds"] = {it.launch: it.cloud for it in roster if it.launch in instances}
    return json.dumps(document)


def decode_roster(text: str) -> tuple[Roster, float]:
    """Return the roster and the time of writing. Raises ``ValueError``."""
    document: Any = read_json(text)
    try:
        if document["version"] != _VERSION:
            raise ValueError(f"its version is not {_VERSION}")
        instances, clouds = document.get("instances", {}), document.get("clouds", {})
        entries = tuple(
            RosterEntry(
                LaunchId(launch),
                SlotName(slot),
                float(until_at),
                may_start,
                online,
                tuple(addresses),
                instances.get(launch),
                clouds.get(launch, DEFAULT_CLOUD),
            )
            for launch, slot, until_at, may_start, online, addresses in document["entries"]
        )
        return entries, float(document["written_at"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not as a manager writes it ({type(error).__name__})") from error


class RosterSource(Protocol):
    """Supplies the roster to the service."""

    def current(self) -> tuple[Roster, float]:
        """Return the current roster, and the seconds since the manager's last sign of life.

        Raises :class:`RosterUnreadableError`.
        """
        ...


class RosterFile:
    """Reads the roster's file, again whenever it was replaced.

    The manager's silence counts from the first sight of a new roster, on the monotonic clock. Only the first roster
    after the start may be older than its first sight, so its silence counts from its time of writing.
    """

    def __init__(self, path: Path, monotonic_s: Callable[[], float], wall_at: Callable[[], float]) -> None:
        self._path = path
        self._monotonic_s = monotonic_s
        self._wall_at = wall_at
        self._stamp: tuple[int, int] | None = None
        self._roster: Roster = ()
        self._heartbeat_s = 0.0

    def current(self) -> tuple[Roster, float]:
        """Return the roster and the manager's silence. Raises :class:`RosterUnreadableError`."""
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self._stamp:
                self._load(stamp)
        except (OSError, ValueError) as error:
            raise RosterUnreadableError(f"{self._path}: {error}; is a manager running?") from error
        return self._roster, self._monotonic_s() - self._heartbeat_s

    def _load(self, stamp: tuple[int, int]) -> None:
        roster, written_at = decode_roster(self._path.read_text(encoding="utf-8"))
        age_s = max(0.0, self._wall_at() - written_at) if self._stamp is None else 0.0
        self._stamp, self._roster = stamp, roster
        self._heartbeat_s = self._monotonic_s() - age_s
