"""The subjects of the Flux port's contract: instances with three slots of two cores, ranks 1 to 3.

To add an adapter, add an entry to ``SUBJECTS`` in ``test_flux_port.py``: a context manager that yields a
:class:`FluxSubject`, or skips with a reason. One subject serves all tests; each test begins with ``reset``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol

import pytest

from nodemanager.core.jobs import JobId, JobResult
from nodemanager.core.ports import FluxPort
from nodemanager.core.slots import Billing, NodeType, Promise, Rank, SlotName, SlotsWish, TypeName
from nodemanager.flux import bindings, kvs, retype
from nodemanager.flux.in_job.data_safe import say_data_safe
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.records import given_back
from tests.live.instance import LiveInstance, eventually, why_no_flux

CLUSTER_UUID = "0b6f6a0e-7d0c-4b7e-9c8e-3d9a4e1f2a55"
RANKS = (Rank(1), Rank(2), Rank(3))
SMALL = NodeType(
    name=TypeName("small"),
    size="small",
    cores=2,
    gpus=0,
    memory_bytes=2**32,
    price_per_hour=Decimal("0.1"),
    billing=Billing(3600),
    slots=tuple(SlotName(f"slot{rank}") for rank in RANKS),
)
LARGE = replace(SMALL, name=TypeName("large"), cores=4, gpus=1, properties=frozenset({"large"}), slots=())


@dataclass(frozen=True, slots=True)
class OneManager:
    """One manager's access to the instance; ``lose_name`` takes its claim away, ``end`` ends its process."""

    port: FluxPort
    lose_name: Callable[[], None]
    end: Callable[[], None]


class FluxSubject(Protocol):
    def reset(self) -> None:
        """Reset: only the leader's broker, no jobs, drains or records; no holder of the name, no cluster name."""
        ...

    def manager(self, cluster_uuid: str = CLUSTER_UUID) -> OneManager:
        """Start another manager. To the instance it looks like a process of its own."""
        ...

    def bring_online(self, rank: Rank) -> None: ...

    def hang(self, rank: Rank) -> None:
        """Let the rank's broker stay connected without answering."""
        ...

    def occupy(self, rank: Rank) -> Callable[[], None]:
        """Run a job on one core of the rank, the only one online. Call the result to end it."""
        ...

    def job_on(self, rank: Rank) -> tuple[JobId, Callable[[], None]]:
        """Like ``occupy``, but also return the job's id."""
        ...

    def job_that_ends(self, rank: Rank, result: JobResult) -> JobId:
        """Run a job on the rank, which asks to be submitted again and ends in a second or two, as told."""
        ...

    def shown_on(self, job: JobId) -> str:
        """Return the ``user.nodes`` that ``flux jobs`` shows for an active job; "" if there is none."""
        ...

    def drain(self, rank: Rank, reason: str | None) -> None:
        """Drain the rank like an administrator; None means no reason."""
        ...

    def instance_on(self, ranks: Sequence[Rank], *, whole: bool = True) -> tuple[JobId, Callable[[], None]]:
        """Run a job that is an instance on exactly these ranks, on all their cores or one; also return its end."""
        ...

    def give_back(self, job: JobId, ranks: Sequence[Rank]) -> None:
        """Give ranks of a running instance back, like the verb."""
        ...

    def say_data_safe(self, job: JobId, rank: Rank) -> None:
        """Say that the data of a job was copied off a rank, like the verb."""
        ...

    def wish(self, wish: SlotsWish) -> None:
        """Request other slot types, like the verb."""
        ...

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Let time pass until the condition is true. Fail if it never is."""
        ...


# --- a real instance --------------------------------------------------------------------------------------


class MonotonicClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_at(self) -> float:
        return time.time()


class RealSubject:
    def __init__(self, instance: LiveInstance) -> None:
        self._instance = instance
        self._managers: list[OneManager] = []

    def manager(self, cluster_uuid: str = CLUSTER_UUID) -> OneManager:
        flux = RealFlux(
            self._instance.uri,
            cluster_uuid,
            MonotonicClock(),
            folder=self._instance.directory,
            node_types=(SMALL, LARGE),
            timeout_s=2.0,
            types_with_data=[SMALL.name],
            early_release=True,
        )
        port = flux.port()

        def end() -> None:
            port.close()
            flux.close()

        manager = OneManager(port, flux.close, end)
        self._managers.append(manager)
        return manager

    def reset(self) -> None:
        self.end_managers()
        self._instance.clear()
        self._instance.run("kvs", "unlink", "-Rf", "node-manager")
        port = self.manager().port
        if any(rank.cores != SMALL.cores for rank in port.ranks()):
            port.claim()
            as_before = {SMALL.name: Promise(SMALL.cores, SMALL.gpus, SMALL.memory_bytes)}
            port.change_slots(SlotsWish("tidy", {}, as_before), dict.fromkeys(SMALL.slots, SMALL.name))
        self.end_managers()
        self._instance.run("kvs", "unlink", "-Rf", "node-manager")

    def wish(self, wish: SlotsWish) -> None:
        with bindings.connection(self._instance.uri) as handle:
            kvs.commit(handle, {retype.WISH_KEY: retype.encode_wish(wish)}, timeout_s=10.0)

    def end_managers(self) -> None:
        for manager in self._managers:
            manager.end()
        self._managers.clear()

    def bring_online(self, rank: Rank) -> None:
        self._instance.start_slot(rank)

    def hang(self, rank: Rank) -> None:
        self._instance.freeze_slot(rank)

    def occupy(self, rank: Rank) -> Callable[[], None]:
        return self.job_on(rank)[1]

    def shown_on(self, job: JobId) -> str:
        return self._instance.run("jobs", "-no", "{user.nodes}", str(job)).strip()

    def job_that_ends(self, rank: Rank, result: JobResult) -> JobId:
        asks = ("-n1", "--setattr=node-manager.requeue", f"--requires=rank:{rank}")
        limit = "1s" if result is JobResult.TIMEOUT else "60s"
        command = ("sleep", "1") if result is JobResult.COMPLETED else ("sleep", "30")
        text = self._instance.run("submit", *asks, "-t", limit, *command)
        job = JobId(int(self._instance.run("job", "id", "--to=dec", text)))
        eventually("the job runs", lambda: self._instance.run("jobs", "-no", "{status}", text) == "RUN")
        if result is JobResult.CANCELED:
            self._instance.run("cancel", text)
        return job

    def job_on(self, rank: Rank) -> tuple[JobId, Callable[[], None]]:
        job = self._instance.submit("-N1", "-n1", "-c1", f"--requires=rank:{rank}")
        self._instance.run("job", "wait-event", "-t20", str(job), "start")
        return JobId(job), lambda: self._end_job(job)

    def _end_job(self, job: int) -> None:
        self._instance.run("cancel", str(job))
        self._instance.run("job", "wait-event", "-t20", str(job), "clean")

    def drain(self, rank: Rank, reason: str | None) -> None:
        self._instance.run("resource", "drain", str(rank), *([] if reason is None else [reason]))

    def instance_on(self, ranks: Sequence[Rank], *, whole: bool = True) -> tuple[JobId, Callable[[], None]]:
        named = ",".join(map(str, ranks))
        size = ["--exclusive"] if whole else ["-n", str(len(ranks)), "-c1"]
        job = self._instance.submit(f"-N{len(ranks)}", *size, f"--requires=rank:{named}")
        self._instance.run("job", "wait-event", "-t20", str(job), "start")
        self._instance.run("job", "memo", str(job), "uri=local:///an/instance")
        return JobId(job), lambda: self._end_job(job)

    def give_back(self, job: JobId, ranks: Sequence[Rank]) -> None:
        memo = {"id": int(job), "volatile": False, "memo": given_back.encode(ranks)}
        with bindings.connection(self._instance.uri) as handle:
            bindings.ask(handle, "job-manager.memo", memo, timeout_s=10.0)

    def say_data_safe(self, job: JobId, rank: Rank) -> None:
        with bindings.connection(self._instance.uri) as handle:
            say_data_safe(handle, job, str(rank), timeout_s=10.0)

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        eventually(what, holds)


@contextmanager
def a_real_instance() -> Iterator[FluxSubject]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        instance = LiveInstance(Path(directory), slots=len(RANKS))
        subject = RealSubject(instance)
        try:
            instance.start_head()
            yield subject
        finally:
            subject.end_managers()
            instance.reap()


@contextmanager
def a_bridged_instance() -> Iterator[FluxSubject]:
    """The real instance, reached by a process that flux-core's own Python runs."""
    bindings.use_bridge(bindings.Bridge.ALWAYS)
    try:
        with a_real_instance() as subject:
            yield subject
    finally:
        bindings.use_bridge(bindings.Bridge.AUTO)
