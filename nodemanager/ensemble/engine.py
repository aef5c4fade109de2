"""The state machine of one run of an ensemble: ``Engine.take(input)`` returns what to do.

The state is a function of the inputs so far, in their order, so replaying a run's log restores it. Nothing here
reads a clock. What was ordered stays *outstanding* until an input shows that it was done. After a restart exactly
the outstanding orders are carried out.

For one event of a job: first the figures change, then the metric rules are checked, then the rules of the event,
each in the order of the file. Metric rules are also checked at every heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nodemanager.ensemble.deeds import Call, Cancel, Deed, Fired, Noted, Notify, Order, Resize, Submit, Terminate
from nodemanager.ensemble.file.model import Action, ActionKind, Count, Ensemble, JobSet, Trigger
from nodemanager.ensemble.file.schema import read_action
from nodemanager.ensemble.inputs import Answered, Begun, Input, JobEvent, Refused, Tick
from nodemanager.ensemble.journal import UNCOUNTED, Taken
from nodemanager.ensemble.members import Member, RuleState
from nodemanager.ensemble.metrics import Metrics

_LAST_EVENTS = frozenset({"clean", "invalidate"})  # of a job; the second if it is refused at its submission


class Engine:
    """One run of an ensemble."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.metrics = Metrics(rule.metric for rule in ensemble.rules if rule.metric is not None)
        self.rules = [RuleState(rule) for rule in ensemble.rules]
        self.outstanding: dict[str, Order] = {}
        self.floor = 0  # the nodes that grow and shrink have asked for
        self.begun_at: float | None = None
        self.last_at = 0.0
        self.last_tick_at = 0.0
        self.ended = ""  # why the run has ended; "" while it goes on
        self._deeds: list[Deed] = []
        self._members: dict[int, Member] = {}  # by job, until its last event
        self._taken: dict[int, Taken] = {}  # of each of those jobs
        self._gone: set[int] = set()  # the jobs whose last event was taken
        self._open: dict[str, int] = {}  # by group, the members that have not ended
        self._held: list[tuple[str, JobSet]] = []  # sets that wait for other groups, by the key of their rule
        self._in_held = False
        self._metric_rules = [state for state in self.rules if state.rule.metric is not None]
        self._job_rules: dict[str, list[RuleState]] = {}
        for state in self.rules:
            if state.rule.trigger.startswith("job-"):
                self._job_rules.setdefault(state.rule.trigger.removeprefix("job-"), []).append(state)

    # --- inputs ---

    def take(self, it: Input) -> list[Deed]:
        """Take the next input, and return the actions, in order. After the end no rule runs."""
        self.last_at = max(self.last_at, it.at)
        self._deeds = []
        match it:
            case Begun(at):
                self._begin(at)
            case Tick(at):
                self._beat(at)
            case JobEvent():
                self._take_event(it)
            case Refused(key, at, why):
                self._take_refusal(key, at, why)
            case Answered():
                self._take_answer(it)
        return self._deeds

    def taken(self, job: int) -> Taken | None:
        """Return what was taken of a job's events; None if its last one was."""
        return None if job in self._gone else self._taken.get(job, (0, 0.0))

    def _begin(self, at: float) -> None:
        self.begun_at = at
        for state in self.rules:
            if state.rule.trigger == Trigger.START:
                self._match(state, at, None)

    def _beat(self, at: float) -> None:
        self.last_tick_at = at
        for member in self._members.values():
            if member.waits:
                self.metrics.add(member.group, "pending", at - member.submitted_at)
        self._check_metrics(at, None)

    def _take_refusal(self, key: str, at: float, why: str) -> None:
        order = self.outstanding.pop(key, None)
        if isinstance(order, Submit):
            group = order.jobs.group
            self._deeds.append(Noted(at, f"a job of group {group} was refused: {why}"))
            triggers = self._count_end(group, Count.REFUSED)
            self._check_metrics(at, None)
            self._match_jobs(triggers, group, at, None)
            self._submit_held(at)

    def _take_answer(self, answer: Answered) -> None:
        order = self.outstanding.pop(answer.key, None)
        if order is None:
            return
        if answer.why:
            what = (
                type(order).__name__.lower() if not isinstance(order, Call) else f"custom function {order.function}"
            )
            self._deeds.append(Noted(answer.at, f"{what} was not carried out: {answer.why}"))
        if isinstance(order, Resize) and answer.why:
            self.floor = max(0, self.floor - order.change)
        if isinstance(order, Call) and answer.action is not None and not self.ended:
            self._do_returned(order, answer)

    def _do_returned(self, call: Call, answer: Answered) -> None:
        try:
            action = read_action(answer.action, self.ensemble.groups)
        except ValueError as error:
            self._deeds.append(Noted(answer.at, f"custom function {call.function} returned no action: {error}"))
            return
        job = None if call.event is None else int(call.event["id"])
        self._deeds.append(Fired(call.rule, 0, answer.at, job, f"{call.function} -> {action}"))
        self._do(action, f"{call.key}c", call.rule, answer.at, None if call.event is None else job)

    # --- events of jobs ---

    def _take_event(self, event: JobEvent) -> None:
        if event.name == "submit":
            self._bind(event)
        member = self._members.get(event.job)
        if member is None:
            return
        self._taken[event.job] = self._taken[event.job][0] + (event.name != UNCOUNTED), event.at
        was_open = not member.ended
        triggers = self._advance(member, event)
        if was_open:
            self._check_metrics(event.at, event)
        self._match_jobs(triggers, member.group, event.at, event)
        if event.name in _LAST_EVENTS:
            del self._members[event.job], self._taken[event.job]
            self._gone.add(event.job)
        if was_open and member.ended:
            self._submit_held(event.at)

    def _bind(self, event: JobEvent) -> None:
        order = self.outstanding.get(event.key)
        if isinstance(order, Submit):
            del self.outstanding[event.key]
            self._members[event.job] = Member(event.key, order.jobs, event.at)
            self._taken[event.job] = 0, 0.0
        elif event.job not in self._members and event.job not in self._gone:
            self._gone.add(event.job)
            self._deeds.append(Noted(event.at, f"job {event.job} repeats {event.key} and is cancelled"))
            self._order(Cancel(f"{event.key}x{event.job}", (event.job,), "its ensemble submitted it twice"))

    def _advance(self, member: Member, event: JobEvent) -> list[str]:
        """Apply an event to its job and to the figures. Returns the names of the triggers that it sets off."""
        triggers = [event.name, *member.enter(event)]
        if member.is_refused_by(event):
            why = event.note or event.kind
            self._deeds.append(Noted(event.at, f"a job of group {member.group} was refused: {why}"))
        if event.name == "start":
            member.started_at = event.at
            self.metrics.add(member.group, "pending", event.at - member.submitted_at)
        elif event.name == "finish" and not member.ended:
            triggers += self._finish(member, event)
        elif event.name in _LAST_EVENTS and not member.ended:
            member.ended = True
            triggers += self._count_end(member.group, Count.CANCELLED if member.cancelled else Count.REFUSED)
        return triggers

    def _finish(self, member: Member, event: JobEvent) -> list[str]:
        member.ended = True
        if event.status != 0 and member.may_retry:
            self.metrics.count(member.group, Count.RETRIED)
            if not self.ended:
                self._order(Submit(member.next_key, member.jobs))
            return []
        if member.started_at is not None:
            self.metrics.add(member.group, "duration", event.at - member.started_at)
        return self._count_end(member.group, Count.FAILED if event.status else Count.SUCCESS)

    def _count_end(self, group: str, how: Count) -> list[str]:
        self._open[group] -= 1
        if how in {Count.SUCCESS, Count.FAILED}:
            self.metrics.count(group, Count.FINISHED)
        self.metrics.count(group, how)
        if how is Count.CANCELLED:
            return []  # its exception has set off "cancel"
        return ["success" if how is Count.SUCCESS else "fail"]

    # --- rules ---

    def _check_metrics(self, at: float, event: JobEvent | None) -> None:
        for state in self._metric_rules:
            if state.lives and self._holds(state):
                self._match(state, at, event)

    def _holds(self, state: RuleState) -> bool:
        metric, condition = state.rule.metric, state.rule.condition
        value = None if metric is None else self.metrics.value(metric)
        return value is not None and (condition is None or condition.holds(value))

    def _match_jobs(self, triggers: Sequence[str], group: str, at: float, event: JobEvent | None) -> None:
        for trigger in triggers:
            for state in self._job_rules.get(trigger, ()):
                if state.rule.group in {"", group}:
                    self._match(state, at, event)

    def _match(self, state: RuleState, at: float, event: JobEvent | None) -> None:
        if self.ended or not state.lives or not state.match(at):
            return
        rule = state.rule
        job = None if event is None else event.job
        self._deeds.append(Fired(rule.number, state.runs, at, job, str(rule)))
        self._do(rule.action, f"{rule.number}.{state.runs}", rule.number, at, job, event)

    def _do(
        self, action: Action, key: str, rule: int, at: float, job: int | None, event: JobEvent | None = None
    ) -> None:
        match action.kind:
            case ActionKind.SUBMIT:
                self._submit_group(action.label, key, at)
            case ActionKind.CANCEL:
                jobs = tuple(id_ for id_, it in self._members.items() if it.group == action.label and not it.ended)
                self._order(Cancel(key, jobs, f"cancelled by rule {rule} of its ensemble"))
            case ActionKind.NOTIFY:
                self._order(Notify(key, action.text or action.label or f"rule {rule} matched", job))
            case ActionKind.GROW | ActionKind.SHRINK:
                asked = action.value if action.kind is ActionKind.GROW else -action.value
                change = max(asked, -self.floor)
                self.floor += change
                self._order(Resize(key, change, self.floor, asked))
            case ActionKind.CUSTOM:
                is_metric = self.rules[rule - 1].rule.metric is not None
                shown = None if event is None or is_metric else _record(event)
                self._order(Call(key, action.label, rule, shown, self.metrics.models()))
            case ActionKind.TERMINATE:
                self.ended = f"rule {rule} ended it"
                self._deeds.append(Terminate(key, self.ended))

    # --- submissions ---

    def _submit_group(self, group: str, key: str, at: float) -> None:
        for number, jobs in enumerate(self.ensemble.sets):
            if jobs.group != group or not jobs.count:
                continue
            self._open[group] = self._open.get(group, 0) + jobs.count
            self._held.append((f"{key}.{number}", jobs))
        self._submit_held(at)

    def _submit_held(self, at: float) -> None:
        """Submit the sets whose ``after`` is fulfilled, and refuse those for which it never can be.

        A refusal may set off rules that submit more. The outermost call goes on with these, so the calls never nest
        deeper than one rule.
        """
        if self._in_held:
            return
        self._in_held = True
        while not self.ended and (index := self._next_held()) is not None:
            key, jobs = self._held.pop(index)
            if any(map(self._has_bad_end, jobs.after)):
                self._refuse_set(jobs, at)
            else:
                for number in range(jobs.count):
                    self._order(Submit(f"{key}.{number}", jobs))
        self._in_held = False

    def _next_held(self) -> int | None:
        """Return the place of the first held set that waits no longer."""
        for index, (_, jobs) in enumerate(self._held):
            after = jobs.after
            if any(map(self._has_bad_end, after)) or all(self._open.get(group) == 0 for group in after):
                return index
        return None

    def _refuse_set(self, jobs: JobSet, at: float) -> None:
        others = ", ".join(jobs.after)
        self._deeds.append(Noted(at, f"group {jobs.group} is refused: a member of {others} did not succeed"))
        for _ in range(jobs.count):
            triggers = self._count_end(jobs.group, Count.REFUSED)
            self._check_metrics(at, None)
            self._match_jobs(triggers, jobs.group, at, None)

    def _has_bad_end(self, group: str) -> bool:
        counts = self.metrics.counts(group)
        return any(counts[bad] for bad in (Count.FAILED, Count.CANCELLED, Count.REFUSED))

    def _order(self, order: Order) -> None:
        self.outstanding[order.key] = order
        self._deeds.append(order)

    # --- questions ---

    @property
    def is_idle(self) -> bool:
        """Whether nothing can happen any more: no job is active, no order outstanding, no heartbeat can match.

        Without active jobs the figures stay as they are, so a metric rule that does not hold now never will.
        """
        if self.outstanding or self._members:
            return False
        beats = self.ensemble.heartbeat_s > 0
        return not (beats and any(state.lives and self._holds(state) for state in self._metric_rules))

    def active_jobs(self) -> dict[str, dict[str, int]]:
        """Count each group's active jobs: ``pending``, ``running``, and ``submitting`` until Flux shows them."""
        shown = {group: {"submitting": 0, "pending": 0, "running": 0} for group in self.ensemble.groups}
        for order in self.outstanding.values():
            if isinstance(order, Submit):
                shown[order.jobs.group]["submitting"] += 1
        for member in self._members.values():
            if not member.ended:
                shown[member.group]["pending" if member.started_at is None else "running"] += 1
        return shown


def _record(event: JobEvent) -> dict[str, Any]:
    """Return the event as a record of Flux's journal, for a custom function."""
    context: dict[str, Any] = {}
    if event.name == "finish":
        context["status"] = event.status
    elif event.name == "exception":
        context |= {"type": event.kind, "severity": event.severity}
    return {"id": event.job, "events": [{"name": event.name, "timestamp": event.at, "context": context}]}
