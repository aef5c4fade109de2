"""Change the types of slots while the instance runs.

Only the configuration changes R: first the file, then the ``config.load`` RPC. Then the scheduler is unloaded, the
``resource`` module is reloaded, and the scheduler is loaded again. (``resource.reload`` would also work, but after
it the scheduler never uses a rank again that once goes offline.) The new scheduler learns the allocations from the
hello of RFC 27, so running jobs stay. It must find every core that they hold.

The KVS holds the state of a change, one value each:

- the *wish* of a user, until it is answered;
- the *marker*, from before the instance is touched until it is complete again. A manager that finds one repairs;
- the *answer* to the last wish that was answered.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nodemanager.config.text.flux_toml import (
    ConfigFile,
    FluxConfigError,
    SlotTypes,
    bootstrap_hosts,
    config_with_slot_types,
    hosts_lacking_units,
    read_promises,
    read_slot_types,
    toml_with_slot_types,
)
from nodemanager.core.drains import DRAIN_MARK
from nodemanager.core.nodes import FluxRank
from nodemanager.core.ports import FluxError, SlotsUnchanged
from nodemanager.core.slots import NodeType, Promise, Rank, SlotName, SlotsWish, TypeName
from nodemanager.core.untrusted import read_json
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.claim import SERVICE
from nodemanager.flux.parse.json_fields import list_at, object_at, text_at, whole_at
from nodemanager.flux.parse.resources import held_units, read_ranks

SLOTS_KEY = f"{SERVICE}.slots"
WISH_KEY, MARKER_KEY, ANSWER_KEY = f"{SLOTS_KEY}.wish", f"{SLOTS_KEY}.marker", f"{SLOTS_KEY}.answer"
DRAIN_REASON = f"{DRAIN_MARK}slots"  # keeps jobs off a slot that changes its type, if its broker starts just then
RESOURCE = "resource"
LOAD_TIMEOUT_S = 30.0
_LOOK_PAUSE_S = 0.02
_LOOK = ("resource.status", "sched.resource-status")


class InstanceCalls(Protocol):
    """The calls to the instance that a change needs."""

    def ask(self, topic: str, payload: object = None, *, timeout_s: float | None = None) -> Any:
        """Send one RPC to rank 0 and wait for its answer. Raises ``CallFailed``."""
        ...

    def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Read the KVS values of the keys that exist."""
        ...

    def commit(self, changes: Mapping[str, str | None]) -> None:
        """Write KVS values in one transaction; None unlinks."""
        ...

    def leased(self, slots: Sequence[SlotName]) -> Sequence[SlotName]:
        """Return those of the slots that have a lease."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a wish. ``why`` is "" if it was fulfilled."""

    wish_id: str
    moves: Mapping[SlotName, TypeName]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A broker module: its name, and the path from which it is loaded."""

    name: str
    path: str


def read_schedulers(module_list: object) -> list[Module]:
    """List the scheduler's modules from a ``module.list`` reply, in the order in which to unload them.

    Load them in the opposite order, because the module with the service ``sched`` depends on the others.
    sched-simple is one module. Fluxion unloads sched-fluxion-qmanager, sched-fluxion-feasibility,
    sched-fluxion-resource.
    """
    found = [
        (not schedules, module)
        for module, schedules in _read_modules(module_list)
        if schedules or module.name.startswith("sched-")
    ]
    return [module for _, module in sorted(found, key=lambda item: (item[0], item[1].name))]


def _read_modules(module_list: object) -> list[tuple[Module, bool]]:
    """Read every module, and whether it provides the service ``sched``."""
    mods = list_at(object_at(module_list, "module.list").get("mods"), "module.list.mods")
    return [(Module(mod["name"], mod["path"]), "sched" in mod.get("services", ())) for mod in mods]


# --- the values in the KVS --------------------------------------------------------------------------------


def encode_wish(wish: SlotsWish) -> str:
    """Write a wish as its KVS value."""
    return json.dumps({"id": wish.id, "counts": dict(wish.counts)}, sort_keys=True)


def decode_wish(text: str) -> SlotsWish:
    """Read a wish from its KVS value. Raises ``ValueError``."""
    fields = object_at(read_json(text), "wish")
    counts = object_at(fields.get("counts"), "wish.counts")
    return SlotsWish(
        text_at(fields.get("id"), "wish.id"),
        {TypeName(name): whole_at(count, f"wish.counts.{name}") for name, count in counts.items()},
    )


def read_wish(text: str | None) -> SlotsWish | None:
    """Read a wish. None if there is none, or if it is unreadable: no client of ours wrote it or waits for it."""
    try:
        return decode_wish(text) if text is not None else None
    except ValueError:
        return None


def encode_answer(answer: Answer) -> str:
    """Write an answer as its KVS value."""
    return json.dumps({"id": answer.wish_id, "moves": dict(answer.moves), "why": answer.why}, sort_keys=True)


def decode_answer(text: str) -> Answer:
    """Read an answer from its KVS value. Raises ``ValueError``."""
    fields = object_at(read_json(text), "answer")
    moves = object_at(fields.get("moves"), "answer.moves")
    return Answer(
        text_at(fields.get("id"), "answer.id"),
        {SlotName(slot): TypeName(text_at(name, f"answer.moves.{slot}")) for slot, name in moves.items()},
        text_at(fields.get("why"), "answer.why"),
    )


def _encode_marker(wish_id: str, moves: SlotTypes, schedulers: Sequence[Module]) -> str:
    modules = [{"name": module.name, "path": module.path} for module in schedulers]
    return json.dumps({"wish": wish_id, "moves": dict(moves), "schedulers": modules}, sort_keys=True)


def _decode_marker(text: str) -> tuple[Answer, list[Module]]:
    fields = object_at(read_json(text), "marker")
    moves = object_at(fields.get("moves"), "marker.moves")
    answer = Answer(
        text_at(fields.get("wish"), "marker.wish"),
        {SlotName(slot): TypeName(text_at(name, f"marker.moves.{slot}")) for slot, name in moves.items()},
    )
    modules = [object_at(item, "marker.schedulers") for item in list_at(fields.get("schedulers"), "marker")]
    return answer, [Module(text_at(item["name"], "name"), text_at(item["path"], "path")) for item in modules]


# --- the change -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retyper:
    """Changes the types of slots step by step. ``file`` finds the configuration on rank 0's machine, this one."""

    calls: InstanceCalls
    file: Callable[[], ConfigFile]
    node_types: tuple[NodeType, ...]

    def change(self, wish: SlotsWish, moves: SlotTypes) -> None:
        """See ``FluxPort.change_slots``. The order of the steps ensures that a crash at any point loses nothing."""
        answer = Answer(wish.id, moves)
        if not moves:
            self._answer(answer)
            return
        before = self._prepare(moves, wish.promises)
        schedulers = self._schedulers()
        self.calls.commit({MARKER_KEY: _encode_marker(wish.id, moves, schedulers)})
        try:
            self._load_config()
        except CallFailed as failure:
            if not failure.answered:
                raise
            # The instance refused before anything was unloaded: restore the file to match the instance.
            self._put_back(before)
            self._undrain(self._drained_by_us())
            self.calls.commit({MARKER_KEY: None})
            raise SlotsUnchanged(f"the instance does not accept the configuration: {failure}") from failure
        self._reload(schedulers)
        self._undrain(self._drained_by_us())
        self._answer(answer)

    def _put_back(self, text: str) -> None:
        try:
            self.file().write(text)
        except FluxConfigError as error:
            raise FluxError(str(error)) from error

    def _prepare(self, moves: SlotTypes, promises: Mapping[TypeName, Promise]) -> str:
        """Drain the slots and write the file; return its former text. If this fails, nothing is changed."""
        try:
            before = self.file().text()
            self._drain(moves)
            self._check_still_free(moves)
            self._write_file(moves, promises)
        except (FluxConfigError, SlotsUnchanged) as error:
            self._undrain(self._drained_by_us())
            raise SlotsUnchanged(str(error)) from error
        return before

    def repair(self) -> bool:
        """See ``FluxPort.repair``: repeat every step after the marker."""
        text = self.calls.read([MARKER_KEY]).get(MARKER_KEY)
        if text is None:
            return False
        try:
            answer, schedulers = _decode_marker(text)
        except (ValueError, KeyError) as fault:
            raise FluxError(
                f"the marker at KVS key {MARKER_KEY} cannot be read: {fault}. Make sure that a scheduler is loaded"
                f" (flux module list), then remove the marker: flux kvs unlink {MARKER_KEY}"
            ) from fault
        self._load_config()
        self._reload(schedulers)
        self._undrain(self._drained_by_us())
        # The file matches the instance now. It may have been restored before the marker was cleared.
        slot_types = self._read_slot_types_of_file()
        if any(slot_types.get(slot) != name for slot, name in answer.moves.items()):
            answer = Answer(answer.wish_id, {}, "the instance does not accept the configuration")
        self._answer(answer)
        return True

    def _answer(self, answer: Answer) -> None:
        changes: dict[str, str | None] = {MARKER_KEY: None, ANSWER_KEY: encode_answer(answer)}
        # This does not answer a newer wish that has replaced this one meanwhile.
        wish = read_wish(self.calls.read([WISH_KEY]).get(WISH_KEY))
        if wish is not None and wish.id == answer.wish_id:
            changes[WISH_KEY] = None
        self.calls.commit(changes)

    # --- before ---

    def _drain(self, moves: SlotTypes) -> None:
        """Drain the slots, so that a broker that comes online from now on gets no job."""
        ranks = {rank.host: rank for rank in self._look()}
        for slot in moves:
            if slot not in ranks:
                raise SlotsUnchanged(f"slot {slot} is not among the instance's resources")
            if ranks[slot].drain_reason is None:
                self.calls.ask("resource.drain", {"targets": str(ranks[slot].rank), "reason": DRAIN_REASON})

    def _look(self) -> tuple[FluxRank, ...]:
        resources, scheduler = (self.calls.ask(topic) for topic in _LOOK)
        return read_ranks(resources, scheduler, {})

    def _check_still_free(self, moves: SlotTypes) -> None:
        taken = [rank.host for rank in self._look() if rank.host in moves and (rank.online or rank.allocated)]
        taken += self.calls.leased(list(moves))
        if taken:
            raise SlotsUnchanged(f"slot {taken[0]} was taken meanwhile: try again")

    def _write_file(self, moves: SlotTypes, promises: Mapping[TypeName, Promise]) -> None:
        file = self.file()
        config = file.read()
        if bootstrap_hosts(config) != bootstrap_hosts(self.calls.ask("config.get")):
            raise SlotsUnchanged(
                f"{file.path} has another bootstrap table than this instance: set bootstrap_dir to the folder of"
                " this instance's configuration"
            )
        slot_types = self._slot_types_in(config) | dict(moves)
        held = held_units(self.calls.ask("resource.status"), self.calls.ask("sched.resource-status"))
        lacking = hosts_lacking_units(config_with_slot_types(config, slot_types, self.node_types, promises), held)
        if lacking:
            raise SlotsUnchanged(
                f"{file.path} would declare less for {lacking[0]} than a job holds there: wait for the job to end"
            )
        file.write(toml_with_slot_types(file.text(), slot_types, self.node_types, promises))

    def _read_slot_types_of_file(self) -> dict[SlotName, TypeName]:
        try:
            return self._slot_types_in(self.file().read())
        except FluxConfigError as error:
            raise FluxError(str(error)) from error

    def _slot_types_in(self, config: Mapping[str, Any]) -> dict[SlotName, TypeName]:
        """Read the slot types from the file's configuration; use the site's if an older version wrote the file."""
        return read_slot_types(config) or {
            slot: node_type.name for node_type in self.node_types for slot in node_type.slots
        }

    # --- the change itself, which can be repeated ---

    def _load_config(self) -> None:
        """Load the file's slot types into the instance. Other edits of the file wait for the instance's restart."""
        slot_types = self._read_slot_types_of_file()
        try:
            promises = read_promises(self.file().read())
            config = config_with_slot_types(self.calls.ask("config.get"), slot_types, self.node_types, promises)
        except FluxConfigError as error:
            raise FluxError(str(error)) from error
        self.calls.ask("config.load", config, timeout_s=LOAD_TIMEOUT_S)

    def _reload(self, schedulers: Sequence[Module]) -> None:
        loaded = {module.name: module for module in self._modules()}
        for module in schedulers:
            if module.name in loaded:
                self._remove(module.name)
        resource = loaded.get(RESOURCE) or Module(RESOURCE, RESOURCE)
        if RESOURCE in loaded:
            self._remove(RESOURCE)
        for module in (resource, *reversed(schedulers)):
            self._load(module)
        self._await_scheduler()

    def _schedulers(self) -> list[Module]:
        return read_schedulers(self.calls.ask("module.list"))

    def _modules(self) -> list[Module]:
        return [module for module, _ in _read_modules(self.calls.ask("module.list"))]

    def _remove(self, name: str) -> None:
        try:
            self.calls.ask("module.remove", {"name": name, "cancel": False}, timeout_s=LOAD_TIMEOUT_S)
        except CallFailed as failure:
            if failure.errno != errno.ENOENT:
                raise

    def _load(self, module: Module) -> None:
        payload = {"path": module.path, "name": module.name, "args": [], "exec": False}
        try:
            self.calls.ask("module.load", payload, timeout_s=LOAD_TIMEOUT_S)
        except CallFailed as failure:
            if failure.errno != errno.EEXIST:
                raise

    def _await_scheduler(self) -> None:
        deadline_s = time.monotonic() + LOAD_TIMEOUT_S
        while True:
            try:
                self.calls.ask("sched.resource-status")
            except CallFailed as failure:
                if failure.errno != errno.ENOSYS or time.monotonic() > deadline_s:
                    raise
                time.sleep(_LOOK_PAUSE_S)
            else:
                return

    # --- after ---

    def _drained_by_us(self) -> list[Rank]:
        return [rank.rank for rank in self._look() if rank.drain_reason == DRAIN_REASON]

    def _undrain(self, ranks: Sequence[Rank]) -> None:
        still = set(self._drained_by_us())
        for rank in ranks:
            if rank in still:
                self.calls.ask("resource.undrain", {"targets": str(rank)})
