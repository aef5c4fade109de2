"""The Flux port on a real instance: RPCs with timeouts, on a handle that belongs to the calling thread.

The first call opens the handle. If the connection is lost (rank 0 restarted), one call raises ``FluxError`` and the
next call connects again.

Payloads follow flux-core's modules ``resource`` and ``job-list``, the broker's services ``attr`` and ``overlay``,
and RFC 42 (``rexec``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from nodemanager.config.text.flux_toml import ConfigFile, FluxConfigError, read_slot_types
from nodemanager.core.drains import is_drain_by_flux, is_our_drain
from nodemanager.core.jobs import JobId, JobResult, NodeOrder
from nodemanager.core.nodes import FluxRank, Launch
from nodemanager.core.notation import format_job_id, parse_idset
from nodemanager.core.ports import FluxError, NotRequeued, NotTheActor
from nodemanager.core.records import NOTHING_SPENT, HeldJob, Spend, Steering
from nodemanager.core.slots import Hardware, NodeType, Rank, SlotName, SlotsWish, TypeName
from nodemanager.delegation.jobs import HOLD
from nodemanager.flux import kvs, retype
from nodemanager.flux.bindings import (
    LEADER,
    CallFailed,
    Handle,
    ask,
    ask_all,
    ask_each,
    ask_texts,
    connect,
)
from nodemanager.flux.claim import SERVICE, Claim, Owner, owner_of
from nodemanager.flux.flub import FlubSlotNames
from nodemanager.flux.fluxion import (
    PARAMS,
    QUEUES_REMEDY,
    is_loaded,
    match_policy,
    node_order_of,
    planned_by,
    queues_that_deny,
)
from nodemanager.flux.parse.eventlog import read_job_end
from nodemanager.flux.parse.json_fields import object_at, whole_at
from nodemanager.flux.parse.resources import Look, read_job_ends, read_topology
from nodemanager.flux.parse.versions import GPUS_IN_SCHED_SIMPLE, no_gpus_text, parse_version
from nodemanager.flux.records import data_safe as data_record
from nodemanager.flux.records import given_back, own
from nodemanager.flux.records.unsafe_data import UnsafeJobs, read_ended_jobs
from nodemanager.flux.resubmit import requeue_jobspec
from nodemanager.flux.submit import submit

OWNER_PATIENCE = 4.0  # 100,000 requests of a user delay the answer by a few seconds

Record = TypeVar("Record")

CLUSTER = f"{SERVICE}.cluster"
_LOOK = ("resource.status", "sched.resource-status", "config.get", "job-manager.stats-get")
_ENDED_JOBS_MAX = 1000
_ENDED_JOBS_WITH_DATA_MAX = 10_000  # one that is missed would count as safe
_TOPOLOGIES_PER_LOOK = 16  # a topology has some ten thousand bytes


class RealFluxPort:
    """``FluxPort`` by RPC. An object belongs to one thread, which must also call ``close``."""

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
        types_with_data: Iterable[TypeName] = (),
        early_release: bool = False,
    ) -> None:
        self._uri = uri
        self._cluster_uuid = cluster_uuid
        self._claim = claim
        self._timeout_s = timeout_s
        self._opened: Handle | None = None
        self._exec_handle: Handle | None = None
        self._folder = folder
        self._node_types = tuple(node_types)
        self._measures = measures
        self._names = FlubSlotNames() if flub else None
        self._below: Mapping[Rank, int] = {}
        self._tree_read_by: Handle | None = None  # the connection by which the tree of brokers was read
        self._online: frozenset[Rank] = frozenset()  # this and the next are used only if machines are measured
        self._measured: frozenset[Rank] = frozenset()
        # The first look reads a limited number of ended jobs, later looks only those that ended since.
        self._last_job_ended_at: Mapping[Rank, float] = {}
        self._config: Any = None
        self._slot_types: Mapping[SlotName, TypeName] = {}
        self._look = Look()
        self._early_release = early_release
        types = frozenset(types_with_data)
        others = [slot for it in node_types if it.name not in types for slot in it.slots]
        self._unsafe = UnsafeJobs(types, others) if types else None
        self._ended_known_until_at = 0.0
        self._knows_data = False  # whether what ran before the present leases was left out
        self._damaged: dict[str, str] = {}  # the records of safe data that cannot be read, by KVS key
        self._node_order: NodeOrder | None = None
        self._log: Any = structlog.get_logger()

    def close(self) -> None:
        """Close the connections; the next call opens another."""
        self._close_exec_handle()
        if self._opened is not None:
            handle, self._opened = self._opened, None
            handle.close()

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

    def _warn_of_schedulers(self, config: object) -> None:
        with self._handle() as handle:
            ours = parse_version(handle.version)
        modules = self._ask("module.list")
        queues = queues_that_deny(modules, config)
        has_gpus = any(node_type.gpus for node_type in self._node_types)
        if ours is not None and ours < GPUS_IN_SCHED_SIMPLE and has_gpus and "sched-simple" in str(modules):
            self._log.warning("scheduler_knows_no_gpus", what_to_do=no_gpus_text(ours))
        self._node_order = self._read_node_order() if is_loaded(modules) else NodeOrder.MOST_FREE
        if queues:
            self._log.warning(
                "fluxion_denies_jobs",
                queues=queues,
                what_to_do=QUEUES_REMEDY,
            )

    def _read_node_order(self) -> NodeOrder | None:
        """Ask Fluxion for its match policy, and say how nodes are planned with it."""
        try:
            policy = match_policy(self._ask(PARAMS))
        except CallFailed as failure:
            policy = f"unknown: {failure.text}"
        self._log.info("fluxion_match_policy", match_policy=policy, what=planned_by(policy))
        return node_order_of(policy)

    # --- the right to act ---

    def claim(self) -> None:
        cluster_is_named = self._check_cluster()
        owner = self._owner()
        if owner is None:
            self._take_name()
        elif not self._claim.is_ours(owner):
            raise NotTheActor(f"another manager holds the name {SERVICE} of this instance: {owner}")
        # Check again: another manager may have started and ended before we got the name.
        if not cluster_is_named and not self._check_cluster():
            self._commit({CLUSTER: self._cluster_uuid})

    def _take_name(self) -> None:
        try:
            self._claim.take()
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:
                raise
            holder = self._owner() or "which has just ended"
            raise NotTheActor(f"the name {SERVICE} was taken by another manager, {holder}") from failure

    def _owner(self) -> Owner | None:
        try:
            try:
                return self._ask_owner()
            except CallFailed as failure:
                if failure.answered or failure.timed_out:
                    raise
            return self._ask_owner()  # the handle was stale: rank 0 has restarted since the last call
        except CallFailed as failure:
            if not failure.timed_out:
                raise
            raise NotTheActor(
                f"the holder of the name {SERVICE} did not answer within {self._owner_within_s:g} s"
            ) from failure

    def _ask_owner(self) -> Owner | None:
        with self._handle() as handle:
            return owner_of(handle, timeout_s=self._owner_within_s)

    @property
    def _owner_within_s(self) -> float:
        """How long to wait for the holder of the name. Any user's requests to that name are in its queue too."""
        return OWNER_PATIENCE * self._timeout_s

    def ensure_actor(self) -> None:
        """See :class:`Mandate`. Every call that changes something begins with this, also calls to a provider."""
        owner = self._owner()
        if owner is None:
            raise NotTheActor(f"this manager no longer holds the name {SERVICE}: claim it again")
        if not self._claim.is_ours(owner):
            raise NotTheActor(f"another manager holds the name {SERVICE}: {owner}")

    def _check_cluster(self) -> bool:
        """Return whether the instance carries our cluster's UUID; False if it carries none. Another one raises."""
        if (named := self._read([CLUSTER]).get(CLUSTER)) is None:
            return False
        if named != self._cluster_uuid:
            raise FluxError(
                f"this instance belongs to cluster {named} (KVS key {CLUSTER}), but the site says"
                f" {self._cluster_uuid}: either uri leads to another instance, or init was run again"
            )
        return True

    # --- the record of launches ---

    def launches(self) -> tuple[Launch, ...]:
        with self._handle() as handle:
            names = kvs.list_names(handle, own.LEASES, timeout_s=self._timeout_s)
        return tuple(self._read_records([own.slot_of_lease(name) for name in names]).values())

    def record(self, launches: Sequence[Launch]) -> None:
        self.ensure_actor()
        new = self._not_yet_on_record(launches)
        if not new:
            return
        # Undrain first: if the process dies in between, an unleased slot that takes jobs does no harm.
        self._undrain([launch.rank for launch in new], lambda it: is_our_drain(it) or is_drain_by_flux(it))
        self._commit({own.lease_key(launch.slot): own.encode_lease(launch) for launch in new})

    def _not_yet_on_record(self, launches: Sequence[Launch]) -> tuple[Launch, ...]:
        holders = self._read_records([launch.slot for launch in launches])
        new: dict[SlotName, Launch] = {}
        for launch in launches:
            holder = holders.get(launch.slot) or new.get(launch.slot)
            if holder is None:
                new[launch.slot] = launch
            elif holder.id != launch.id:
                raise FluxError(
                    f"slot {launch.slot} is leased to launch {holder.id}, so neither launch {launch.id} nor the"
                    f" {len(launches) - 1} others with it were recorded"
                )
        return tuple(new.values())

    def forget(self, launch: Launch) -> None:
        self.ensure_actor()
        holder = self._read_records([launch.slot]).get(launch.slot)
        if holder is not None and holder.id == launch.id:
            self._commit({own.lease_key(launch.slot): None})
        if self._unsafe is not None:
            self._unsafe.drop_rank(launch.rank)

    def _read_records(self, slots: Sequence[SlotName]) -> dict[SlotName, Launch]:
        keys = {own.lease_key(slot): slot for slot in slots}
        found: dict[SlotName, Launch] = {}
        for key, text in self._read(list(keys)).items():
            try:
                found[keys[key]] = own.decode_lease(text, keys[key])
            except ValueError as fault:
                raise FluxError(
                    f"the launch record at KVS key {key} cannot be read: {fault}. It may belong to a node that"
                    f" costs money: look for that node at the provider, then run: flux kvs unlink '{key}'"
                ) from fault
        return found

    # --- operators' settings ---

    def steering(self) -> Steering:
        what, risk = "the record of operators' settings", "It may hold nodes that must not be stopped"
        return self._read_record(own.STEERING, own.decode_steering, what, risk) or Steering()

    def keep_steering(self, steering: Steering) -> None:
        self.ensure_actor()
        self._commit({own.STEERING: own.encode_steering(steering)})

    # --- jobs that the manager holds ---

    def held_jobs(self) -> Mapping[JobId, HeldJob]:
        with self._handle() as handle:
            names = kvs.list_names(handle, own.HELD_JOBS, timeout_s=self._timeout_s)
        found = {}
        try:
            keys = {own.held_key(job): job for job in map(own.job_of_held, names)}
            for key, text in self._read(list(keys)).items():
                found[keys[key]] = own.decode_held(text)
        except ValueError as fault:
            raise FluxError(
                f"the record of held jobs at KVS key {own.HELD_JOBS} cannot be read: {fault}. The jobs that it"
                f" names have urgency 0: set it (flux job urgency JOBID default), then run: flux kvs unlink -R"
                f" {own.HELD_JOBS}"
            ) from fault
        return found

    def hold_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        self.ensure_actor()
        self._commit({own.held_key(job): own.encode_held(held) for job, held in jobs.items()})
        self._set_urgencies(dict.fromkeys(jobs, 0))

    def release_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        self.ensure_actor()
        self._set_urgencies({job: held.urgency for job, held in jobs.items()})
        self._commit({own.held_key(job): None for job in jobs})

    def _set_urgencies(self, urgencies: Mapping[JobId, int]) -> None:
        for job, urgency in urgencies.items():
            try:
                self._ask("job-manager.urgency", {"id": job, "urgency": urgency})
            except CallFailed as failure:
                # ENOENT: it has ended. EINVAL: it has started.
                if failure.errno not in (errno.ENOENT, errno.EINVAL):
                    raise

    # --- the money spent ---

    def spend(self) -> Spend:
        what, risk = "the record of the money spent", "Without it the budgets would start again from 0"
        return self._read_record(own.SPEND, own.decode_spend, what, risk) or NOTHING_SPENT

    def keep_spend(self, spend: Spend) -> None:
        self.ensure_actor()
        self._commit({own.SPEND: own.encode_spend(spend)})

    def _read_record(self, key: str, decoded: Callable[[str], Record], what: str, risk: str) -> Record | None:
        text = self._read([key]).get(key)
        if text is None:
            return None
        try:
            return decoded(text)
        except ValueError as fault:
            raise FluxError(
                f"{what}, at KVS key {key}, cannot be read: {fault}. {risk}: look at it (flux kvs get {key}), then"
                f" remove it: flux kvs unlink {key}"
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
                    "the instance has no scheduler (sched.resource-status has no answer), so no job can run and no"
                    " node counts as idle: load one, for example: flux module load sched-simple"
                ) from failure
        try:
            ended = self._update_last_job_ends()
            resources, scheduler, config, stats = (seen[topic] for topic in _LOOK)
            if config != self._config:
                self._config, self._slot_types = config, read_slot_types(config)
                self._warn_of_schedulers(config)
            self._look = self._look.next(resources, scheduler, self._last_job_ended_at, self._slot_types, stats)
        except (ValueError, FluxConfigError) as fault:
            raise FluxError(f"an answer of the instance cannot be read: {fault}") from fault
        ranks = tuple(self._look.ranks.values())
        if self._early_release:
            ranks = self._with_given_back(ranks)
        if self._unsafe is not None:
            ranks = self._with_unsafe_data(ranks, ended, self._unsafe)
        if below := self._ranks_below():
            ranks = tuple(replace(rank, below=below.get(rank.rank, 0)) for rank in ranks)
        if self._names is not None:
            ranks = self._with_slot_names(ranks, self._names)
        if self._measures:
            self._online = frozenset(rank.rank for rank in ranks if rank.online)
            self._measured &= self._online
        return ranks

    def _ranks_below(self) -> Mapping[Rank, int]:
        """Count the ranks below each rank that has any. The tree is fixed while rank 0 runs."""
        with self._handle() as handle:
            if self._tree_read_by is not handle:
                topology = ask(handle, "overlay.topology", {"rank": LEADER}, timeout_s=self._timeout_s)
                self._below, self._tree_read_by = count_below(topology), handle
        return self._below

    def _with_slot_names(self, ranks: tuple[FluxRank, ...], names: FlubSlotNames) -> tuple[FluxRank, ...]:
        with self._handle() as handle:
            answers = ask_each(
                handle, "attr.get", {"name": "hostname"}, names.ranks_to_ask(ranks), timeout_s=self._timeout_s
            )
        names.learn({Rank(rank): SlotName(str(answer["value"])) for rank, answer in answers.items()})
        return names.rename_ranks(ranks)

    def node_order(self) -> NodeOrder | None:
        return self._node_order

    def read_hardware(self) -> Mapping[Rank, Hardware]:
        unknown = sorted(self._online - self._measured)[:_TOPOLOGIES_PER_LOOK]
        if not unknown:
            return {}
        with self._handle() as handle:
            topologies = ask_texts(handle, "resource.topo-get", unknown, timeout_s=self._timeout_s)
        # A broker that does not answer is leaving or hangs. If its rank comes online again, it is asked again.
        self._measured |= frozenset(unknown)
        try:
            return {Rank(rank): read_topology(text) for rank, text in topologies.items()}
        except ValueError as fault:
            raise FluxError(f"an answer of the instance cannot be read: {fault}") from fault

    def jobs_ended(self) -> int:
        stats = self._ask("job-list.job-stats")
        try:
            states = object_at(object_at(stats, "answer").get("job_states"), "job_states")
            return whole_at(states.get("inactive"), "job_states.inactive")
        except ValueError as fault:
            raise FluxError(f"the answer of job-list.job-stats cannot be read: {fault}") from fault

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        self.ensure_actor()
        for job, text in texts.items():
            # Volatile: Flux does not write the event to the job's eventlog (flux-core, job-manager/annotate.c).
            memo = {"id": int(job), "volatile": True, "memo": {"nodes": text}}
            try:
                self._ask("job-manager.memo", memo)
            except CallFailed as failure:
                if failure.errno != errno.ENOENT:
                    raise

    def _with_given_back(self, ranks: tuple[FluxRank, ...]) -> tuple[FluxRank, ...]:
        """Return the ranks, with those that running instances gave back shown as such.

        The list of jobs may lag, so it only says where to look. The eventlog says whether the job still holds them.
        """
        running = {"max_entries": 0, "attrs": ["annotations"], "constraint": {"states": ["running"]}}
        listed = self._ask("job-list.list", running)
        cores = {it.rank: it.cores for it in ranks}
        holder: dict[Rank, JobId] = {}
        try:
            folders = {job: data_record.job_directory(job) for job in given_back.jobs_that_gave_back(listed)}
            texts = self._read([f"{folder}.{name}" for folder in folders.values() for name in ("eventlog", "R")])
            for job, folder in folders.items():
                log, r = (texts.get(f"{folder}.{name}", "") for name in ("eventlog", "R"))
                holder |= dict.fromkeys(given_back.read_given_back(log, r, cores), job)
        except ValueError as fault:
            raise FluxError(f"an answer of the instance cannot be read: {fault}") from fault
        return tuple(_as_given_back(it, holder[it.rank]) if it.rank in holder else it for it in ranks)

    def _with_unsafe_data(
        self, ranks: tuple[FluxRank, ...], ended: object, unsafe: UnsafeJobs
    ) -> tuple[FluxRank, ...]:
        """Return the ranks with the jobs whose data is not safe. ``ended``: the answer of ``job-list.list``."""
        try:
            unsafe.add(read_ended_jobs(ended), ranks)
            if not self._knows_data:
                unsafe.drop_before(self.launches())
                self._knows_data = True
            keys = unsafe.keys()
            texts = self._read(list(keys))
        except ValueError as fault:
            raise FluxError(f"an answer of the instance cannot be read: {fault}") from fault
        for key, text in texts.items():
            try:
                unsafe.apply(keys[key], data_record.decode(text))
            except ValueError as fault:
                # Only that job's data stays unsafe. One line for each fault, not one a second.
                if self._damaged.get(key) != text:
                    self._log.warning("data_safe_record_unreadable", key=key, why=str(fault))
                self._damaged[key] = text
        self._damaged = {key: text for key, text in self._damaged.items() if key in texts}
        return unsafe.mark(ranks)

    def _update_last_job_ends(self) -> object:
        """Ask for the jobs that became inactive since the last look, at most the latest ``_ENDED_JOBS_MAX``.

        Returns the answer.
        """
        request = {
            "max_entries": _ENDED_JOBS_MAX if self._unsafe is None else _ENDED_JOBS_WITH_DATA_MAX,
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
        return reply

    def drain(self, rank: Rank, reason: str, replaces: str | None = None) -> None:
        self.ensure_actor()
        # Ask first: Flux would give our reason to a rank that was drained without a reason.
        present = self._drain_reasons().get(rank)
        if present is not None and present != replaces:
            return
        mode = {"mode": "overwrite"} if present is not None else {}
        try:
            self._ask("resource.drain", {"targets": str(rank), "reason": reason, **mode})
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:
                raise

    def undrain(self, rank: Rank) -> None:
        self.ensure_actor()
        self._undrain([rank], is_our_drain)

    def _undrain(self, ranks: Iterable[Rank], may_undo: Callable[[str | None], bool]) -> None:
        """Undrain the ranks whose drain may be undone. Check right before, because Flux would undo any drain."""
        reasons = self._drain_reasons()
        for rank in ranks:
            if not may_undo(reasons.get(rank)):
                continue
            try:
                self._ask("resource.undrain", {"targets": str(rank)})
            except CallFailed as failure:
                if failure.errno != errno.EEXIST:
                    raise

    def _drain_reasons(self) -> dict[Rank, str]:
        status = self._ask("resource.status")
        if "drain" not in status:  # an empty table would say that no rank is drained
            raise FluxError(f"the answer of resource.status lacks drain: it has {', '.join(status) or 'nothing'}")
        drains = status["drain"]
        return {Rank(rank): drain["reason"] or "" for ranks, drain in drains.items() for rank in parse_idset(ranks)}

    # --- the types of the slots ---

    def repair(self) -> bool:
        self.ensure_actor()
        return self._retyper().repair()

    def slots_wish(self) -> SlotsWish | None:
        return retype.read_wish(self._read([retype.WISH_KEY]).get(retype.WISH_KEY))

    def change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        self.ensure_actor()
        self._retyper().change(wish, moves)

    def refuse_slots(self, wish: SlotsWish, why: str) -> None:
        self.ensure_actor()
        if self.slots_wish() == wish:
            answer = retype.encode_answer(retype.Answer(wish.id, {}, why))
            self._commit({retype.WISH_KEY: None, retype.ANSWER_KEY: answer})

    def _retyper(self) -> retype.Retyper:
        return retype.Retyper(_RetypingCalls(self), self._config_file, self._node_types)

    def _config_file(self) -> ConfigFile:
        if self._folder is None:
            raise FluxConfigError("the folder of the instance's configuration is unknown: set bootstrap_dir")
        return ConfigFile.find(self._folder)

    # --- brokers ---

    def stop_broker(self, rank: Rank) -> None:
        self.ensure_actor()
        try:
            pid = int(self._ask("attr.get", {"name": "broker.pid"}, rank=rank)["value"])
            self._exec(rank, terminate_command(pid))
        except CallFailed as failure:
            if failure.timed_out:
                self._disconnect(rank)
            # Offline, or its exec service has stopped already: the broker is leaving.
            elif failure.errno not in {errno.EHOSTUNREACH, errno.ENOSYS}:
                raise

    def _exec(self, rank: Rank, command: object) -> None:
        """Start a command on a rank.

        More answers follow the first, and flux-core 0.72 may take one for the answer to a later request. So this
        has a connection of its own. It lives until the next command: without its connection Flux kills a command.
        """
        self._close_exec_handle()
        self._exec_handle = connect(self._uri)
        ask(self._exec_handle, "rexec.exec", command, rank=rank, timeout_s=self._timeout_s)

    def _close_exec_handle(self) -> None:
        if self._exec_handle is not None:
            handle, self._exec_handle = self._exec_handle, None
            handle.close()

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        self.ensure_actor()
        self._ask("job-manager.housekeeping-kill", {"signum": signal, "ranks": str(rank)})

    def requeue(self, job: JobId) -> JobId:
        self.ensure_actor()
        lookup = {"id": int(job), "keys": ["J"], "flags": 0}
        signed = self._ask("job-info.lookup", lookup)["J"]
        owner = self._ask("job-list.list-id", {"id": int(job), "attrs": ["userid"]})["job"]["userid"]
        if owner != self._instance_owner():
            raise NotRequeued(f"it belongs to user {owner}, and we cannot submit jobs in that user's name")
        old = format_job_id(int(job))
        try:
            jobspec = requeue_jobspec(signed, old)
        except ValueError as fault:
            raise NotRequeued(f"its signed jobspec cannot be read: {fault}") from fault
        with self._handle() as handle:
            new = JobId(submit(handle, jobspec, timeout_s=self._timeout_s))
        memo = {"id": int(job), "volatile": False, "memo": {"requeued_as": format_job_id(new)}}
        with _ignoring(errno.ENOENT):  # the first one has ended meanwhile
            self._ask("job-manager.memo", memo)
        return new

    def _instance_owner(self) -> int:
        """As whom we submit: only the owner may act. By ssh, that user may have another id on this machine."""
        return int(self._ask("attr.get", {"name": "security.owner"})["value"])

    def result(self, job: JobId) -> JobResult | None:
        try:
            answer = self._ask("job-info.lookup", {"id": int(job), "keys": ["eventlog"], "flags": 0})
            end = read_job_end(answer["eventlog"])
        except ValueError as fault:
            raise FluxError(f"the eventlog of job {job} cannot be read: {fault}") from fault
        except CallFailed as failure:
            if failure.errno != errno.ENOENT:
                raise
            return JobResult.UNKNOWN
        if end is None:
            return None
        return JobResult(end.result) if end.result in list(JobResult) else JobResult.FAILED

    def start_copy(self, job: JobId) -> None:
        self.ensure_actor()
        event = {"id": int(job), "name": "dependency-remove", "context": {"description": HOLD}}
        with _ignoring(errno.ENOENT, errno.EEXIST, errno.EINVAL):  # it has started or ended, or has no hold
            self._ask("job-manager.post-event.post", event)

    def cancel_copy(self, job: JobId, why: str) -> None:
        self.ensure_actor()
        with _ignoring(errno.ENOENT):  # it has ended
            seen = self._ask("job-list.list-id", {"id": int(job), "attrs": ["userid", "dependencies"]})["job"]
            if seen["userid"] == self._instance_owner() and HOLD in (seen.get("dependencies") or ()):
                self._ask("job-manager.raise", {"id": int(job), "type": "cancel", "severity": 0, "note": why})

    def _disconnect(self, rank: Rank) -> None:
        """Make the parent disconnect a broker that does not answer from the overlay."""
        parent = _parent_of(self._ask("overlay.topology", {"rank": LEADER}), rank)
        try:
            self._ask("overlay.disconnect-subtree", {"rank": rank}, rank=parent)
        except CallFailed as failure:
            if failure.errno != errno.EINVAL:  # gone in the meantime
                raise


@dataclass(frozen=True, slots=True)
class _RetypingCalls:
    """The port's implementation of ``retype.InstanceCalls``."""

    port: RealFluxPort

    def ask(self, topic: str, payload: object = None, *, timeout_s: float | None = None) -> Any:
        return self.port._ask(topic, payload, timeout_s=timeout_s)  # noqa: SLF001 - a part of the port

    def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        return self.port._read(keys)  # noqa: SLF001

    def commit(self, changes: Mapping[str, str | None]) -> None:
        self.port._commit(changes)  # noqa: SLF001

    def leased(self, slots: Sequence[SlotName]) -> Sequence[SlotName]:
        return tuple(self.port._read_records(slots))  # noqa: SLF001


@contextmanager
def _ignoring(*expected: int) -> Iterator[None]:
    try:
        yield
    except CallFailed as failure:
        if failure.errno not in expected:
            raise


def terminate_command(pid: int) -> dict[str, object]:
    """Make the payload (RFC 42) with which a broker's own exec service sends the broker SIGTERM."""
    command = ["sh", "-c", f"kill -TERM {pid}"]
    return {"cmd": {"cmdline": command, "cwd": "/", "env": {}, "opts": {}, "channels": []}, "flags": 0}


def count_below(topology: Mapping[str, Any]) -> Mapping[Rank, int]:
    """Count the ranks below each rank but the leader that has any, from the answer of ``overlay.topology``."""
    below: dict[Rank, int] = {}
    unseen = list(topology["children"])
    while unseen:
        broker = unseen.pop()
        if broker["children"]:
            below[Rank(broker["rank"])] = broker["size"] - 1
            unseen.extend(broker["children"])
    return below


def _parent_of(topology: Mapping[str, Any], rank: Rank) -> int:
    """Find a rank's parent in the answer of ``overlay.topology``: ``{rank, size, children: [...]}``."""
    unseen = [topology]
    while unseen:
        broker = unseen.pop()
        if any(child["rank"] == rank for child in broker["children"]):
            return int(broker["rank"])
        unseen.extend(broker["children"])
    raise FluxError(f"rank {rank} is not in the overlay's topology")


def _as_given_back(rank: FluxRank, job: JobId) -> FluxRank:
    """The rank as a job that holds all of it has given it back."""
    if not rank.allocated or rank.housekeeping_since_at is not None:
        return rank
    return replace(rank, allocated=False, cores_free=0, gpus_free=0, given_back=job)
