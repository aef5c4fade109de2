"""Who is let in: the join service's decisions, without its network.

One object, one thread. Time, roster and ledger are given to it, so that the simulator runs it unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from nodemanager.core.facts import NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId, Roster, RosterEntry
from nodemanager.join import tickets
from nodemanager.join.exchange import RosterSource, RosterUnreadableError
from nodemanager.join.key_material import Material, MaterialError
from nodemanager.join.lease_holders import LeaseHolders
from nodemanager.join.rate_limits import TokenBuckets, parse_address
from nodemanager.join.ticket_store import TicketStore, TicketStoreError, decode_hardware, encode_hardware
from nodemanager.join.tickets import SiteKey

REPORTS_PER_S = 0.2  # of one launch
REPORTS_BURST = 20
RETRY_S = 5.0
SILENT_RENEWALS = 2.5  # a node that has missed so many is taken to have ended
SILENT_MAX_S = 120.0  # at the most, however seldom a site has its nodes renew


class RefusalCode(StrEnum):
    """Why a request is not granted; ``doc/joining.md`` says what a client does about each."""

    MALFORMED = "malformed"
    WRONG = "wrong"  # the ticket or the key is not the launch's
    EXPIRED = "expired"  # the ticket is no longer taken
    USED = "used"  # the ticket was redeemed with another nonce
    NOT_CURRENT = "not_current"  # the launch holds no slot, or not yet as far as the service has heard
    IN_USE = "in_use"  # another process of this launch was heard of just now
    WRONG_SOURCE = "wrong_source"  # the request comes from none of the node's addresses
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    TOO_SLOW = "too_slow"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """``launch`` is set only where who asked has proven to know its secret."""

    code: RefusalCode
    launch: LaunchId | None = None
    retry_after_s: float = 0.0
    why: str = ""  # for the log alone


@dataclass(frozen=True, slots=True)
class Granted:
    launch: LaunchId
    entry: RosterEntry
    body: Mapping[str, Any] = field(repr=False)
    alarm: str = ""  # what an operator should look at all the same


Answer = Granted | Refusal


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What the site wants of the service, and has it tell the nodes."""

    head_host: str
    head_address: str
    check_source: bool = False
    renew_s: float = 10.0
    orphan_grace_s: float = 600.0
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class _View:
    """A roster, and what is made of it once for all requests."""

    roster: Roster
    entries: Mapping[LaunchId, RosterEntry]
    hosts: Mapping[str, str]
    hosts_digest: str


class JoinAdmission:
    """Redeem, fetch, renew, report. Nothing it raises, returns or says holds a secret but ``Granted.body``."""

    def __init__(
        self,
        key: SiteKey,
        rules: AdmissionRules,
        roster: RosterSource,
        material: Callable[[], Material],
        ledger: TicketStore,
        wall_at: Callable[[], float],
    ) -> None:
        self._key = key
        self._rules = rules
        self._roster = roster
        self._material = material
        self._store = ledger
        self._wall_at = wall_at
        self._reports = TokenBuckets(REPORTS_PER_S, REPORTS_BURST)
        self._holders = LeaseHolders(min(SILENT_MAX_S, SILENT_RENEWALS * rules.renew_s))
        self._view = _make_view((), rules)

    def redeem(self, launch: LaunchId, ticket: str, nonce: str, source: str, instance: str = "") -> Answer:
        """A ticket for all that a node needs. The same nonce gets the same; another is a replay."""
        if not tickets.equal_secrets(ticket, self._key.ticket(launch)):
            return Refusal(RefusalCode.WRONG)
        try:
            return self._redeem(launch, tickets.hash_nonce(nonce), source, instance)
        except (TicketStoreError, RosterUnreadableError, MaterialError) as error:
            return Refusal(RefusalCode.UNAVAILABLE, launch, RETRY_S, str(error))

    def _redeem(self, launch: LaunchId, nonce_hash: str, source: str, instance: str) -> Answer:
        view, silence_s = self._current_view()
        entry = view.entries.get(launch)
        if entry is None:
            return Refusal(RefusalCode.NOT_CURRENT, launch)
        if not self._may_come_from(source, entry):
            return Refusal(RefusalCode.WRONG_SOURCE, launch, why=f"from {source}, not {', '.join(entry.addresses)}")
        user = self._store.nonce_hash_of(launch)
        in_time = self._wall_at() < entry.redeemable_until_at
        material = self._material()  # what cannot be given must not use up a ticket
        if user is None and in_time:
            user = self._store.mark_used(launch, nonce_hash, source, self._wall_at())
        if user is not None and user != nonce_hash:
            self._keep_report(launch, JoinPhase.REPLAYED, f"its ticket was shown again by {source}")
            return Refusal(RefusalCode.USED, launch, why=f"from {source}")
        if not in_time:
            return Refusal(RefusalCode.EXPIRED, launch)
        holds, alarm = self._note_process(launch, instance, source)
        if not holds:
            return _in_use_refusal(launch, source)
        self._keep_report(launch, JoinPhase.REDEEMED, f"by {source}")
        given = self._broker_body(entry, view, silence_s, material)
        return Granted(launch, entry, {**given, "lease_key": self._key.lease_key(launch, nonce_hash)}, alarm)

    def fetch(self, launch: LaunchId, key: str, source: str, instance: str = "") -> Answer:
        """All that a node needs, anew: asked before each start of a broker, of which a launch has one."""
        answer = self._answer_leaseholder(launch, key, self._broker_body)
        if isinstance(answer, Refusal):
            return answer
        holds, alarm = self._note_process(launch, instance, source)
        return replace(answer, alarm=alarm) if holds else _in_use_refusal(launch, source)

    def renew(self, launch: LaunchId, key: str, hosts_digest: str, source: str, instance: str = "") -> Answer:
        """Whether the lease still stands, whether a manager lives, and the addresses if they have changed."""

        def say(entry: RosterEntry, view: _View, silence_s: float, material: Material) -> dict[str, Any]:
            said = self._lease_body(entry, view, silence_s, material)
            if said["hosts_digest"] == hosts_digest:
                del said["hosts"]
            return said

        answer = self._answer_leaseholder(launch, key, say)
        if isinstance(answer, Refusal):
            return answer
        return replace(answer, alarm=self._note_process(launch, instance, source)[1])

    def report(self, launch: LaunchId, key: str, phase: JoinPhase, detail: str, source: str) -> Answer:
        """Keep what a node says of itself for the manager."""
        del source
        answer = self._answer_leaseholder(launch, key, lambda *_: {})
        if isinstance(answer, Refusal):
            return answer
        if wait_s := self._reports.take(launch, self._wall_at()):
            return Refusal(RefusalCode.TOO_MANY, launch, wait_s)
        if phase is JoinPhase.MEASURED:
            try:
                detail = encode_hardware(decode_hardware(detail))
            except ValueError as fault:
                return Refusal(RefusalCode.MALFORMED, launch, why=str(fault))
        try:
            self._keep_report(launch, phase, _printable(detail))
        except TicketStoreError as error:
            return Refusal(RefusalCode.UNAVAILABLE, launch, RETRY_S, str(error))
        return answer

    def forget_older_than(self, age_s: float) -> None:
        """Forget launches that are long gone. Raises ``LedgerError``, ``RosterUnreadableError``."""
        roster, _ = self._roster.current()
        self._store.forget([entry.launch for entry in roster], self._wall_at() - age_s)

    # --- how ---

    def _answer_leaseholder(
        self,
        launch: LaunchId,
        key: str,
        answer: Callable[[RosterEntry, _View, float, Material], dict[str, Any]],
    ) -> Answer:
        try:
            user = self._store.nonce_hash_of(launch)
            # Who never redeemed anything is told what one with a wrong key is told.
            if not tickets.equal_secrets(key, self._key.lease_key(launch, user or "")) or user is None:
                return Refusal(RefusalCode.WRONG)
            view, silence_s = self._current_view()
            entry = view.entries.get(launch)
            if entry is None:
                return Refusal(RefusalCode.NOT_CURRENT, launch)
            return Granted(launch, entry, answer(entry, view, silence_s, self._material()))
        except (TicketStoreError, RosterUnreadableError, MaterialError) as error:
            return Refusal(RefusalCode.UNAVAILABLE, retry_after_s=RETRY_S, why=str(error))

    def _broker_body(self, entry: RosterEntry, view: _View, silence_s: float, material: Material) -> dict[str, Any]:
        return {
            **self._lease_body(entry, view, silence_s, material),
            "slot": entry.slot,
            "cluster": self._rules.cluster,
            "flux_version": material.flux_version,
            "owner_uid": material.owner_uid,
            "bootstrap": material.bootstrap,
            "curve_cert": material.curve_certificate,
            "command": broker_command(entry.slot),
        }

    def _lease_body(self, entry: RosterEntry, view: _View, silence_s: float, material: Material) -> dict[str, Any]:
        return {
            "may_start": entry.may_start,
            "online": entry.online,
            "material": material.digest,
            "manager_silence_s": round(silence_s, 3),
            "renew_s": self._rules.renew_s,
            "orphan_grace_s": self._rules.orphan_grace_s,
            "hosts": view.hosts,
            "hosts_digest": view.hosts_digest,
        }

    def _note_process(self, launch: LaunchId, instance: str, source: str) -> tuple[bool, str]:
        """Whether this process may start a broker, and what is to be said of it."""
        heard = self._holders.note_request(launch, instance, self._wall_at())
        if not heard.is_second:
            return heard.holds, ""
        alarm = f"its lease key is used by two processes at once, one of them from {source}: was its disk copied?"
        with suppress(TicketStoreError):  # an alarm that cannot be kept is in our own log
            self._keep_report(launch, JoinPhase.REPLAYED, alarm)
        return heard.holds, alarm

    def _current_view(self) -> tuple[_View, float]:
        """The roster as it is asked for, made anew only where the roster is another."""
        roster, silence_s = self._roster.current()
        if roster is not self._view.roster:
            self._view = _make_view(roster, self._rules)
            self._holders.keep_only(self._view.entries)
        return self._view, silence_s

    def _may_come_from(self, source: str, entry: RosterEntry) -> bool:
        if not self._rules.check_source:
            return True
        address = parse_address(source)
        return address is not None and address in (parse_address(known) for known in entry.addresses)

    def _keep_report(self, launch: LaunchId, phase: JoinPhase, detail: str) -> None:
        self._store.keep_report(NodeReported(launch, phase, detail, self._wall_at()))


def _in_use_refusal(launch: LaunchId, source: str) -> Refusal:
    return Refusal(RefusalCode.IN_USE, launch, RETRY_S, f"{source} asks, and another was heard of just now")


def broker_command(slot: str) -> list[str]:
    """A node's broker. What stands in braces is for the node to fill in: its flux, its folders."""
    return [
        "{flux}",
        "broker",
        "--config-path={conf}",
        "-Sbroker.boot-method=config",
        f"-Shostname={slot}",
        "-Srundir={rundir}",
        "-Slocal-uri=local://{rundir}/local",
    ]


def _make_view(roster: Roster, rules: AdmissionRules) -> _View:
    hosts = _hosts(roster, rules)
    digest = hashlib.sha256(json.dumps(hosts, sort_keys=True).encode()).hexdigest()[:16]
    return _View(roster, {entry.launch: entry for entry in roster}, hosts, digest)


def _hosts(roster: Roster, rules: AdmissionRules) -> dict[str, str]:
    """Each name with its address: the leader's, and every slot's whose node the provider shows."""
    found = {rules.head_host: rules.head_address}
    found |= {entry.slot: address for entry in roster if (address := _reachable_address(entry.addresses))}
    return {name: address for name, address in found.items() if parse_address(address) is not None}


def _reachable_address(addresses: tuple[str, ...]) -> str:
    """The address by which other nodes reach a node: a private one where it has any."""
    private = (text for text in addresses if (address := parse_address(text)) is not None and address.is_private)
    return next(private, next(iter(addresses), ""))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
