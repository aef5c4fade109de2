"""The division of the slots among the node types, changed while the instance runs.

R is changed by configuration alone: the file, then the ``config.load`` RPC, with the scheduler unloaded and the
``resource`` module loaded anew in between. (``resource.reload`` would do too, but from then on a rank that goes
offline once is lost to the scheduler for good.) A scheduler that comes back learns by the hello of RFC 27 what is
allocated, so running jobs stay; it must find every core that they hold.

What is under way lies in the KVS, one value each:

- the *wish* of a user, until it is answered;
- the *marker*, from before the instance is touched until it is whole again. Whoever finds one repairs;
- the *answer* to the wish that was answered last.
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
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.claim import SERVICE
from nodemanager.flux.parse.json_fields import list_at, object_at, text_at, whole_at
from nodemanager.flux.parse.resources import held_units, read_ranks

SLOTS_KEY = f"{SERVICE}.slots"
WISH_KEY, MARKER_KEY, ANSWER_KEY = f"{SLOTS_KEY}.wish", f"{SLOTS_KEY}.marker", f"{SLOTS_KEY}.answer"
DRAIN_REASON = f"{DRAIN_MARK}slots"  # while a slot changes its type, should somebody start a broker as it just then
RESOURCE = "resource"
LOAD_TIMEOUT_S = 30.0
_LOOK_PAUSE_S = 0.02
_LOOK = ("resource.status", "sched.resource-status")


class InstanceCalls(Protocol):
    """What is needed of the instance."""

    def ask(self, topic: str, payload: object = None, *, timeout_s: float | None = None) -> Any: ...

    def read(self, keys: Sequence[str]) -> Mapping[str, str]: ...

    def commit(self, changes: Mapping[str, str | None]) -> None: ...

    def leased(self, slots: Sequence[SlotName]) -> Sequence[SlotName]: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a wish. ``why`` is "" where it was fulfilled."""

    wish_id: str
    moves: Mapping[SlotName, TypeName]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A broker module: its name, and what it is loaded from."""

    name: str
    path: str


def read_schedulers(module_list: object) -> list[Module]:
    """The scheduler's modules, of a ``module.list`` reply, in the order in which they go; they come in the other.

    The one that has the service ``sched`` leans on the rest: sched-simple has none; under Fluxion
    sched-fluxion-qmanager goes first, then sched-fluxion-feasibility, then sched-fluxion-resource.
    """
    found = [
        (not schedules, module)
        for module, schedules in _listed(module_list)
        if schedules or module.name.startswith("sched-")
    ]
    return [module for _, module in sorted(found, key=lambda item: (item[0], item[1].name))]


def _listed(module_list: object) -> list[tuple[Module, bool]]:
    """Every module, and whether it is the one that schedules."""
    mods = list_at(object_at(module_list, "module.list").get("mods"), "module.list.mods")
    return [(Module(mod["name"], mod["path"]), "sched" in mod.get("services", ())) for mod in mods]


# --- as it lies in the KVS --------------------------------------------------------------------------------


def encode_wish(wish: SlotsWish) -> str:
    return json.dumps({"id": wish.id, "counts": dict(wish.counts)}, sort_keys=True)


def decode_wish(text: str) -> SlotsWish:
    fields = object_at(json.loads(text), "wish")
    counts = object_at(fields.get("counts"), "wish.counts")
    return SlotsWish(
        text_at(fields.get("id"), "wish.id"),
        {TypeName(name): whole_at(count, f"wish.counts.{name}") for name, count in counts.items()},
    )


def read_wish(text: str | None) -> SlotsWish | None:
    """None where there is none, or one that cannot be read: nobody of ours wrote that, nor waits for an answer."""
    try:
        return decode_wish(text) if text is not None else None
    except ValueError:
        return None


def encode_answer(answer: Answer) -> str:
    return json.dumps({"id": answer.wish_id, "moves": dict(answer.moves), "why": answer.why}, sort_keys=True)


def decode_answer(text: str) -> Answer:
    fields = object_at(json.loads(text), "answer")
    moves = object_at(fields.get("moves"), "answer.moves")
    return Answer(
        text_at(fields.get("id"), "answer.id"),
        {SlotName(slot): TypeName(text_at(name, f"answer.moves.{slot}")) for slot, name in moves.items()},
        text_at(fields.get("why"), "answer.why"),
    )


def _encoded_marker(wish_id: str, moves: SlotTypes, schedulers: Sequence[Module]) -> str:
    modules = [{"name": module.name, "path": module.path} for module in schedulers]
    return json.dumps({"wish": wish_id, "moves": dict(moves), "schedulers": modules}, sort_keys=True)


def _decoded_marker(text: str) -> tuple[Answer, list[Module]]:
    fields = object_at(json.loads(text), "marker")
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
    """A change of the division, step by step. ``file`` is on the machine of rank 0, which is ours."""

    calls: InstanceCalls
    file: Callable[[], ConfigFile]
    node_types: tuple[NodeType, ...]

    def change(self, wish: SlotsWish, moves: SlotTypes) -> None:
        """See ``FluxPort.change_slots``. In this order a crash at any point loses nothing."""
        answer = Answer(wish.id, moves)
        if not moves:
            self._answer(answer)
            return
        before = self._prepared(moves, wish.promises)
        schedulers = self._schedulers()
        self.calls.commit({MARKER_KEY: _encoded_marker(wish.id, moves, schedulers)})
        try:
            self._load_config()
        except CallFailed as failure:
            if not failure.answered:
                raise
            # Refused before anything was unloaded: the file goes back to what the instance has.
            self._put_back(before)
            self._undrain(self._drained_by_us())
            self.calls.commit({MARKER_KEY: None})
            raise SlotsUnchanged(f"the instance does not take the configuration: {failure}") from failure
        self._reload(schedulers)
        self._undrain(self._drained_by_us())
        self._answer(answer)

    def _put_back(self, text: str) -> None:
        try:
            self.file().write(text)
        except FluxConfigError as error:
            raise FluxError(str(error)) from error

    def _prepared(self, moves: SlotTypes, promises: Mapping[TypeName, Promise]) -> str:
        """Have the slots drained and the file written; its former text. Whatever is in the way changes nothing."""
        try:
            before = self.file().text()
            self._drain(moves)
            self._second_look(moves)
            self._write_file(moves, promises)
        except (FluxConfigError, SlotsUnchanged) as error:
            self._undrain(self._drained_by_us())
            raise SlotsUnchanged(str(error)) from error
        return before

    def repair(self) -> bool:
        """See ``FluxPort.repair``: everything from the marker on, once more."""
        text = self.calls.read([MARKER_KEY]).get(MARKER_KEY)
        if text is None:
            return False
        try:
            answer, schedulers = _decoded_marker(text)
        except (ValueError, KeyError) as fault:
            raise FluxError(
                f"the marker at KVS key {MARKER_KEY} cannot be read: {fault}. See that a scheduler is loaded"
                f" (flux module list), then remove it by: flux kvs unlink {MARKER_KEY}"
            ) from fault
        self._load_config()
        self._reload(schedulers)
        self._undrain(self._drained_by_us())
        # The file says what the instance has now: it may have been put back before the marker was cleared.
        division = self._division_of_file()
        if any(division.get(slot) != name for slot, name in answer.moves.items()):
            answer = Answer(answer.wish_id, {}, "the instance does not take the configuration")
        self._answer(answer)
        return True

    def _answer(self, answer: Answer) -> None:
        changes: dict[str, str | None] = {MARKER_KEY: None, ANSWER_KEY: encode_answer(answer)}
        # A later wish, put in its place meanwhile, is not answered by this.
        wish = read_wish(self.calls.read([WISH_KEY]).get(WISH_KEY))
        if wish is not None and wish.id == answer.wish_id:
            changes[WISH_KEY] = None
        self.calls.commit(changes)

    # --- before ---

    def _drain(self, moves: SlotTypes) -> None:
        """Drain first: a broker that comes online from now on gets no job on what is about to be taken away."""
        ranks = {rank.host: rank for rank in self._look()}
        for slot in moves:
            if slot not in ranks:
                raise SlotsUnchanged(f"slot {slot} is not in the instance's resources")
            if ranks[slot].drain_reason is None:
                self.calls.ask("resource.drain", {"targets": str(ranks[slot].rank), "reason": DRAIN_REASON})

    def _look(self) -> tuple[FluxRank, ...]:
        resources, scheduler = (self.calls.ask(topic) for topic in _LOOK)
        return read_ranks(resources, scheduler, {})

    def _second_look(self, moves: SlotTypes) -> None:
        taken = [rank.host for rank in self._look() if rank.host in moves and (rank.online or rank.allocated)]
        taken += self.calls.leased(list(moves))
        if taken:
            raise SlotsUnchanged(f"slot {taken[0]} has been taken meanwhile")

    def _write_file(self, moves: SlotTypes, promises: Mapping[TypeName, Promise]) -> None:
        file = self.file()
        config = file.read()
        if bootstrap_hosts(config) != bootstrap_hosts(self.calls.ask("config.get")):
            raise SlotsUnchanged(
                f"{file.path} has another bootstrap table than this instance: is it its configuration?"
            )
        division = self._division(config) | dict(moves)
        held = held_units(self.calls.ask("resource.status"), self.calls.ask("sched.resource-status"))
        lacking = hosts_lacking_units(config_with_slot_types(config, division, self.node_types, promises), held)
        if lacking:
            raise SlotsUnchanged(f"{file.path} would declare less for {lacking[0]} than a job holds there")
        file.write(toml_with_slot_types(file.text(), division, self.node_types, promises))

    def _division_of_file(self) -> dict[SlotName, TypeName]:
        try:
            return self._division(self.file().read())
        except FluxConfigError as error:
            raise FluxError(str(error)) from error

    def _division(self, config: Mapping[str, Any]) -> dict[SlotName, TypeName]:
        """The file's; where it is from before it said so, the site's."""
        return read_slot_types(config) or {
            slot: node_type.name for node_type in self.node_types for slot in node_type.slots
        }

    # --- the change itself, which may be done again ---

    def _load_config(self) -> None:
        """Give the running configuration the file's division: what else was edited there waits for its restart."""
        division = self._division_of_file()
        try:
            promises = read_promises(self.file().read())
            config = config_with_slot_types(self.calls.ask("config.get"), division, self.node_types, promises)
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
        return [module for module, _ in _listed(self.calls.ask("module.list"))]

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
