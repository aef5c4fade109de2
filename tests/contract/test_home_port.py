"""The contract of every ``HomePort``: what it reports, and what it does when a connection is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.delegation.jobs import (
    HOLD,
    SUBMITTED,
    Phase,
)
from nodemanager.delegation.ports import (
    HoldJob,
    HomeDone,
    HomeEvents,
    HomeLost,
    HomeRefused,
    HomeSynced,
    RemoveDependency,
    ShowFinished,
    Validate,
)
from tests.contract.home_jobs import a_placement, a_take, delegated, done, end, ended, running
from tests.contract.home_subjects import SUBJECTS, Subject

pytestmark = pytest.mark.xdist_group("live")  # they must not compete for processors


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with SUBJECTS[request.param]() as made:
        yield made


@pytest.fixture
def busy(subject: Subject) -> JobId:
    """A job that keeps others from running."""
    return subject.keep_busy()


def test_it_tells_when_the_instance_started(subject: Subject) -> None:
    assert subject.began_at <= subject.until(HomeSynced).started_at <= subject.now_at()


def test_a_delegated_job_is_reported_from_its_submission_and_is_held(subject: Subject) -> None:
    job = delegated(subject)
    first = subject.until(HomeEvents, lambda it: it.job == job)
    assert first.events[0].name == "submit"
    assert (first.target, first.duration_s, first.nodelist) == ("b", 100.0, "b")
    proxy = subject.proxy(job)
    assert proxy.held
    assert proxy.waits_for == {HOLD}
    assert (proxy.phase, proxy.urgency) == (Phase.WAITING, 16)
    assert proxy.userid == subject.userid
    assert subject.began_at <= proxy.bypass_at
    end(subject, job)


def test_every_event_is_reported_once_and_in_order(subject: Subject) -> None:
    job = running(subject)
    done(subject, ShowFinished(job, 0))
    subject.until_event(job, "clean")
    told = {
        "submit",
        "dependency-add",
        "validate",
        "dependency-remove",
        "depend",
        "alloc",
        "start",
        "finish",
        "clean",
    }
    assert [name for name in subject.names(job) if name in told] == [
        "submit", "dependency-add", "validate", "dependency-remove", "depend", "alloc", "start", "finish", "clean"
    ]  # fmt: skip


def test_after_a_restart_active_jobs_are_reported_whole_and_a_running_one_still_runs(
    subject: Subject, busy: JobId
) -> None:
    over, held, runs, taken = ended(subject), delegated(subject), running(subject), subject.submit(50)
    done(subject, a_take(taken))
    done(subject, HoldJob(taken))
    first = subject.until(HomeSynced)
    subject.facts.clear()
    subject.restart()
    assert not subject.until(HomeLost).setup_fault
    synced = subject.until(HomeSynced)
    assert synced.started_at > first.started_at
    told = subject.facts[: subject.facts.index(synced)]
    again = {it.job: it for it in told if isinstance(it, HomeEvents) and it.events[0].name == "submit"}
    assert {held, runs, taken} <= again.keys()
    assert over not in again
    assert (again[held].target, again[held].nodelist, again[held].duration_s) == ("b", "b", 100.0)
    assert subject.proxy(runs).phase is Phase.RUNNING
    assert subject.proxy(taken).taken
    done(subject, ShowFinished(runs, 0))
    subject.until_event(runs, "clean")
    assert subject.proxy(held).bypass_at < synced.started_at, "alloc-bypass forgot it"
    done(subject, Validate(held, 100.0))
    done(subject, RemoveDependency(held, HOLD))
    subject.until_event(held, "alloc")
    end(subject, held)
    end(subject, taken)


def test_a_manager_that_lost_the_name_changes_nothing(subject: Subject) -> None:
    job = delegated(subject)
    subject.facts.clear()
    back = subject.let_another_act()
    subject.port.send(a_placement(job))
    lost = subject.until(HomeLost)
    assert not lost.setup_fault
    assert lost.why
    back()
    subject.until(HomeSynced)
    assert SUBMITTED not in subject.names(job)
    assert not any(isinstance(it, HomeDone | HomeRefused) for it in subject.facts)
    end(subject, job)


def test_once_it_is_stopped_it_tells_nothing(subject: Subject) -> None:
    job = delegated(subject)
    subject.port.stop()
    told = len(subject.facts)
    later = subject.submit(100, target="b")
    subject.wait("both are active", lambda: {job, later} <= subject.active())
    assert len(subject.facts) == told
    subject.connect()
    assert {job, later} <= {it.job for it in subject.facts if isinstance(it, HomeEvents)}
    end(subject, job)
    end(subject, later)
