"""One process's part in a run: it stores each input in the run's log, and then does what the engine orders.

A crash at any moment loses nothing. Orders that were made, but not seen to be done, are carried out at the next
start. Events that were not stored are read again from Flux's journal. A submission that was under way when the
process died is waited for before it is repeated, and if a job does arrive twice, the second is cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from nodemanager.ensemble.deeds import Call, Cancel, Deed, Fired, Noted, Notify, Resize, Submit, Terminate
from nodemanager.ensemble.engine import Engine
from nodemanager.ensemble.file.model import Ensemble
from nodemanager.ensemble.inputs import Answered, Begun, Input, JobEvent, Refused, Tick, read_inputs, write_inputs
from nodemanager.ensemble.jobspec import make_jobspec
from nodemanager.ensemble.journal import CAUGHT_UP, RunJournal
from nodemanager.ensemble.ports import CustomPort, EnsemblePort, NodesPort, RunRecord

SUBMITTING_MAX = 256  # submissions under way at one time
IN_DOUBT_S = 2.0  # how long a submission of an earlier process is waited for
KEEP_EVERY_S = 60.0
TICKS_MAX = 1000  # heartbeats that are made up for after a pause
DONE = "nothing more can happen"

Listener = Callable[[Deed], None]


class Session:
    """Drives one run. All methods are called by the thread that drives the port.

    ``listener`` gets what happens, as it happens; not what earlier processes did. ``on_end`` gets the outcome.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        record: RunRecord,
        port: EnsemblePort,
        *,
        functions: CustomPort,
        nodes: NodesPort,
        listener: Listener,
        on_end: Callable[[str], None],
        until_done: bool = False,
    ) -> None:
        self.engine = Engine(ensemble)
        self.caught_up = False
        self._record = record
        self._port = port
        self._functions = functions
        self._nodes = nodes
        self._listener = listener
        self._on_end = on_end
        self._until_done = until_done
        self._journal = RunJournal(record.run)
        self._arrived: list[Input] = []  # not stored yet
        self._storing = False
        self._to_submit: deque[Submit] = deque()
        self._submitting = 0
        self._unanswered = 0  # other orders under way
        self._in_doubt: set[str] = set()
        self._over = False
        self._begun_at = 0.0
        self._beats = 0  # heartbeats since then

    def start(self) -> None:
        """Restore the run from its log, and go on."""
        for it in read_inputs(self._port.read_log()):
            self.engine.take(it)
        self._in_doubt = set(self.engine.outstanding)
        self._port.follow(self._on_record)

    def stop(self, why: str) -> None:
        """End the run now, because its user asked for it. Its jobs are left alone."""
        if not self._over:
            self.engine.ended = self.engine.ended or why
            self._end(self.engine.ended)

    # --- what arrives ---

    def _on_record(self, record: Mapping[str, Any]) -> None:
        if self.caught_up:
            self._arrive(self._journal.live(record))
        elif record["id"] == CAUGHT_UP:
            self.caught_up = True
            self._catch_up()
        else:
            self._journal.collect(record)

    def _catch_up(self) -> None:
        engine, now_at = self.engine, self._port.wall_at()
        missed: list[Input] = []
        if engine.begun_at is None:
            self._begun_at = now_at
            missed.append(Begun(now_at))
        else:
            self._begun_at = engine.begun_at
        missed += _merged(self._journal.backlog(engine.taken), self._missed_ticks(now_at))
        self._arrive(missed, even_if_empty=True)
        if self._in_doubt:
            self._port.after(IN_DOUBT_S, self._repeat_what_is_in_doubt)
        self._plan_beat()
        self._keep_nodes()

    def _keep_nodes(self) -> None:
        """Ask for the nodes again from time to time, and for those that an earlier process had asked for."""
        if self._over:
            return
        if self.engine.floor and not any(isinstance(it, Resize) for it in self.engine.outstanding.values()):
            self._nodes.keep(self.engine.floor, 0, _ignore)
        self._port.after(KEEP_EVERY_S, self._keep_nodes)

    def _missed_ticks(self, now_at: float) -> list[Tick]:
        """Return the heartbeats since the last one that no process was there to make; only the latest of many."""
        if not (period_s := self.engine.ensemble.heartbeat_s):
            return []
        last = round((max(self.engine.last_tick_at, self._begun_at) - self._begun_at) / period_s)
        self._beats = max(last, int((now_at - self._begun_at) / period_s))  # the clock may have been set back
        return [self._tick(number) for number in range(max(last, self._beats - TICKS_MAX) + 1, self._beats + 1)]

    def _tick(self, number: int) -> Tick:
        return Tick(self._begun_at + number * self.engine.ensemble.heartbeat_s)

    def _plan_beat(self) -> None:
        if self.engine.ensemble.heartbeat_s:
            self._port.after(max(0.0, self._tick(self._beats + 1).at - self._port.wall_at()), self._beat)

    def _beat(self) -> None:
        if not self._over and not self.engine.ended:
            self._beats += 1
            self._arrive([self._tick(self._beats)])
            self._plan_beat()

    def _arrive(self, inputs: Iterable[Input], *, even_if_empty: bool = False) -> None:
        self._arrived += inputs
        if (self._arrived or even_if_empty) and not self._storing and not self._over:
            self._store()

    def _store(self) -> None:
        self._storing = True
        batch, self._arrived = self._arrived, []
        self._port.append(write_inputs(batch), partial(self._on_stored, batch))

    def _on_stored(self, batch: list[Input]) -> None:
        self._storing = False
        for it in batch:
            for deed in self.engine.take(it):
                self._do(deed)
        self._submit_more()
        if self._arrived:
            self._store()
        else:
            self._end_if_over()

    # --- acting ---

    def _repeat_what_is_in_doubt(self) -> None:
        doubtful, self._in_doubt = self._in_doubt, set()
        for order in [it for key, it in self.engine.outstanding.items() if key in doubtful]:
            self._do(order)  # in the order in which they were made: the last floor counts
        self._submit_more()
        self._end_if_over()

    def _do(self, deed: Deed) -> None:
        self._listener(deed)
        match deed:
            case Submit():
                self._to_submit.append(deed)
            case Cancel():
                self._cancel(deed)
            case Notify(key, text, job):
                if job is None:
                    self._answer(key, "")
                else:
                    self._port.show_on_job(job, text, self._expect(key))
            case Resize(key, _, floor, asked):
                self._nodes.keep(floor, asked, self._expect(key))
            case Call(key):
                self._unanswered += 1
                self._functions.call(deed, partial(self._on_returned, key))
            case Terminate() | Fired() | Noted():
                pass

    def _cancel(self, order: Cancel) -> None:
        left = len(order.jobs)
        if not left:
            self._answer(order.key, "")
            return
        faults: list[str] = []

        def on_cancelled(why: str) -> None:
            nonlocal left
            left -= 1
            faults.extend([why] if why else [])
            if not left:
                self._unanswered -= 1
                self._answer(order.key, faults[0] if faults else "")

        self._unanswered += 1
        for job in order.jobs:
            self._port.cancel(job, order.why, on_cancelled)

    def _expect(self, key: str) -> Callable[[str], None]:
        self._unanswered += 1

        def then(why: str) -> None:
            self._unanswered -= 1
            self._answer(key, why)

        return then

    def _on_returned(self, key: str, action: Mapping[str, Any] | None, why: str) -> None:
        self._unanswered -= 1
        self._arrive([Answered(key, self._port.wall_at(), why, action)])

    def _answer(self, key: str, why: str) -> None:
        self._arrive([Answered(key, self._port.wall_at(), why)])

    def _submit_more(self) -> None:
        while self._to_submit and self._submitting < SUBMITTING_MAX:
            order = self._to_submit.popleft()
            if order.key not in self.engine.outstanding:
                continue
            self._submitting += 1
            jobspec = make_jobspec(order.jobs, self._record.run, order.key, self._record.folder)
            self._port.submit(jobspec, order.jobs.urgency, partial(self._on_submitted, order.key))

    def _on_submitted(self, key: str, why: str) -> None:
        self._submitting -= 1
        if why:
            self._arrive([Refused(key, self._port.wall_at(), why)])
        self._submit_more()
        self._end_if_over()

    # --- the end ---

    def _end_if_over(self) -> None:
        engine = self.engine
        if self._over or not self.caught_up or self._storing or self._arrived:
            return
        if self._to_submit or self._submitting or self._unanswered or self._in_doubt:
            return
        if engine.ended or (self._until_done and engine.is_idle):
            self._end(engine.ended or DONE)

    def _end(self, outcome: str) -> None:
        self._over = True
        if self.engine.floor:
            self._nodes.keep(0, -self.engine.floor, _ignore)
        self._port.finish(outcome, self.summary())
        self._on_end(outcome)

    def summary(self) -> dict[str, Any]:
        """Return the state of the run as plain data, for people and programs."""
        engine = self.engine
        active = engine.active_jobs()
        return {
            "groups": {group: {**engine.metrics.counts(group), **active[group]} for group in active},
            "metrics": engine.metrics.models(),
            "rules": [
                {
                    "rule": str(state.rule),
                    "matches": state.matches,
                    "runs": state.runs,
                    "skipped": state.skipped,
                    "left": state.rule.action.repetitions - state.runs,
                }
                for state in engine.rules
            ],
            "nodes_floor": engine.floor,
            "begun_at": engine.begun_at,
            "at": engine.last_at,
        }


def _ignore(_: str) -> None:
    pass


def _merged(events: list[JobEvent], ticks: list[Tick]) -> list[Input]:
    both: list[Input] = [*events, *ticks]
    return sorted(both, key=lambda it: it.at)  # stable: a job's events keep their order
