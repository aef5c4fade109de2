"""The Flux port on a real instance: RPCs with timeouts, on a handle of the calling thread's own.

The handle is opened by the first call, and again after one was lost (rank 0 restarted): a call that finds the
connection lost raises ``FluxError``, the next one connects anew.

Payloads are those of flux-core's modules ``resource`` and ``job-list``, of the broker's ``attr`` and ``overlay``
services, and of RFC 42 (``rexec``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from nodemanager.config.text.flux_toml import ConfigFile, FluxConfigError, read_slot_types
from nodemanager.core.drains import is_our_drain
from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import FluxRank, Launch
from nodemanager.core.notation import format_job_id, parse_idset
from nodemanager.core.ports import FluxError, NotRequeued, NotTheActor
from nodemanager.core.records import NOTHING_SPENT, Spend, Steering
from nodemanager.core.slots import Hardware, NodeType, Rank, SlotName, SlotsWish, TypeName
from nodemanager.flux import kvs, retype
from nodemanager.flux.bindings import LEADER, CallFailed, Handle, ask, ask_all, ask_each, ask_texts, close, connect
from nodemanager.flux.claim import SERVICE, Claim, Owner, owner_of
from nodemanager.flux.flub import FlubSlotNames
from nodemanager.flux.fluxion import queues_that_deny
from nodemanager.flux.parse.json_fields import object_at, whole_at
from nodemanager.flux.parse.resources import Look, read_job_ends, read_topology
from nodemanager.flux.records import lease as record
from nodemanager.flux.records import spend as spend_record
from nodemanager.flux.records import steering as steering_record
from nodemanager.flux.resubmit import requeue_jobspec
from nodemanager.flux.submit import submit

Record = TypeVar("Record")

CLUSTER = f"{SERVICE}.cluster"
_LOOK = ("resource.status", "sched.resource-status", "config.get", "job-manager.stats-get")
_ENDED_JOBS_MAX = 1000
_MEASURED_AT_ONCE = 16  # a topology has some ten thousand bytes


class RealFluxPort:
    """``FluxPort`` by RPC. An object belongs to one thread, its ``close`` too."""

    def __init__(
        self,
        uri: str,
        cluster_uuid: str,
        claim: Claim,
        *,
        folder: Path | None = None,
        node_types: Sequence[NodeType] = (),
        timeout_s: float = 5.0,
        measures: bool = False,
        flub: bool = False,
    ) -> None:
        self._uri = uri
        self._cluster_uuid = cluster_uuid
        self._claim = claim
        self._timeout_s = timeout_s
        self._opened: Handle | None = None
        self._folder = folder
        self._node_types = tuple(node_types)
        self._measures = measures
        self._names = FlubSlotNames() if flub else None
        self._online: frozenset[Rank] = frozenset()  # kept, as the next, only where machines are measured
        self._measured: frozenset[Rank] = frozenset()
        # As Flux remembers it: up to a bound at first, then what ended since the last look.
        self._last_job_ended_at: Mapping[Rank, float] = {}
        self._config: Any = None
        self._division: Mapping[SlotName, TypeName] = {}
        self._look = Look()
        self._ended_known_until_at = 0.0
        self._log: Any = structlog.get_logger()

    def close(self) -> None:
        """Let go of the connection; the next call opens another."""
        if self._opened is not None:
            handle, self._opened = self._opened, None
            close(handle)

    @contextmanager
    def _handle(self) -> Iterator[Handle]:
        if self._opened is None:
            self._opened = connect(self._uri)
        try:
            yield self._opened
        except CallFailed as failure:
            if not failure.answered:
                self.close()
            raise

    def _ask(
        self, topic: str, payload: object = None, *, rank: int = LEADER, timeout_s: float | None = None
    ) -> Any:
        with self._handle() as handle:
            return ask(handle, topic, payload, rank=rank, timeout_s=timeout_s or self._timeout_s)

    def _warn_of_fluxion(self, config: object) -> None:
        queues = queues_that_deny(self._ask("module.list"), config)
        if queues:
            self._log.warning(
                "fluxion_denies_jobs",
                queues=queues,
                what_to_do='set queue-policy = "easy" in [sched-fluxion-qmanager]: by fcfs jobs for more nodes than'
                " are up are denied, and none can come for them",
            )

    # --- who acts ---

    def claim(self) -> None:
        cluster_is_named = self._check_cluster()
        owner = self._owner()
        if owner is None:
            self._take_the_name()
        elif not self._claim.is_ours(owner):
            raise NotTheActor(f"the name {SERVICE} of this instance is held by another manager, {owner}")
        # Looked at again: between the first look and the name another manager may have come and gone.
        if not cluster_is_named and not self._check_cluster():
            self._commit({CLUSTER: self._cluster_uuid})

    def _take_the_name(self) -> None:
        try:
            self._claim.take()
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:
                raise
            holder = self._owner() or "one that has just gone"
            raise NotTheActor(f"the name {SERVICE} was taken by another manager, {holder}") from failure

    def _owner(self) -> Owner | None:
        try:
            try:
                return self._ask_owner()
            except CallFailed as failure:
                if failure.answered or failure.timed_out:
                    raise
            return self._ask_owner()  # the handle was a stale one: rank 0 has restarted since the last call
        except CallFailed as failure:
            if not failure.timed_out:
                raise
            raise NotTheActor(f"who holds the name {SERVICE} does not say in {self._timeout_s:g} s") from failure

    def _ask_owner(self) -> Owner | None:
        with self._handle() as handle:
            return owner_of(handle, timeout_s=self._timeout_s)

    def ensure_actor(self) -> None:
        """Every changing call comes here first, those to a provider too."""
        owner = self._owner()
        if owner is None:
            raise NotTheActor(f"the name {SERVICE} is not held by us any more: claim it again")
        if not self._claim.is_ours(owner):
            raise NotTheActor(f"the name {SERVICE} is held by another manager, {owner}")

    def _check_cluster(self) -> bool:
        """Whether the instance is known to be of our cluster (or yet of none)."""
        if (named := self._read([CLUSTER]).get(CLUSTER)) is None:
            return False
        if named != self._cluster_uuid:
            raise FluxError(
                f"this instance belongs to cluster {named} (KVS key {CLUSTER}), our site says {self._cluster_uuid}:"
                " uri leads to another instance, or the site was initialised anew"
            )
        return True

    # --- the record of launches ---

    def launches(self) -> tuple[Launch, ...]:
        with self._handle() as handle:
            names = kvs.list_names(handle, record.LEASES, timeout_s=self._timeout_s)
        return tuple(self._read_records([record.slot_of(name) for name in names]).values())

    def record(self, launches: Sequence[Launch]) -> None:
        self.ensure_actor()
        new = self._not_yet_on_record(launches)
        if not new:
            return
        # First the drains: should we die in between, an unleased slot that takes jobs harms nobody.
        self._undrain_ours(launch.rank for launch in new)
        self._commit({record.key_of(launch.slot): record.encode(launch) for launch in new})

    def _not_yet_on_record(self, launches: Sequence[Launch]) -> tuple[Launch, ...]:
        holders = self._read_records([launch.slot for launch in launches])
        new: dict[SlotName, Launch] = {}
        for launch in launches:
            holder = holders.get(launch.slot) or new.get(launch.slot)
            if holder is None:
                new[launch.slot] = launch
            elif holder.id != launch.id:
                raise FluxError(
                    f"slot {launch.slot} is leased to launch {holder.id}, so launch {launch.id} is not recorded,"
                    f" nor are the {len(launches) - 1} with it"
                )
        return tuple(new.values())

    def forget(self, launch: Launch) -> None:
        self.ensure_actor()
        holder = self._read_records([launch.slot]).get(launch.slot)
        if holder is not None and holder.id == launch.id:
            self._commit({record.key_of(launch.slot): None})

    def _read_records(self, slots: Sequence[SlotName]) -> dict[SlotName, Launch]:
        keys = {record.key_of(slot): slot for slot in slots}
        found: dict[SlotName, Launch] = {}
        for key, text in self._read(list(keys)).items():
            try:
                found[keys[key]] = record.decode(text, keys[key])
            except ValueError as fault:
                raise FluxError(
                    f"the launch record at KVS key {key} cannot be read: {fault}. It may stand for a node that"
                    f" costs money: look for that at the provider, then remove it by: flux kvs unlink '{key}'"
                ) from fault
        return found

    # --- what operators have set ---

    def steering(self) -> Steering:
        what, risk = "what operators have set", "It may hold nodes that must not be stopped"
        return self._on_record(steering_record.KEY, steering_record.decode, what, risk) or Steering()

    def keep_steering(self, steering: Steering) -> None:
        self.ensure_actor()
        self._commit({steering_record.KEY: steering_record.encode(steering)})

    # --- what was spent ---

    def spend(self) -> Spend:
        what, risk = "what was spent", "Without it a budget would begin anew"
        return self._on_record(spend_record.KEY, spend_record.decode, what, risk) or NOTHING_SPENT

    def keep_spend(self, spend: Spend) -> None:
        self.ensure_actor()
        self._commit({spend_record.KEY: spend_record.encode(spend)})

    def _on_record(self, key: str, decoded: Callable[[str], Record], what: str, risk: str) -> Record | None:
        text = self._read([key]).get(key)
        if text is None:
            return None
        try:
            return decoded(text)
        except ValueError as fault:
            raise FluxError(
                f"{what}, at KVS key {key}, cannot be read: {fault}. {risk}: look at it (flux kvs get {key}), then"
                f" remove it by: flux kvs unlink {key}"
            ) from fault

    def _read(self, keys: Sequence[str]) -> dict[str, str]:
        with self._handle() as handle:
            return kvs.read(handle, keys, timeout_s=self._timeout_s)

    def _commit(self, changes: Mapping[str, str | None]) -> None:
        with self._handle() as handle:
            kvs.commit(handle, changes, timeout_s=self._timeout_s)

    # --- ranks ---

    def ranks(self) -> tuple[FluxRank, ...]:
        with self._handle() as handle:
            try:
                seen = ask_all(handle, dict.fromkeys(_LOOK), timeout_s=self._timeout_s)
            except CallFailed as failure:
                if failure.errno != errno.ENOSYS or failure.what != "sched.resource-status":
                    raise
                raise FluxError(
                    "the instance has no scheduler (sched.resource-status is not answered): nothing can run, nor be"
                    " judged idle; load one, such as: flux module load sched-simple"
                ) from failure
        try:
            self._take_in_ended_jobs()
            resources, scheduler, config, stats = (seen[topic] for topic in _LOOK)
            if config != self._config:
                self._config, self._division = config, read_slot_types(config)
                self._warn_of_fluxion(config)
            self._look = self._look.next(resources, scheduler, self._last_job_ended_at, self._division, stats)
        except (ValueError, FluxConfigError) as fault:
            raise FluxError(f"the instance answers what cannot be read: {fault}") from fault
        ranks = tuple(self._look.ranks.values())
        if self._names is not None:
            ranks = self._named(ranks, self._names)
        if self._measures:
            self._online = frozenset(rank.rank for rank in ranks if rank.online)
            self._measured &= self._online
        return ranks

    def _named(self, ranks: tuple[FluxRank, ...], names: FlubSlotNames) -> tuple[FluxRank, ...]:
        with self._handle() as handle:
            said = ask_each(
                handle, "attr.get", {"name": "hostname"}, names.ranks_to_ask(ranks), timeout_s=self._timeout_s
            )
        names.learn({Rank(rank): SlotName(str(answer["value"])) for rank, answer in said.items()})
        return names.rename_ranks(ranks)

    def read_hardware(self) -> Mapping[Rank, Hardware]:
        unknown = sorted(self._online - self._measured)[:_MEASURED_AT_ONCE]
        if not unknown:
            return {}
        with self._handle() as handle:
            topologies = ask_texts(handle, "resource.topo-get", unknown, timeout_s=self._timeout_s)
        # One that does not answer is leaving, or hangs; should it come back, it is asked then.
        self._measured |= frozenset(unknown)
        try:
            return {Rank(rank): read_topology(text) for rank, text in topologies.items()}
        except ValueError as fault:
            raise FluxError(f"the instance answers what cannot be read: {fault}") from fault

    def jobs_ended(self) -> int:
        stats = self._ask("job-list.job-stats")
        try:
            states = object_at(object_at(stats, "answer").get("job_states"), "job_states")
            return whole_at(states.get("inactive"), "job_states.inactive")
        except ValueError as fault:
            raise FluxError(f"job-list.job-stats answers what cannot be read: {fault}") from fault

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        self.ensure_actor()
        for job, text in texts.items():
            # Volatile: an event that is not written to the job's own log (flux-core, job-manager/annotate.c).
            memo = {"id": int(job), "volatile": True, "memo": {"nodes": text}}
            try:
                self._ask("job-manager.memo", memo)
            except CallFailed as failure:
                if failure.errno != errno.ENOENT:
                    raise

    def _take_in_ended_jobs(self) -> None:
        """Ask for the jobs that became inactive since we last asked (the latest of them, should they be many)."""
        request = {
            "max_entries": _ENDED_JOBS_MAX,
            "attrs": ["ranks", "t_inactive"],
            "since": self._ended_known_until_at,
            "constraint": {"states": ["inactive"]},
        }
        reply = self._ask("job-list.list", request)
        known = self._last_job_ended_at
        if ends := read_job_ends(reply):
            latest = {rank: max(ended_at, known.get(rank, 0.0)) for rank, ended_at in ends.items()}
            self._last_job_ended_at = {**known, **latest}  # the last look keeps what it was compared by
        # Those that never ran have no ranks, and need not be shown again either.
        ended = [job["t_inactive"] for job in reply["jobs"] if job.get("t_inactive")]
        self._ended_known_until_at = max([self._ended_known_until_at, *ended])

    def drain(self, rank: Rank, reason: str) -> None:
        self.ensure_actor()
        # Asked first, for Flux would write our reason to one that was drained without giving any.
        if rank in self._drain_reasons():
            return
        try:
            self._ask("resource.drain", {"targets": str(rank), "reason": reason})
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:
                raise

    def undrain(self, rank: Rank) -> None:
        self.ensure_actor()
        self._undrain_ours([rank])

    def _undrain(self, rank: Rank) -> None:
        try:
            self._ask("resource.undrain", {"targets": str(rank)})
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:
                raise

    def _undrain_ours(self, ranks: Iterable[Rank]) -> None:
        """Asked right before, as Flux undrains whoever drained it: somebody else may have since the look."""
        reasons = self._drain_reasons()
        for rank in ranks:
            if is_our_drain(reasons.get(rank)):
                self._undrain(rank)

    def _drain_reasons(self) -> dict[Rank, str]:
        drains = self._ask("resource.status")["drain"]
        return {Rank(rank): drain["reason"] or "" for ranks, drain in drains.items() for rank in parse_idset(ranks)}

    # --- the division of the slots ---

    def repair(self) -> bool:
        self.ensure_actor()
        return self._retyping().repair()

    def slots_wish(self) -> SlotsWish | None:
        return retype.read_wish(self._read([retype.WISH_KEY]).get(retype.WISH_KEY))

    def change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        self.ensure_actor()
        self._retyping().change(wish, moves)

    def refuse_slots(self, wish: SlotsWish, why: str) -> None:
        self.ensure_actor()
        if self.slots_wish() == wish:
            answer = retype.encode_answer(retype.Answer(wish.id, {}, why))
            self._commit({retype.WISH_KEY: None, retype.ANSWER_KEY: answer})

    def _retyping(self) -> retype.Retyper:
        return retype.Retyper(_RetypingCalls(self), self._config_file, self._node_types)

    def _config_file(self) -> ConfigFile:
        if self._folder is None:
            raise FluxConfigError("the folder of the instance's configuration is not known")
        return ConfigFile.find(self._folder)

    # --- brokers ---

    def stop_broker(self, rank: Rank) -> None:
        self.ensure_actor()
        try:
            pid = int(self._ask("attr.get", {"name": "broker.pid"}, rank=rank)["value"])
            self._ask("rexec.exec", terminate_command(pid), rank=rank)
        except CallFailed as failure:
            if failure.timed_out:
                self._disconnect(rank)
            # Offline, or its exec service is shut already: it is leaving.
            elif failure.errno not in {errno.EHOSTUNREACH, errno.ENOSYS}:
                raise

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        self.ensure_actor()
        self._ask("job-manager.housekeeping-kill", {"signum": signal, "ranks": str(rank)})

    def requeue(self, job: JobId) -> JobId:
        self.ensure_actor()
        asked = {"id": int(job), "keys": ["J"], "flags": 0}
        signed = self._ask("job-info.lookup", asked)["J"]
        owner = self._ask("job-list.list-id", {"id": int(job), "attrs": ["userid"]})["job"]["userid"]
        if owner != os.getuid():
            raise NotRequeued(f"it is user {owner}'s, in whose name nothing can be submitted by us")
        old = format_job_id(int(job))
        try:
            jobspec = requeue_jobspec(signed, old)
        except ValueError as fault:
            raise NotRequeued(f"its signed jobspec cannot be read: {fault}") from fault
        with self._handle() as handle:
            new = JobId(submit(handle, jobspec, timeout_s=self._timeout_s))
        memo = {"id": int(job), "volatile": False, "memo": {"requeued_as": format_job_id(new)}}
        self._ask("job-manager.memo", memo)
        return new

    def _disconnect(self, rank: Rank) -> None:
        """Have a broker that does not answer put out of the overlay by its parent."""
        parent = _parent_of(self._ask("overlay.topology", {"rank": LEADER}), rank)
        try:
            self._ask("overlay.disconnect-subtree", {"rank": rank}, rank=parent)
        except CallFailed as failure:
            if failure.errno != errno.EINVAL:  # gone in the meantime
                raise


@dataclass(frozen=True, slots=True)
class _RetypingCalls:
    """What a change of the slots needs of the port, in its words."""

    port: RealFluxPort

    def ask(self, topic: str, payload: object = None, *, timeout_s: float | None = None) -> Any:
        return self.port._ask(topic, payload, timeout_s=timeout_s)  # noqa: SLF001 - a part of the port

    def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        return self.port._read(keys)  # noqa: SLF001

    def commit(self, changes: Mapping[str, str | None]) -> None:
        self.port._commit(changes)  # noqa: SLF001

    def leased(self, slots: Sequence[SlotName]) -> Sequence[SlotName]:
        return tuple(self.port._read_records(slots))  # noqa: SLF001


def terminate_command(pid: int) -> dict[str, object]:
    """The payload (RFC 42) that has a broker's own exec service send it SIGTERM, in its own environment."""
    command = ["sh", "-c", f"kill -TERM {pid}"]
    return {"cmd": {"cmdline": command, "cwd": "/", "env": {}, "opts": {}, "channels": []}, "flags": 0}


def _parent_of(topology: Mapping[str, Any], rank: Rank) -> int:
    """Search the tree that ``overlay.topology`` shows: ``{rank, size, children: [...]}``."""
    unseen = [topology]
    while unseen:
        broker = unseen.pop()
        if any(child["rank"] == rank for child in broker["children"]):
            return int(broker["rank"])
        unseen.extend(broker["children"])
    raise FluxError(f"rank {rank} is not in the overlay's topology")
