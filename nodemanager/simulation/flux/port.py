"""The Flux port of the simulated instance: the claim is a token, leases are a dict, the real parser reads ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import TypeVar

from nodemanager.core.drains import is_drain_by_flux, is_our_drain
from nodemanager.core.jobs import JobId, JobResult, NodeOrder
from nodemanager.core.nodes import FluxRank, Launch, UnsafeData
from nodemanager.core.ports import FluxError, NotTheActor, SlotsUnchanged
from nodemanager.core.records import HeldJob, Spend, Steering
from nodemanager.core.slots import Hardware, Rank, SlotName, SlotsWish, TypeName
from nodemanager.flux.parse.resources import read_ranks
from nodemanager.simulation.flux.instance import SimulatedFlux

T = TypeVar("T")


class SimulatedFluxPort:
    """:class:`nodemanager.core.ports.FluxPort` of the manager that ``token`` identifies.

    The first claim with a ``cluster_uuid`` gives the instance to that cluster.
    """

    def __init__(
        self, flux: SimulatedFlux, token: str, cluster_uuid: str = "", types_with_data: Iterable[TypeName] = ()
    ) -> None:
        self._types_with_data = frozenset(types_with_data)
        self._flux = flux
        self._world = flux.world
        self._token = token
        self._cluster_uuid = cluster_uuid
        self._draws: Random = flux.world.draws_for(f"flux port {token}")

    # --- the claim ---

    def claim(self) -> None:
        self._call(self._claim)

    def _claim(self) -> None:
        named = self._flux.cluster_uuid
        if named and self._cluster_uuid and named != self._cluster_uuid:
            raise FluxError(f"this instance belongs to cluster {named}, our site says {self._cluster_uuid}")
        holder = self._flux.claimed_by
        if holder not in (None, self._token):
            raise NotTheActor(f"the name node-manager is held by {holder}")
        self._flux.claimed_by = self._token
        self._flux.cluster_uuid = named or self._cluster_uuid

    def _must_act(self) -> None:
        holder = self._flux.claimed_by
        if holder != self._token:
            raise NotTheActor(f"the name node-manager is held by {holder or 'nobody'}, not by {self._token}")

    def ensure_actor(self) -> None:
        self._call(self._must_act)

    # --- leases ---

    def launches(self) -> tuple[Launch, ...]:
        return self._call(lambda: tuple(self._flux.leases.values()))

    def record(self, launches: Sequence[Launch]) -> None:
        self._change(lambda: self._record(launches))

    def _record(self, launches: Sequence[Launch]) -> None:
        if self._flux.faults.record_full:
            raise FluxError("kvs-commit: No space left on device")
        records = dict(self._flux.leases)
        for launch in launches:
            holder = records.setdefault(launch.slot, launch)
            if holder.id != launch.id:
                raise FluxError(f"slot {launch.slot} is leased to launch {holder.id}: {launch.id} is not recorded")
        new = [launch for launch in launches if launch.slot not in self._flux.leases]
        self._flux.leases = records
        for launch in new:
            reason = self._flux.drain_reason(launch.rank)
            if is_our_drain(reason) or is_drain_by_flux(reason):
                self._flux.undrain(launch.rank)

    def forget(self, launch: Launch) -> None:
        self._change(lambda: self._forget(launch))

    def _forget(self, launch: Launch) -> None:
        holder = self._flux.leases.get(launch.slot)
        if holder is not None and holder.id == launch.id:
            del self._flux.leases[launch.slot]

    # --- operators' settings ---

    def steering(self) -> Steering:
        return self._call(lambda: self._flux.steering)

    def keep_steering(self, steering: Steering) -> None:
        def keep() -> None:
            self._flux.steering = steering

        self._change(keep)

    # --- spending ---

    def spend(self) -> Spend:
        return self._call(lambda: self._flux.spend)

    def keep_spend(self, spend: Spend) -> None:
        def keep() -> None:
            self._flux.spend = spend

        self._change(keep)

    # --- jobs ---

    def node_order(self) -> NodeOrder | None:
        return NodeOrder.MOST_FREE

    def read_hardware(self) -> Mapping[Rank, Hardware]:
        return {}

    def jobs_ended(self) -> int:
        return self._call(lambda: self._flux.jobs_ended)

    def show_on_jobs(self, texts: Mapping[JobId, str | None]) -> None:
        self._change(lambda: self._flux.show_on_jobs(texts))

    # --- jobs that the manager holds ---

    def held_jobs(self) -> Mapping[JobId, HeldJob]:
        return self._call(lambda: dict(self._flux.held_jobs))

    def hold_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        self._change(lambda: self._flux.hold_jobs(jobs))

    def release_jobs(self, jobs: Mapping[JobId, HeldJob]) -> None:
        self._change(lambda: self._flux.release_jobs(jobs))

    # --- ranks ---

    def ranks(self) -> tuple[FluxRank, ...]:
        return self._call(self._read_ranks)

    def _read_ranks(self) -> tuple[FluxRank, ...]:
        flux = self._flux
        ranks = read_ranks(
            flux.resource_status(),
            flux.sched_resource_status(),
            flux.last_job_ended_at(),
            flux.slot_types,
            flux.job_manager_stats(),
        )
        given_back = flux.given_back()
        if given_back:
            ranks = tuple(_as_given_back(it, given_back.get(it.rank)) for it in ranks)
        return self._with_unsafe_data(ranks) if self._types_with_data else ranks

    def _with_unsafe_data(self, ranks: tuple[FluxRank, ...]) -> tuple[FluxRank, ...]:
        """Return the ranks with the jobs that ended there since they were leased, unless their data is safe."""
        leased_at = {it.rank: it.requested_at for it in self._flux.leases.values()}
        marked = []
        for rank, jobs in self._flux.unsafe_data().items():
            of_lease = [UnsafeData(job, at) for job, at in jobs.items() if at >= leased_at.get(rank, inf)]
            marked.append((rank, tuple(sorted(of_lease, key=lambda it: (it.ended_at, it.job)))))
        unsafe = dict(marked)
        return tuple(
            replace(it, unsafe=unsafe.get(it.rank, ())) if it.type_name in self._types_with_data else it
            for it in ranks
        )

    def drain(self, rank: Rank, reason: str, replaces: str | None = None) -> None:
        self._change(lambda: self._flux.drain(rank, reason, replaces))

    def undrain(self, rank: Rank) -> None:
        self._change(lambda: self._undrain(rank))

    def _undrain(self, rank: Rank) -> None:
        if is_our_drain(self._flux.drain_reason(rank)):
            self._flux.undrain(rank)

    def stop_broker(self, rank: Rank) -> None:
        self._change(lambda: self._flux.stop_broker(rank))

    def kill_housekeeping(self, rank: Rank, signal: int) -> None:
        self._change(lambda: self._flux.kill_housekeeping(rank, signal))

    def requeue(self, job: JobId) -> JobId:
        return self._change(lambda: self._flux.requeue(job))

    def result(self, job: JobId) -> JobResult | None:
        return self._call(lambda: self._flux.result(job))

    def start_copy(self, job: JobId) -> None:
        self._change(lambda: self._flux.start_copy(job))

    def cancel_copy(self, job: JobId, why: str) -> None:
        self._change(lambda: self._flux.cancel_copy(job, why))

    # --- slot types ---

    def repair(self) -> bool:
        return self._change(self._repair)

    def _repair(self) -> bool:
        if self._flux.unfinished_wish is None:
            return False
        self._end_change()
        return True

    def slots_wish(self) -> SlotsWish | None:
        return self._call(lambda: self._flux.wish)

    def change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        self._change(lambda: self._change_slots(wish, moves))

    def _change_slots(self, wish: SlotsWish, moves: Mapping[SlotName, TypeName]) -> None:
        leased = [slot for slot in moves if slot in self._flux.leases]
        if leased:
            raise SlotsUnchanged(f"slot {leased[0]} has been taken meanwhile")
        self._flux.begin_slot_change(wish, moves)
        if self._happens(self._flux.faults.p_half_changed):
            raise FluxError("the change of the slots was cut short")
        self._end_change()

    def _end_change(self) -> None:
        self._flux.answer_wish(self._flux.unfinished_wish or "", "")
        self._flux.end_slot_change()

    def refuse_slots(self, wish: SlotsWish, why: str) -> None:
        self._change(lambda: self._flux.answer_wish(wish.id, why))

    # --- every call ---

    def _change(self, action: Callable[[], T]) -> T:
        def act() -> T:
            self._must_act()
            return action()

        return self._call(act)

    def _call(self, action: Callable[[], T]) -> T:
        with self._world.lock:
            self._flux.check_reachable()
            if self._happens(self._flux.faults.p_fail):
                raise FluxError("the call failed, nothing was done")
            result = action()
            if self._happens(self._flux.faults.p_lost_reply):
                raise FluxError("the call was not answered in time")
            return result

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._draws.random() < probability


def _as_given_back(rank: FluxRank, job: JobId | None) -> FluxRank:
    if job is None or not rank.allocated or rank.housekeeping_since_at is not None:
        return rank
    return replace(rank, allocated=False, cores_free=0, gpus_free=0, given_back=job)
