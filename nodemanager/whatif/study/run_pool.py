"""Runs the policies of a study in parallel, each in a process of a pool."""

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
    """One run: a site's own policy, or a baseline by its name. ``event_log``: the file for the run's event log."""

    name: str
    site: Site
    baseline: bool = False
    actors: bool = False
    event_log: Path | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. Only baselines have ``bounds``; only runs of a site's policy have ``oddities``.

    ``event_log_fault``: why the event log is incomplete; "" if it is complete or not wanted.
    """

    outcome: Outcome
    bounds: CostBounds | None = None
    oddities: Oddities = field(default_factory=Oddities)
    event_log_fault: str = ""


class _LogFile(TextIOWrapper):
    """The file of an event log. A full disk ends the writing, not the run."""

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
    """Execute a run in this process."""
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
    """Execute runs, ``processes`` at a time, and yield their results in order. An error is raised in its run's
    turn.

    If the caller stops early, or this process ends, all worker processes end too. Raises :class:`WorkloadError` if
    something else killed a worker process.
    """
    at_once = min(processes, len(runs))
    if at_once <= 1:
        yield from (execute(runner, run) for run in runs)
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with _forward_progress(ours, theirs, runner.progress):
        watched, held = context.Pipe(duplex=False)
        init_args = (replace(runner, progress=_ignore_progress), theirs, context.Lock(), watched)
        pool = ProcessPoolExecutor(at_once, context, _init_worker, init_args)
        finished = False
        try:
            with _sigint_blocked():
                futures = [pool.submit(_execute_in_worker, run) for run in runs]
            for future in futures:
                yield future.result()
            finished = True
        except BrokenProcessPool as broken:
            raise WorkloadError(
                "a replay process was killed, perhaps by the kernel for lack of memory: try --processes 1"
            ) from broken
        finally:
            if not finished:
                held.close()  # ends the workers: their results are not needed any more
            pool.shutdown(cancel_futures=True)
            held.close()
            watched.close()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in the processes started now: this process handles Ctrl-C and ends them quietly."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _forward_progress(ours: Connection, theirs: Connection, progress: Progress) -> Iterator[None]:
    """Forward the progress of the worker processes to ``progress``, until the last of them has ended."""

    def pass_on() -> None:
        with suppress(EOFError, OSError):  # a worker may be killed in the middle of a message
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


# Sites contain these proxies, which the standard library cannot pickle.
copyreg.pickle(MappingProxyType, lambda proxy: (_make_proxy, (dict(proxy),)))


# --- in the worker process --------------------------------------------------------------------------------

_worker_runner: list[Runner] = []  # the runner that this process was started with


def _init_worker(runner: Runner, sender: Connection, lock: Lock, watched: Connection) -> None:
    logs.configure(logging.CRITICAL)
    end_with_parent(watched)

    def tell(run: str, jobs: int) -> None:
        if jobs % TELL_EVERY == 0:
            with lock:
                sender.send((run, jobs))

    _worker_runner[:] = [replace(runner, progress=tell)]


def _execute_in_worker(run: PolicyRun) -> RunResult:
    return execute(_worker_runner[0], run)


def _ignore_progress(run: str, jobs: int) -> None:
    """Ignore progress: the worker replaces it with its own function."""
