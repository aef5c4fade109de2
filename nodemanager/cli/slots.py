"""The verb ``slots``: show how many slots each node type has, and change that.

A change is a wish in the instance's KVS. The running manager carries it out, or this process if no manager runs.
Either one writes an answer. The wish stays in the KVS even if this process ends.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodemanager.config.site import JoinMethod, Site
from nodemanager.core.facts import ClaimHeld, RanksSeen
from nodemanager.core.nodes import FluxRank, Launch
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.orders import RefuseSlots
from nodemanager.core.ports import FluxError, NotTheActor, SlotsUnchanged
from nodemanager.core.slots import SlotName, SlotsWish, TypeName
from nodemanager.flux import bindings, kvs, retype
from nodemanager.flux.claim import owner_of
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.port import RealFluxPort
from nodemanager.flux.retype import Answer
from nodemanager.planner import slot_types
from nodemanager.planner.brain import Brain
from nodemanager.service.assembly.cluster import with_cluster_uuid
from nodemanager.service.assembly.policy import policy_of
from nodemanager.service.assembly.ports import SystemClock

TIMEOUT_S = 10.0
ANSWER_WITHIN_S = 60.0  # a manager looks at the ranks at least every `probe`
_PAUSE_S = 0.1


class SlotsError(Exception):
    """The slots were not changed. The message says why."""


@dataclass(frozen=True, slots=True)
class TypeRow:
    """The slots of one node type: all, and how many are online, leased, or free to move to another type."""

    type_name: TypeName
    slots: tuple[SlotName, ...]
    online: int
    leased: int
    movable: int

    @property
    def cells(self) -> dict[str, str]:
        """The columns of ``listing.SLOTS``."""
        return {
            "type": self.type_name,
            "slots": str(len(self.slots)),
            "online": str(self.online),
            "leased": str(self.leased),
            "movable": str(self.movable),
            "names": compress_hostlist(self.slots) if self.slots else "-",
        }


def parse_counts(texts: Iterable[str]) -> dict[TypeName, int]:
    """Read ``TYPE=N`` texts. Raises :class:`SlotsError`."""
    counts: dict[TypeName, int] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        if not (name and equals and number.isascii() and number.isdecimal()):
            raise SlotsError(f'"{text}": TYPE=N is needed: a node type and its new number of slots')
        if name in counts:
            raise SlotsError(f"{name} is given twice")
        counts[TypeName(name)] = int(number)
    return counts


class SlotsClient:
    """Reads and changes the slots of the site's instance. Methods raise ``FluxError`` and ``BindingsMissing``."""

    def __init__(self, site: Site) -> None:
        self._site = with_cluster_uuid(site)
        flux = self._site.flux
        self._flux = RealFlux(
            flux.uri,
            self._site.cluster_uuid,
            SystemClock(),
            folder=flux.bootstrap_dir,
            node_types=self._site.node_types,
            timeout_s=TIMEOUT_S,
            flub=flux.join is JoinMethod.FLUB,
        )

    # --- showing ---

    def rows(self) -> list[TypeRow]:
        """Read the present slots of each node type."""
        port = self._flux.port()
        try:
            return make_rows(self._site, port.ranks(), port.launches())
        finally:
            port.close()

    # --- changing ---

    def change(self, counts: Mapping[TypeName, int]) -> Answer:
        """Have the types' numbers of slots changed. Returns the answer, which may be a refusal.

        Raises :class:`SlotsError` if a later wish replaces this one, or no answer comes in time.
        """
        wish = SlotsWish(str(uuid.uuid4()), counts)
        with bindings.connection(self._site.flux.uri) as handle:
            kvs.commit(handle, {retype.WISH_KEY: retype.encode_wish(wish)}, timeout_s=TIMEOUT_S)
            deadline_s = time.monotonic() + ANSWER_WITHIN_S
            while (answer := _read_answer(handle, wish)) is None:
                present = retype.read_wish(
                    kvs.read(handle, [retype.WISH_KEY], timeout_s=TIMEOUT_S).get(retype.WISH_KEY)
                )
                if present is not None and present != wish:
                    raise SlotsError("a later wish replaced this one before it was answered")
                owner = owner_of(handle, timeout_s=TIMEOUT_S)
                if owner is None and present is not None:
                    self._act_as_manager(wish)
                elif time.monotonic() > deadline_s:
                    raise SlotsError(
                        f"the manager ({owner}) has not answered within {ANSWER_WITHIN_S:g} s; the wish remains"
                        f" (KVS key {retype.WISH_KEY}) and is carried out as soon as a manager acts again"
                    )
                else:
                    time.sleep(_PAUSE_S)
            return answer

    def _act_as_manager(self, wish: SlotsWish) -> None:
        """Claim the instance and carry the wish out. If another manager is faster, that one answers."""
        port = self._flux.port()
        try:
            port.claim()
            port.repair()
            self._carry_out(port, wish)
        except NotTheActor:
            return
        finally:
            port.close()
            self._flux.close()

    def _carry_out(self, port: RealFluxPort, wish: SlotsWish) -> None:
        brain = Brain(policy_of(self._site))
        brain.take(ClaimHeld(0.0, port.launches()), RanksSeen(0.0, port.ranks()))
        found = slot_types.answer_wish(wish, brain.snapshot, brain.policy)
        if isinstance(found, RefuseSlots):
            port.refuse_slots(wish, str(found.reason))
            return
        try:
            port.change_slots(wish, found.moves)
        except SlotsUnchanged as unchanged:
            port.refuse_slots(wish, str(unchanged))


def _read_answer(handle: bindings.Handle, wish: SlotsWish) -> Answer | None:
    text = _read_key(handle, retype.ANSWER_KEY)
    try:
        answer = retype.decode_answer(text) if text is not None else None
    except ValueError as fault:
        raise FluxError(f"the answer at KVS key {retype.ANSWER_KEY} cannot be read: {fault}") from fault
    return answer if answer is not None and answer.wish_id == wish.id else None


def _read_key(handle: bindings.Handle, key: str) -> str | None:
    return kvs.read(handle, [key], timeout_s=TIMEOUT_S).get(key)


def make_rows(site: Site, ranks: Sequence[FluxRank], launches: Sequence[Launch]) -> list[TypeRow]:
    """Count each type's slots, as the instance has them now. Slots that the instance lacks are left out."""
    by_site = {slot: node_type.name for node_type in site.node_types for slot in node_type.slots}
    leased = {launch.slot for launch in launches}
    of_type: dict[TypeName, list[FluxRank]] = {node_type.name: [] for node_type in site.node_types}
    for rank in ranks:
        name = rank.type_name or by_site.get(rank.host)
        if name is not None:
            of_type.setdefault(name, []).append(rank)
    rows = []
    for name, own in of_type.items():
        tally = Counter(
            what
            for rank in own
            for what, holds in (
                ("online", rank.online),
                ("leased", rank.host in leased),
                ("movable", rank.host not in leased and slot_types.may_move(rank)),
            )
            if holds
        )
        slots = tuple(rank.host for rank in own)
        rows.append(TypeRow(name, slots, tally["online"], tally["leased"], tally["movable"]))
    return rows
