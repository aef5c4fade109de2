"""The ended jobs in the history, and as a workload."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import (
    All,
    AnyOf,
    Constraint,
    HasProperty,
    Job,
    JobState,
    Near,
    Not,
    OnHosts,
    OnRanks,
    RankAllocation,
    Shape,
)
from nodemanager.core.slots import Rank
from nodemanager.history.ended_jobs import EndedJob
from nodemanager.history.follower import Follower, HistoryUpdate
from nodemanager.history.store import schema
from nodemanager.history.store.shapes import shape_from_json, shape_to_json
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.whatif.workload.flux_jobs import NEVER_RAN
from nodemanager.whatif.workload.open import open_workload
from nodemanager.whatif.workload.workload import Oddities, Processors, WorkloadError
from tests.builders import NOW_S, WALL_AT, a_job
from tests.history.publications import a_moment, told
from tests.whatif.sites import a_site

GANG = Shape(2, 4, nodes=2, constraint=All((HasProperty("fast"), Not(OnHosts(("c1",))))))


def begun(job: Job, after_s: float) -> Job:
    return replace(
        job, state=JobState.RUN, allocations=(RankAllocation(Rank(1), 1, 0),), began_at=WALL_AT + after_s
    )


def ended(*story: HistoryUpdate) -> list[EndedJob]:
    return [job for happened in story for job in happened.ended_jobs]


def test_a_job_is_kept_once_it_has_ended_with_when_it_ran() -> None:
    waits = a_job(7, submitted_at=WALL_AT - 60, userid=1000, queue="batch", duration_s=600.0)
    story = told(a_moment(jobs=[waits]), a_moment(20, jobs=[begun(waits, 15)]), a_moment(400))
    assert ended(*story) == [
        EndedJob(waits.id, WALL_AT - 60, WALL_AT + 15, WALL_AT + 400, 600.0, 1000, "batch", waits.shape)
    ]


def test_one_that_was_seen_while_it_was_cleaned_up_has_its_beginning() -> None:
    """An epilog may take long."""
    cleaned_up = replace(begun(a_job(7), 15), state=JobState.CLEANUP, allocations=())
    (job,) = ended(*told(a_moment(20, jobs=[cleaned_up]), a_moment(400)))
    assert job.began_at == WALL_AT + 15


def test_one_that_never_began_has_no_beginning() -> None:
    (job,) = ended(*told(a_moment(jobs=[a_job(7)]), a_moment(400)))
    assert job.began_at is None


def test_one_that_came_and_went_between_two_publications_is_told_by_the_facts() -> None:
    job = a_job(7)
    facts = [QueueSeen(NOW_S, jobs=(begun(job, 3),)), QueueSeen(NOW_S, ended=(job.id,))]
    (kept,) = ended(*told(a_moment(), a_moment(5, facts=facts)))
    assert (kept.id, kept.began_at, kept.ended_at) == (job.id, WALL_AT + 3, WALL_AT + 5)


def test_one_that_began_and_ended_between_two_publications_has_its_beginning() -> None:
    job = a_job(7)
    facts = [QueueSeen(NOW_S, jobs=(begun(job, 3),)), QueueSeen(NOW_S, ended=(job.id,))]
    (kept,) = ended(*told(a_moment(jobs=[job]), a_moment(5, facts=facts)))
    assert kept.began_at == WALL_AT + 3


def test_each_is_told_once_though_several_publications_are_taken_together() -> None:
    job = a_job(7)
    end = QueueSeen(NOW_S, ended=(job.id,))
    follower = Follower()
    story = [follower.follow([a_moment(jobs=[begun(job, 0)])])]
    story += [follower.follow([a_moment(5, facts=[end]), a_moment(6)]), follower.follow([a_moment(7)])]
    assert [it.ended_at for it in ended(*story)] == [WALL_AT + 5]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A history with a gang that ran, and one that was cancelled before it started."""
    path = tmp_path / "journal.sqlite"
    gang = a_job(7, submitted_at=WALL_AT - 60, userid=1000, duration_s=600.0, shape=GANG)
    cancelled = a_job(8, submitted_at=WALL_AT - 50)
    journal = HistoryWriter(path)
    journal.write(told(a_moment(jobs=[gang, cancelled]), a_moment(20, jobs=[begun(gang, 15)]), a_moment(400)))
    journal.close()
    return path


def test_what_was_kept_is_a_workload(path: Path, tmp_path: Path) -> None:
    oddities = Oddities()
    workload = open_workload(f"journal:{path}", a_site(tmp_path), Processors.CORES)
    (job,) = workload.read(oddities)
    assert (workload.start_at, workload.jobs_about) == (WALL_AT - 60, 2)
    assert (job.name, job.submit_s, job.run_s, job.limit_s, job.userid) == ("7", 0.0, 385.0, 600.0, 1000)
    assert job.shape == GANG
    assert oddities.examples == {NEVER_RAN: ["job 8"]}
    assert [it.name for it in open_workload(str(path), a_site(tmp_path), Processors.CORES).read(oddities)] == ["7"]


def test_the_site_s_own_history_needs_no_path(path: Path, tmp_path: Path) -> None:
    site = replace(a_site(tmp_path), state_dir=path.parent)
    assert open_workload("journal", site, Processors.CORES).jobs_about == 2


def test_a_history_without_jobs_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema.MIGRATIONS[0])
    with pytest.raises(WorkloadError, match=r"old\.sqlite: no such table: jobs"):
        open_workload(str(path), a_site(tmp_path), Processors.CORES)
    with pytest.raises(WorkloadError, match=r"none\.sqlite"):
        open_workload(str(tmp_path / "none.sqlite"), a_site(tmp_path), Processors.CORES)


def test_one_of_the_version_before_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        for step in schema.MIGRATIONS[:2]:
            connection.executescript(step)
        connection.execute("PRAGMA user_version = 2")
        connection.execute("INSERT INTO waits VALUES ('1', 5.0, 6.0, 0, '', NULL)")
        connection.commit()
        schema.migrate(connection)
        assert connection.execute("SELECT COUNT(*) FROM jobs").fetchone() == (0,)
        assert connection.execute("SELECT wait_s FROM waits").fetchone() == (6.0,)


words = st.text(st.characters(codec="utf-8"), max_size=8)
leaves = (
    words.map(HasProperty)
    | st.lists(st.sampled_from(["c1", "c[1-3]", "a,b"]), max_size=3).map(tuple).map(OnHosts)
    | st.lists(st.sampled_from(["7", "0-3,9", ""]), max_size=3).map(tuple).map(OnRanks)
)


def _nested(parts: st.SearchStrategy[Constraint]) -> st.SearchStrategy[Constraint]:
    several = st.lists(parts, max_size=3).map(tuple)
    return several.map(All) | several.map(AnyOf) | parts.map(Not)


@given(
    st.builds(
        Shape,
        slots=st.integers(1, 99),
        cores_per_slot=st.integers(1, 9),
        gpus_per_slot=st.integers(0, 4),
        nodes=st.none() | st.integers(1, 9),
        exclusive=st.booleans(),
        constraint=st.recursive(leaves, _nested, max_leaves=6),
        memory_bytes_per_slot=st.integers(0, 2**40),
        one_zone=st.booleans(),
        near=st.none() | st.builds(Near, st.text(), st.integers(0, 2**60)),
    )
)
def test_a_shape_comes_back_as_it_was_written(shape: Shape) -> None:
    assert shape_from_json(shape_to_json(shape)) == shape


def test_rows_of_earlier_versions_name_each_rank_and_host() -> None:
    written = {"slots": 1, "cores_per_slot": 1, "constraint": ["all", ["ranks", 1, 2, 7], ["hosts", "c1", "c2"]]}
    shape = shape_from_json(written)
    assert shape.constraint == All((OnRanks(("1", "2", "7")), OnHosts(("c1", "c2"))))


def test_ranges_are_written_as_they_were_given() -> None:
    shape = Shape(1, 1, constraint=AnyOf((OnRanks(("0-999999",)), OnHosts(("c[0-899999]",)))))
    assert shape_to_json(shape)["constraint"] == ["any", ["ranks", "0-999999"], ["hosts", "c[0-899999]"]]


@pytest.mark.parametrize("constraint", [["ranks", "7-1"], ["ranks", True], ["hosts", "a[1"], ["hosts", 5], ["x"]])
def test_a_constraint_that_no_version_wrote_is_refused(constraint: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        shape_from_json({"slots": 1, "cores_per_slot": 1, "constraint": constraint})
