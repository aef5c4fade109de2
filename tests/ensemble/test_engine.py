"""The engine, story by story: what happens to jobs, and what is ordered then."""

from __future__ import annotations

from nodemanager.ensemble.deeds import Call, Cancel, Deed, Fired, Noted, Notify, Order, Resize, Submit, Terminate
from nodemanager.ensemble.engine import Engine
from nodemanager.ensemble.file.model import Count
from nodemanager.ensemble.file.schema import read_ensemble
from nodemanager.ensemble.inputs import Answered, Begun, Input, JobEvent, Refused, Tick

START = "{trigger: start, action: {name: submit, label: a}}"


class Story:
    """An engine, the jobs that follow from its orders, and the time."""

    def __init__(self, jobs: str, *rules: str, heartbeat: float = 0) -> None:
        lines = "".join(f"  - {rule}\n" for rule in (START, *rules))
        text = f"logging: {{heartbeat: {heartbeat}}}\njobs: [{jobs}]\nrules:\n{lines}"
        self.engine = Engine(read_ensemble(text)[0])
        self.inputs: list[Input] = []
        self.at = 100.0
        self._jobs = 0
        self.deeds = self.take(Begun(self.at))

    def take(self, it: Input) -> list[Deed]:
        self.inputs.append(it)
        self.deeds = self.engine.take(it)
        return self.deeds

    def orders(self, *kinds: type[Order]) -> list[Deed]:
        return [deed for deed in self.deeds if isinstance(deed, kinds or (Submit, Cancel, Notify, Resize, Call))]

    def event(self, job: int, name: str, **more: int | str) -> list[Deed]:
        self.at += 1
        return self.take(JobEvent(job, name, self.at, **more))  # type: ignore[arg-type]

    def submitted(self, key: str) -> int:
        """Flux accepts the job of a key. Returns its id."""
        self._jobs += 1
        self.event(self._jobs, "submit", key=key, group="-")
        return self._jobs

    def runs(self, key: str) -> int:
        job = self.submitted(key)
        for name in ("validate", "depend", "priority", "alloc", "start"):
            self.event(job, name)
        return job

    def ends(self, key: str, status: int = 0) -> list[Deed]:
        """A job runs and ends. Returns what is done at its finish."""
        job = self.runs(key)
        at_finish = self.event(job, "finish", status=status)
        self.closes(job)
        self.deeds = at_finish
        return at_finish

    def closes(self, job: int) -> None:
        for name in ("release", "free", "clean"):
            self.event(job, name)

    def counts(self, group: str = "a") -> dict[str, int]:
        return {name: count for name, count in self.engine.metrics.counts(group).items() if count}


def keys(deeds: list[Deed]) -> list[str]:
    return [deed.key for deed in deeds if isinstance(deed, Submit)]


def fired(deeds: list[Deed]) -> list[tuple[int, int]]:
    return [(deed.rule, deed.run) for deed in deeds if isinstance(deed, Fired)]


def test_start_submits_every_set_of_its_group() -> None:
    story = Story("{name: a, command: x, count: 2}, {name: b, command: y}, {name: a, command: z}")
    assert keys(story.deeds) == ["1.1.0.0", "1.1.0.1", "1.1.2.0"]


def test_a_rule_for_a_group_hears_of_that_group_only() -> None:
    rule = "{trigger: job-finish, name: b, action: {name: submit, label: a, repetitions: 9}}"
    story = Story("{name: a, command: x}, {name: b, command: y}", rule)
    assert not fired(story.ends("1.1.0.0"))


def test_a_rule_without_a_group_hears_of_all_groups_of_the_ensemble() -> None:
    story = Story("{name: a, command: x}", "{trigger: job-finish, action: {name: notify, message: hi}}")
    assert fired(story.ends("1.1.0.0")) == [(2, 1)]
    assert story.orders() == [Notify("2.1", "hi", 1)]


def test_figures_change_before_metric_rules_and_those_run_before_rules_of_the_event() -> None:
    story = Story(
        "{name: a, command: x}",
        "{trigger: job-finish, name: a, action: {name: notify, message: second}}",
        "{trigger: metric, name: count.a.finished, when: 1, action: {name: notify, message: first}}",
    )
    assert fired(story.ends("1.1.0.0")) == [(3, 1), (2, 1)]


def test_repetitions_and_backoff_skip_matches() -> None:
    for backoff, expected in (("", [1, 2, 3]), ("backoff: 1,", [1, 3, 5]), ("backoff: 2,", [1, 4, 7])):
        rule = f"{{trigger: job-finish, action: {{name: notify, {backoff} repetitions: 3}}}}"
        story = Story("{name: a, command: x, count: 9}", rule)
        ran = [number for number in range(1, 10) if fired(story.ends(f"1.1.0.{number - 1}"))]
        assert ran == expected


def test_backoff_in_seconds_skips_matches_by_the_time_of_the_events() -> None:
    rule = "{trigger: job-finish, action: {name: notify, backoff: 25s, repetitions: 9}}"
    story = Story("{name: a, command: x, count: 9}", rule)
    ran = [number for number in range(1, 8) if fired(story.ends(f"1.1.0.{number - 1}"))]
    assert ran == [1, 4, 7], "each job takes 10 seconds"


def test_each_match_of_a_rule_is_a_run_or_is_skipped() -> None:
    rule = "{trigger: job-finish, action: {name: notify, backoff: 1, repetitions: 2}}"
    story = Story("{name: a, command: x, count: 9}", rule)
    for number in range(5):
        story.ends(f"1.1.0.{number}")
    state = story.engine.rules[1]
    assert (state.matches, state.runs, state.skipped) == (3, 2, 1), "without repetitions left it matches no more"


def test_states_and_ends_of_jobs_are_triggers_too() -> None:
    names = ("sched", "run", "cleanup", "success", "fail", "cancel")
    rules = [
        f"{{trigger: job-{name}, action: {{name: notify, message: {name}, repetitions: 9}}}}" for name in names
    ]
    story = Story("{name: a, command: x, count: 3}", *rules)
    heard: list[str] = []

    def event(job: int, name: str, **more: int | str) -> None:
        story.event(job, name, **more)
        heard.extend(deed.text for deed in story.deeds if isinstance(deed, Notify))

    job = story.submitted("1.1.0.0")
    for name in ("validate", "depend", "priority", "priority", "alloc", "start"):
        event(job, name)
    event(job, "finish", status=0)
    event(job, "clean")
    assert heard == ["sched", "run", "cleanup", "success"]
    heard.clear()
    event(story.runs("1.1.0.1"), "finish", status=256)
    assert heard == ["cleanup", "fail"]
    heard.clear()
    job = story.submitted("1.1.0.2")
    event(job, "exception", kind="cancel", severity=0)
    event(job, "clean")
    assert heard == ["cancel", "cleanup"]


def test_heartbeats_add_to_the_waiting_time_of_jobs_that_wait() -> None:
    rule = '{trigger: metric, name: max.a-pending, when: "> 5", action: {name: grow}}'
    story = Story("{name: a, command: x}", rule, heartbeat=3)
    job = story.submitted("1.1.0.0")
    assert not fired(story.take(Tick(story.at + 3)))
    assert fired(story.take(Tick(story.at + 6))) == [(2, 1)]
    story.event(job, "exception", kind="alloc", severity=0)
    before = story.engine.metrics.models()
    story.take(Tick(story.at + 100))
    assert story.engine.metrics.models() == before, "a job that can never start waits no more"


# --- how jobs end -----------------------------------------------------------------------------------------


def test_a_job_that_can_never_run_is_refused() -> None:
    story = Story("{name: a, command: x, nodes: 50}")
    job = story.submitted("1.1.0.0")
    story.event(job, "exception", kind="alloc", severity=0)
    story.event(job, "clean")
    assert story.counts() == {Count.REFUSED: 1}
    assert story.engine.is_idle


def test_a_job_that_is_not_accepted_is_refused() -> None:
    story = Story("{name: a, command: x}", "{trigger: metric, name: count.a.refused, action: {name: terminate}}")
    story.take(Refused("1.1.0.0", story.at, "unknown queue"))
    assert [deed.text for deed in story.deeds if isinstance(deed, Noted)] == [
        "a job of group a was refused: unknown queue"
    ]
    assert story.counts() == {Count.REFUSED: 1}
    assert story.engine.ended == "rule 2 ended it"


def test_a_job_cancelled_before_it_runs_is_cancelled_and_one_that_runs_has_failed() -> None:
    story = Story("{name: a, command: x, count: 2}")
    waits, runs = story.submitted("1.1.0.0"), story.runs("1.1.0.1")
    for job in (waits, runs):
        story.event(job, "exception", kind="cancel", severity=0)
    story.event(runs, "finish", status=36608)
    for job in (waits, runs):
        story.event(job, "clean")
    assert story.counts() == {Count.CANCELLED: 1, Count.FINISHED: 1, Count.FAILED: 1}


def test_a_failed_member_is_submitted_again_as_often_as_its_set_says() -> None:
    story = Story("{name: a, command: x, retries: 2}")
    assert keys(story.ends("1.1.0.0", status=256)) == ["1.1.0.0+1"]
    assert story.counts() == {Count.RETRIED: 1}
    assert keys(story.ends("1.1.0.0+1", status=256)) == ["1.1.0.0+2"]
    assert not keys(story.ends("1.1.0.0+2", status=256))
    assert story.counts() == {Count.RETRIED: 2, Count.FINISHED: 1, Count.FAILED: 1}


def test_a_group_after_another_waits_until_all_its_members_have_succeeded() -> None:
    rule = "{trigger: job-start, name: a, action: {name: submit, label: b}}"
    story = Story("{name: a, command: x, count: 2}, {name: b, command: y, after: a}", rule)
    first = story.runs("1.1.0.0")
    assert not keys(story.deeds)
    second = story.runs("1.1.0.1")
    assert not keys(story.event(first, "finish", status=0))
    assert keys(story.event(second, "finish", status=0)) == ["2.1.1.0"]


def test_a_group_after_one_that_failed_is_refused() -> None:
    rule = "{trigger: job-start, name: a, action: {name: submit, label: b}}"
    story = Story("{name: a, command: x}, {name: b, command: y, count: 3, after: [a]}", rule)
    story.ends("1.1.0.0", status=256)
    assert story.counts("b") == {Count.REFUSED: 3}
    assert story.engine.is_idle


def test_the_members_of_a_refused_group_set_off_job_fail() -> None:
    story = Story(
        "{name: a, command: x}, {name: b, command: y, count: 3, after: [a]}, {name: c, command: z}",
        "{trigger: start, action: {name: submit, label: b}}",
        "{trigger: job-fail, name: b, action: {name: submit, label: c, repetitions: 2}}",
    )
    deeds = story.ends("1.1.0.0", status=256)
    assert fired(deeds) == [(3, 1), (3, 2)]
    assert keys(deeds) == ["3.1.2.0", "3.2.2.0"]
    assert Noted(story.at - 3, "group b is refused: a member of a did not succeed") in deeds


def test_a_rule_that_submits_a_refused_group_again_and_again_ends_with_its_repetitions() -> None:
    again = "{trigger: job-fail, name: b, action: {name: submit, label: b, repetitions: 5000}}"
    start = "{trigger: start, action: {name: submit, label: b}}"
    story = Story("{name: a, command: x}, {name: b, command: y, after: a}", start, again)
    story.ends("1.1.0.0", status=256)
    assert story.counts("b") == {Count.REFUSED: 5001}
    assert story.engine.is_idle


# --- actions ----------------------------------------------------------------------------------------------


def test_terminate_ends_the_run_at_once() -> None:
    story = Story(
        "{name: a, command: x}",
        "{trigger: job-finish, action: {name: terminate}}",
        "{trigger: job-finish, action: {name: submit, label: a}}",
    )
    story.ends("1.1.0.0")
    assert [deed for deed in story.deeds if isinstance(deed, Terminate)] == [Terminate("2.1", "rule 2 ended it")]
    assert fired(story.deeds) == [(2, 1)], "no rule runs after it"


def test_cancel_cancels_the_active_jobs_of_a_group() -> None:
    rule = "{trigger: job-finish, action: {name: cancel, label: a}}"
    story = Story("{name: a, command: x, count: 3}", rule)
    waits = story.submitted("1.1.0.1")
    story.ends("1.1.0.0")
    assert story.orders() == [Cancel("2.1", (waits,), "cancelled by rule 2 of its ensemble")]


def test_grow_and_shrink_move_a_floor_that_a_refusal_moves_back() -> None:
    story = Story(
        "{name: a, command: x, count: 3}",
        "{trigger: job-start, action: {name: grow, value: 2, repetitions: 2}}",
        "{trigger: job-finish, action: {name: shrink, value: 3}}",
    )
    story.runs("1.1.0.0")
    assert story.orders() == [Resize("2.1", 2, 2, 2)]
    story.take(Answered("2.1", story.at))
    second = story.runs("1.1.0.1")
    assert story.orders() == [Resize("2.2", 2, 4, 2)]
    story.take(Answered("2.2", story.at, "nodes_max = 3"))
    assert story.engine.floor == 2
    story.event(second, "finish", status=0)
    assert story.orders() == [Resize("3.1", -2, 0, -3)], "it cannot take more than was given"


def test_what_a_custom_function_returns_is_carried_out() -> None:
    rules = "{trigger: job-finish, name: a, action: {name: custom, label: f}}"
    text = f"custom: 'def f(**k): pass'\njobs: [{{name: a, command: x}}]\nrules: [{START}, {rules}]\n"
    engine = Engine(read_ensemble(text)[0])
    engine.take(Begun(1.0))
    for name in ("submit", "start", "finish"):
        deeds = engine.take(JobEvent(7, name, 2.0, key="1.1.0.0"))
    (call,) = (deed for deed in deeds if isinstance(deed, Call))
    assert call.event == {"id": 7, "events": [{"name": "finish", "timestamp": 2.0, "context": {"status": 0}}]}
    assert call.metrics["count"] == {"a": {"finished": 1, "success": 1}}
    assert keys(engine.take(Answered(call.key, 3.0, "", {"name": "submit", "label": "a"}))) == ["2.1c.0.0"]
    assert not engine.take(Answered(call.key, 4.0, "", {"name": "submit", "label": "a"})), "answered already"


def test_a_custom_function_that_fails_or_returns_nonsense_harms_nothing() -> None:
    rule = "{trigger: job-start, action: {name: custom, label: f, repetitions: 3}}"
    text = f"custom: 'def f(**k): pass'\njobs: [{{name: a, command: x}}]\nrules: [{START}, {rule}]\n"
    engine = Engine(read_ensemble(text)[0])
    engine.take(Begun(1.0))
    engine.take(JobEvent(7, "submit", 2.0, key="1.1.0.0"))
    answers = (
        Answered("2.1", 3.0, "ZeroDivisionError: "),
        Answered("2.2", 3.0, "", {"name": "submit", "label": "z"}),
    )
    for answer in answers:
        engine.take(JobEvent(7, "start", 3.0))
        (deed,) = engine.take(answer)
        assert isinstance(deed, Noted)


# --- restarts ---------------------------------------------------------------------------------------------


def test_replaying_the_inputs_gives_the_same_engine() -> None:
    story = Story(
        "{name: a, command: x, count: 4, retries: 1}, {name: b, command: y, after: a}",
        "{trigger: job-start, name: a, action: {name: submit, label: b}}",
        '{trigger: metric, name: mean.a-pending, when: "> 2", action: {name: grow, repetitions: 5, backoff: 2}}',
        heartbeat=1,
    )
    for number in range(3):
        story.ends(f"1.1.0.{number}", status=256 * (number % 2))
        story.take(Tick(story.at))
    again = Engine(story.engine.ensemble)
    for it in story.inputs:
        again.take(it)
    assert again.outstanding == story.engine.outstanding
    assert again.metrics.models() == story.engine.metrics.models()
    assert again.rules == story.engine.rules
    assert again.floor == story.engine.floor


def test_a_job_that_arrives_twice_is_cancelled_and_not_counted() -> None:
    story = Story("{name: a, command: x}")
    first = story.submitted("1.1.0.0")
    second = story.submitted("1.1.0.0")
    assert story.orders() == [Cancel(f"1.1.0.0x{second}", (second,), "its ensemble submitted it twice")]
    story.event(second, "clean")
    assert story.counts() == {}
    story.event(first, "clean")
    assert story.counts() == {Count.REFUSED: 1}


def test_a_run_is_idle_only_when_nothing_can_happen_any_more() -> None:
    story = Story("{name: a, command: x}")
    assert not story.engine.is_idle, "a submission is on its way"
    job = story.runs("1.1.0.0")
    assert not story.engine.is_idle, "a job runs"
    story.event(job, "finish", status=0)
    assert not story.engine.is_idle, "its last event may set off a rule"
    story.closes(job)
    assert story.engine.is_idle


def test_a_run_is_not_idle_while_a_heartbeat_can_set_off_a_rule() -> None:
    rule = "{trigger: metric, name: count.a.success, when: 1, action: {name: notify, repetitions: 2, backoff: 20}}"
    story = Story("{name: a, command: x}", rule, heartbeat=1)
    story.ends("1.1.0.0")
    assert not story.engine.is_idle
    for _ in range(21):
        story.at += 1
        story.take(Tick(story.at))
        for deed in story.deeds:
            if isinstance(deed, Notify):
                story.take(Answered(deed.key, story.at))
    story.take(Answered("2.1", story.at))
    assert story.engine.is_idle


def test_why_a_job_can_never_run_is_shown() -> None:
    story = Story("{name: a, command: x, count: 2}")
    job, cancelled = story.submitted("1.1.0.0"), story.submitted("1.1.0.1")
    story.event(job, "exception", kind="alloc", severity=0, note="unsatisfiable request")
    assert [deed.text for deed in story.deeds if isinstance(deed, Noted)] == [
        "a job of group a was refused: unsatisfiable request"
    ]
    story.event(cancelled, "exception", kind="cancel", severity=0, note="by its user")
    assert not any(isinstance(deed, Noted) for deed in story.deeds)


def test_a_running_job_that_meets_an_exception_is_not_called_refused() -> None:
    story = Story("{name: a, command: x}")
    job = story.runs("1.1.0.0")
    story.event(job, "exception", kind="timeout", severity=0, note="resource allocation expired")
    assert not any(isinstance(deed, Noted) for deed in story.deeds)
