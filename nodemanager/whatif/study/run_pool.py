"""The runs of a study, several at once: each is a process's work, and none knows of another."""

from __future__ import annotations

import copyreg
import logging
import multiprocessing
import signal
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import TextIOWrapper
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, BinaryIO

from nodemanager.config.site import Site
from nodemanager.service import logs
from nodemanager.service.child_processes import end_with_parent
from nodemanager.whatif.replay.actor_replay import ActorReplay
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import TELL_EVERY, CostBounds, Progress, Runner
from nodemanager.whatif.workload.workload import Oddities, WorkloadError


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy: the site's own, or a baseline by its name. ``journal``: where the site's own is written to."""

    name: str
    site: Site
    baseline: bool = False
    actors: bool = False
    event_log: Path | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. ``bounds`` are a baseline's; ``oddities`` those of the site's own run.

    ``journal_fault``: why its journal is not whole; "" where it is, or none was asked for.
    """

    outcome: Outcome
    bounds: CostBounds | None = None
    oddities: Oddities = field(default_factory=Oddities)
    event_log_fault: str = ""


class _LogFile(TextIOWrapper):
    """A journal's file. A disk that is full ends the writing, not the run."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="utf-8")
        self.fault = ""

    def write(self, text: str, /) -> int:
        if not self.fault:
            try:
                return super().write(text)
            except OSError as error:
                self._note(error)
        return len(text)

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self.fault = self.fault or f"not all of it could be written: {error.strerror}"


def execute(runner: Runner, run: PolicyRun) -> RunResult:
    """Run it here and now."""
    if run.baseline:
        return RunResult(*runner.run_baseline(run.name, run.site))
    oddities = Oddities()
    if run.actors:
        jobs = islice(runner.workload.read(oddities), runner.jobs_max)
        replay = ActorReplay(run.site, runner.workload, jobs, lambda count: runner.progress(run.name, count))
        return RunResult(replay.run(run.name), oddities=oddities)
    if run.event_log is None:
        return RunResult(runner.run_production(run.name, run.site, oddities=oddities), oddities=oddities)
    with _LogFile(run.event_log.open("wb")) as sink:
        outcome = runner.run_production(run.name, run.site, sink, oddities)
    return RunResult(outcome, oddities=oddities, event_log_fault=sink.fault)


def execute_all(runner: Runner, runs: Sequence[PolicyRun], processes: int) -> Generator[RunResult, None, None]:
    """What each came to, in their order; so many at once. What one raises is raised where it would be told.

    Whatever ends this early ends the processes too, in the midst of their work; so does the end of this process.
    Raises :class:`WorkloadError` where a process was ended from without.
    """
    at_once = min(processes, len(runs))
    if at_once <= 1:
        yield from (execute(runner, run) for run in runs)
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with _forward_progress(ours, theirs, runner.progress):
        watched, held = context.Pipe(duplex=False)
        begun_with = (replace(runner, progress=_ignore_progress), theirs, context.Lock(), watched)
        pool = ProcessPoolExecutor(at_once, context, _init_worker, begun_with)
        all_told = False
        try:
            with _sigint_blocked():
                futures = [pool.submit(_execute_in_worker, run) for run in runs]
            for future in futures:
                yield future.result()
            all_told = True
        except BrokenProcessPool as broken:
            raise WorkloadError(
                "a replay was ended from without, by the kernel perhaps, for want of memory: try --processes 1"
            ) from broken
        finally:
            if not all_told:
                held.close()  # whoever still works, works for nobody
            pool.shutdown(cancel_futures=True)
            held.close()
            watched.close()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Processes begun now leave Ctrl-C to this one, which ends them: each would complain of it by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _forward_progress(ours: Connection, theirs: Connection, progress: Progress) -> Iterator[None]:
    """Whoever is told of progress here is told of that in the other processes, until the last of them has ended."""

    def pass_on() -> None:
        with suppress(EOFError, OSError):  # one that was ended may have said half of it
            while True:
                progress(*ours.recv())

    thread = Thread(target=pass_on, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        theirs.close()
        thread.join()
        ours.close()


def _make_proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Sites are made of these, and the standard library does not hand one to another process.
copyreg.pickle(MappingProxyType, lambda proxy: (_make_proxy, (dict(proxy),)))


# --- in the other process ---------------------------------------------------------------------------------

_worker_runner: list[Runner] = []  # the one that this process was begun with


def _init_worker(runner: Runner, told: Connection, in_turn: Lock, watched: Connection) -> None:
    logs.configure(logging.CRITICAL)
    end_with_parent(watched)

    def tell(run: str, jobs: int) -> None:
        if jobs % TELL_EVERY == 0:
            with in_turn:
                told.send((run, jobs))

    _worker_runner[:] = [replace(runner, progress=tell)]


def _execute_in_worker(run: PolicyRun) -> RunResult:
    return execute(_worker_runner[0], run)


def _ignore_progress(run: str, jobs: int) -> None:
    """Takes no interest."""
