"""Decides which nodes may join. This is the join service without its network.

It serves one thread. Its clock, roster and ticket store are arguments, so the simulator can run it unchanged. The
protocol is in doc/joining.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from nodemanager.core.facts import NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId, ProviderId, Roster, RosterEntry, stamp_of
from nodemanager.core.slots import CloudName
from nodemanager.flux.parse.versions import named_broker, parse_version
from nodemanager.join import tickets
from nodemanager.join.exchange import RosterSource, RosterUnreadableError
from nodemanager.join.flux_node_join import purpose_of
from nodemanager.join.identity.proof import IdentityUnproven, InstanceReader, ProvenInstance
from nodemanager.join.key_material import Material, MaterialError
from nodemanager.join.rate_limits import TokenBuckets, parse_address
from nodemanager.join.ticket_store import TicketStore, TicketStoreError, decode_hardware, encode_hardware
from nodemanager.join.tickets import SiteKey

REPORTS_PER_S = 0.2  # for each launch
REPORTS_BURST = 20
RETRY_S = 5.0
SILENT_RENEWALS = 2.5  # a client that misses this many renewals counts as ended
SILENT_MAX_S = 120.0  # upper limit of that time, if a site's nodes renew rarely


class RefusalCode(StrEnum):
    """Why the service refuses a request. ``doc/joining.md`` says what a client does about each code."""

    MALFORMED = "malformed"
    WRONG = "wrong"  # the ticket or the key does not belong to the launch
    EXPIRED = "expired"  # the ticket has expired
    USED = "used"  # the ticket was redeemed with another nonce
    NOT_CURRENT = "not_current"  # the launch holds no slot, or the service does not know of it yet
    IN_USE = "in_use"  # another process with this lease key made a request just now
    UNPROVEN = "unproven"  # the provider does not vouch for the instance that shows the ticket of a batch
    WRONG_SOURCE = "wrong_source"  # the request came from none of the node's addresses
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    TOO_SLOW = "too_slow"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request. ``launch`` is set only if the client has proven that it knows the launch's secret."""

    code: RefusalCode
    launch: LaunchId | None = None
    retry_after_s: float = 0.0
    why: str = ""  # for the log only; the client never sees it


@dataclass(frozen=True, slots=True)
class Granted:
    """A granted request, with the body of the answer."""

    launch: LaunchId
    entry: RosterEntry
    body: Mapping[str, Any] = field(repr=False)
    alarm: str = ""  # a problem that an operator should look at, although the request is granted


Answer = Granted | Refusal


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The site's settings for the service, and the values that it passes on to nodes."""

    head_host: str
    head_address: str
    check_source: bool = False
    renew_s: float = 10.0
    orphan_grace_s: float = 600.0
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class _View:
    """A roster, and values that are computed from it once for all requests."""

    roster: Roster
    entries: Mapping[LaunchId, RosterEntry]
    by_instance: Mapping[tuple[CloudName, ProviderId], RosterEntry]
    hosts: Mapping[str, str]
    hosts_digest: str


class JoinAdmission:
    """Answers the requests of the protocol: redeem, redeem-batch, fetch, renew, report.

    Without ``instance_in`` no ticket of a batch is redeemed.

    Only ``Granted.body`` contains secrets. Exceptions, refusals and reports contain none.
    """

    def __init__(
        self,
        key: SiteKey,
        rules: AdmissionRules,
        roster: RosterSource,
        material: Callable[[], Material],
        store: TicketStore,
        wall_at: Callable[[], float],
        instance_in: InstanceReader | None = None,
    ) -> None:
        self._key = key
        self._instance_in = instance_in
        self._rules = rules
        self._roster = roster
        self._material = material
        self._store = store
        self._wall_at = wall_at
        self._reports = TokenBuckets(REPORTS_PER_S, REPORTS_BURST)
        self._holders = LeaseHolders(min(SILENT_MAX_S, SILENT_RENEWALS * rules.renew_s))
        self._view = _make_view((), rules)

    def decide_together(self, decisions: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """Make decisions in turn, each a call of one of the methods below, and store their marks by one commit.

        If the commit fails, each decision is made again by itself. So no node is granted anything whose mark is not
        on disk, and a request that stores nothing is granted even if the disk is full.
        """
        try:
            with self._store.one_commit():
                return [decide() for decide in decisions]
        except TicketStoreError:
            return [decide() for decide in decisions]

    def redeem(self, launch: LaunchId, ticket: str, nonce: str, source: str, instance: str = "") -> Answer:
        """Exchange a ticket for a lease key and the start data of a broker.

        The same nonce gets the same answer again. Another nonce is a replay, and raises an alarm.
        """
        if not tickets.equal_secrets(ticket, self._key.ticket(launch)):
            return Refusal(RefusalCode.WRONG)
        try:
            return self._redeem(launch, tickets.hash_nonce(nonce), source, instance)
        except (TicketStoreError, RosterUnreadableError, MaterialError) as error:
            return Refusal(RefusalCode.UNAVAILABLE, launch, RETRY_S, str(error))

    def redeem_batch(
        self, batch: str, ticket: str, nonce: str, identity: str, source: str, instance: str = ""
    ) -> Answer:
        """Exchange the ticket of a batch, shown by an instance that proves its identity, for what its launch gets.

        The answer names the launch.
        """
        if not tickets.equal_secrets(ticket, self._key.batch_ticket(batch)):
            return Refusal(RefusalCode.WRONG)
        try:
            if self._instance_in is None:
                return Refusal(RefusalCode.UNPROVEN, why="this site's nodes are not created in batches")
            nonce_hash = tickets.hash_nonce(nonce)
            proven = self._instance_in(identity, purpose_of(batch, nonce_hash))
            entry = self._entry_of(proven)
            if entry is None or stamp_of(entry.launch, entry.slot) != batch:
                return Refusal(
                    RefusalCode.NOT_CURRENT, why=f"{proven.id} is no node of batch {batch} that may join"
                )
            answer = self._redeem(entry.launch, nonce_hash, source, instance)
        except IdentityUnproven as error:
            return Refusal(RefusalCode.UNPROVEN, why=str(error))
        except (TicketStoreError, RosterUnreadableError, MaterialError) as error:
            return Refusal(RefusalCode.UNAVAILABLE, None, RETRY_S, str(error))
        if isinstance(answer, Refusal):
            return answer
        return replace(answer, body={**answer.body, "launch": entry.launch})

    def _entry_of(self, proven: ProvenInstance) -> RosterEntry | None:
        """Find the node that is an instance. What vouches for one cloud's instances says nothing of another's."""
        by_instance = self._current_view()[0].by_instance
        found = (by_instance.get((cloud, proven.id)) for cloud in proven.clouds)
        return next((entry for entry in found if entry is not None), None)

    def _redeem(self, launch: LaunchId, nonce_hash: str, source: str, instance: str) -> Answer:
        view, silence_s = self._current_view()
        entry = view.entries.get(launch)
        if entry is None:
            return Refusal(RefusalCode.NOT_CURRENT, launch)
        if not self._may_come_from(source, entry):
            return Refusal(RefusalCode.WRONG_SOURCE, launch, why=f"from {source}, not {', '.join(entry.addresses)}")
        used_with = self._store.nonce_hash_of(launch)
        in_time = self._wall_at() < entry.redeemable_until_at
        material = self._material()  # read it first: if that fails, the ticket must stay unused
        if used_with is None and in_time:
            used_with = self._store.mark_used(launch, nonce_hash, source, self._wall_at())
        if used_with is not None and used_with != nonce_hash:
            self._keep_report(launch, JoinPhase.REPLAYED, f"its ticket was shown again by {source}")
            return Refusal(RefusalCode.USED, launch, why=f"from {source}")
        if not in_time:
            return Refusal(RefusalCode.EXPIRED, launch)
        holds, alarm = self._note_process(launch, instance, source)
        if not holds:
            return _in_use_refusal(launch, source)
        self._keep_report(launch, JoinPhase.REDEEMED, f"by {source}")
        body = {
            **self._start_data(entry, view, silence_s, material),
            "lease_key": self._key.lease_key(launch, nonce_hash),
        }
        return Granted(launch, entry, body, alarm)

    def fetch(self, launch: LaunchId, key: str, source: str, instance: str = "") -> Answer:
        """Return the current start data. A client asks for it before each start of its broker.

        Refused while another process of the launch is active: a launch may run only one broker.
        """
        answer = self._answer_leaseholder(launch, key, self._start_data)
        if isinstance(answer, Refusal):
            return answer
        holds, alarm = self._note_process(launch, instance, source)
        return replace(answer, alarm=alarm) if holds else _in_use_refusal(launch, source)

    def renew(self, launch: LaunchId, key: str, hosts_digest: str, source: str, instance: str = "") -> Answer:
        """Return the status: of the lease, of the manager, and of the hosts if they have changed."""

        def status_of(entry: RosterEntry, view: _View, silence_s: float, material: Material) -> dict[str, Any]:
            status = self._status(entry, view, silence_s, material)
            if status["hosts_digest"] == hosts_digest:
                del status["hosts"]
            return status

        answer = self._answer_leaseholder(launch, key, status_of)
        if isinstance(answer, Refusal):
            return answer
        return replace(answer, alarm=self._note_process(launch, instance, source)[1])

    def report(self, launch: LaunchId, key: str, phase: JoinPhase, detail: str, source: str) -> Answer:
        """Store a node's report about itself for the manager."""
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
        """Forget launches that ended long ago. Raises ``TicketStoreError``, ``RosterUnreadableError``."""
        roster, _ = self._roster.current()
        self._store.forget([entry.launch for entry in roster], self._wall_at() - age_s)

    # --- parts of an answer ---

    def _answer_leaseholder(
        self,
        launch: LaunchId,
        key: str,
        body_of: Callable[[RosterEntry, _View, float, Material], dict[str, Any]],
    ) -> Answer:
        """Check the lease key and the roster. If both are right, grant the request with ``body_of``'s result."""
        try:
            used_with = self._store.nonce_hash_of(launch)
            # An unused ticket and a wrong key get the same answer, so that a client cannot tell them apart.
            if not tickets.equal_secrets(key, self._key.lease_key(launch, used_with or "")) or used_with is None:
                return Refusal(RefusalCode.WRONG)
            view, silence_s = self._current_view()
            entry = view.entries.get(launch)
            if entry is None:
                return Refusal(RefusalCode.NOT_CURRENT, launch)
            return Granted(launch, entry, body_of(entry, view, silence_s, self._material()))
        except (TicketStoreError, RosterUnreadableError, MaterialError) as error:
            return Refusal(RefusalCode.UNAVAILABLE, retry_after_s=RETRY_S, why=str(error))

    def _start_data(self, entry: RosterEntry, view: _View, silence_s: float, material: Material) -> dict[str, Any]:
        return {
            **self._status(entry, view, silence_s, material),
            "slot": entry.slot,
            "cluster": self._rules.cluster,
            "flux_version": material.flux_version,
            "owner_uid": material.owner_uid,
            "bootstrap": material.bootstrap,
            "curve_cert": material.curve_certificate,
            "command": broker_command(entry.slot, material.flux_version),
        }

    def _status(self, entry: RosterEntry, view: _View, silence_s: float, material: Material) -> dict[str, Any]:
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
        """Note a client's request. Return whether this client may start a broker, and an alarm or ""."""
        check = self._holders.note_request(launch, instance, self._wall_at())
        if not check.is_second:
            return check.holds, ""
        alarm = f"two processes at once use its lease key, one of them from {source}: was its disk copied?"
        with suppress(TicketStoreError):  # the service's own log still has the alarm
            self._keep_report(launch, JoinPhase.REPLAYED, alarm)
        return check.holds, alarm

    def _current_view(self) -> tuple[_View, float]:
        """Return the current roster's view, rebuilt only if the roster changed, and the manager's silence."""
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
    return Refusal(RefusalCode.IN_USE, launch, RETRY_S, f"{source} asks, and another process did just now")


def broker_command(slot: str, flux_version: str) -> list[str]:
    """Return the command line of a node's broker. The node replaces the words in braces by its own paths."""
    begin, end = named_broker("{flux}", slot, parse_version(flux_version))
    return [
        *begin,
        "--config-path={conf}",
        "-Sbroker.boot-method=config",
        *end,
        "-Srundir={rundir}",
        "-Slocal-uri=local://{rundir}/local",
    ]


def _make_view(roster: Roster, rules: AdmissionRules) -> _View:
    hosts = _hosts(roster, rules)
    digest = hashlib.sha256(json.dumps(hosts, sort_keys=True).encode()).hexdigest()[:16]
    by_instance = {(entry.cloud, entry.provider_id): entry for entry in roster if entry.provider_id is not None}
    return _View(roster, {entry.launch: entry for entry in roster}, by_instance, hosts, digest)


def _hosts(roster: Roster, rules: AdmissionRules) -> dict[str, str]:
    """Return names with their addresses: the leader, and every slot whose node has an address at the provider."""
    addresses = {rules.head_host: rules.head_address}
    addresses |= {entry.slot: address for entry in roster if (address := _reachable_address(entry.addresses))}
    return {name: address for name, address in addresses.items() if parse_address(address) is not None}


def _reachable_address(addresses: tuple[str, ...]) -> str:
    """Return the address at which other nodes reach a node: a private one if it has any; "" if it has none."""
    private = (text for text in addresses if (address := parse_address(text)) is not None and address.is_private)
    return next(private, next(iter(addresses), ""))


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


# --- lease holders ----------------------------------------------------------------------------------------
#
# Tracks which process uses a launch's lease key, and detects if two processes do: a copied disk has all secrets.
#
# A client names itself by a random word that it makes at each start and never stores. A restarted client has a
# new word, and its former word never returns. If two processes run, their words alternate.


FORMER_KEPT_MAX = 16  # for each launch


class HolderCheck(NamedTuple):
    """The result of one request of a process."""

    holds: bool  # whether this process may start a broker
    is_second: bool  # whether this request is the first sign that two processes are running


@dataclass(slots=True)
class _Holder:
    """The process that holds a launch, and the other processes that used its lease key."""

    name: str
    heard_at: float
    last_name: str  # the process that made the last request, the holder or another
    former: list[str] = field(default_factory=list)  # processes whose requests another process's request followed
    alarmed: set[str] = field(default_factory=set)  # former processes whose return was already reported


class LeaseHolders:
    """Tracks the holder of each launch.

    If a holder has been silent for ``silent_s``, it counts as ended, and the next process to make a request becomes
    the holder.
    """

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._kept: dict[LaunchId, _Holder] = {}

    def note_request(self, launch: LaunchId, name: str, now_at: float) -> HolderCheck:
        """Note a request of a process that knows the launch's key.

        A process without a name is not checked until one with a name was heard. Then it can never hold the launch:
        else a copy would only have to leave out its name.
        """
        if not name and launch not in self._kept:
            return HolderCheck(holds=True, is_second=False)
        holder = self._kept.setdefault(launch, _Holder(name, now_at, name))
        is_second = self._is_new_return(holder, name)
        if not name:
            return HolderCheck(holds=False, is_second=is_second)
        # abs(): if the clock jumps, in either direction, the next process becomes the holder.
        if name == holder.name or abs(now_at - holder.heard_at) >= self._silent_s:
            holder.name, holder.heard_at = name, now_at
        return HolderCheck(holder.name == name, is_second)

    def keep_only(self, launches: Container[LaunchId]) -> None:
        """Forget every other launch."""
        self._kept = {launch: holder for launch, holder in self._kept.items() if launch in launches}

    @staticmethod
    def _is_new_return(holder: _Holder, name: str) -> bool:
        """Return whether a former process returns for the first time, and note the request."""
        if name == holder.last_name:
            return False
        others = [former for former in holder.former if former != holder.last_name]
        holder.former = [*others, holder.last_name][-FORMER_KEPT_MAX:]
        holder.last_name = name
        is_new = name in holder.former and name not in holder.alarmed
        if is_new:
            holder.alarmed.add(name)
        return is_new
