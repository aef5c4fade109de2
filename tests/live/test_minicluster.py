"""A MiniCluster of four real brokers: it grows for jobs, shrinks without ending one, and outlives every fault."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.instance import why_no_flux
from tests.live.minicluster import LiveMiniCluster


@pytest.fixture
def mini() -> Iterator[LiveMiniCluster]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        live = LiveMiniCluster(Path(folder))
        try:
            live.start()
            yield live
        finally:
            live.reap()


def test_it_grows_for_a_job_by_one_patch_and_shrinks_by_one(mini: LiveMiniCluster) -> None:
    mini.start_manager()
    job = mini.submit("sleep", "2", nodes=4)  # the lead broker's node runs jobs too
    mini.eventually("the job has run", lambda: mini.result(job) == "COMPLETED")
    mini.eventually("only the lead broker is left", mini.is_small_again)
    assert mini.sizes() == [4, 1]
    again = mini.submit("true", nodes=2)
    mini.eventually("an index that was removed runs a job again", lambda: mini.result(again) == "COMPLETED")
    mini.eventually("only the lead broker is left", mini.is_small_again)


def test_a_job_on_the_top_index_keeps_idle_ones_and_is_not_ended(mini: LiveMiniCluster) -> None:
    manager = mini.start_manager()
    long = mini.submit("sleep", "600", requires="rank:3")
    mini.eventually("all pods are online", lambda: mini.online() == {0, 1, 2, 3})
    mini.eventually("the top takes no new job", lambda: 3 in mini.drained())
    assert mini.size == 4
    short = mini.submit("true", nodes=2)
    mini.eventually("a job runs below", lambda: mini.result(short) == "COMPLETED")
    assert 3 not in mini.ranks_of(short)
    assert mini.sizes() == [4]
    assert mini.result(long) == ""  # it still runs
    mini.flux("job", "kill", "--signal=INT", long)
    mini.eventually("only the lead broker is left", mini.is_small_again)
    assert mini.sizes()[0] == 4
    assert mini.sizes()[-1] == 1
    assert manager.status is None


def test_demand_that_returns_undrains_the_top(mini: LiveMiniCluster) -> None:
    mini.start_manager()
    long = mini.submit("sleep", "600", requires="rank:3")
    mini.eventually("the top takes no new job", lambda: 3 in mini.drained())
    wide = mini.submit("true", nodes=4)
    mini.eventually("the top is wanted again", lambda: 3 not in mini.drained())
    mini.flux("cancel", long)
    mini.eventually("the job that wants all of them runs", lambda: mini.result(wide) == "COMPLETED")
    mini.eventually("only the lead broker is left", mini.is_small_again)


def test_a_silent_operator_is_waited_for(mini: LiveMiniCluster) -> None:
    mini.start_manager()
    mini.operator.silent = True
    job = mini.submit("true", nodes=3)
    mini.eventually("the size is asked for", lambda: mini.size == 3)
    assert mini.online() == {0}
    mini.operator.silent = False
    mini.eventually("the job has run", lambda: mini.result(job) == "COMPLETED")
    mini.operator.silent = True
    mini.eventually("the smaller size is asked for", lambda: mini.size == 1)
    assert mini.online() == {0, 1, 2}
    mini.operator.silent = False
    mini.eventually("only the lead broker is left", mini.is_small_again)
    assert mini.sizes() == [3, 1]


def test_a_token_that_rotates_and_an_api_server_that_is_away(mini: LiveMiniCluster) -> None:
    manager = mini.start_manager()
    job = mini.submit("true", nodes=2)
    mini.eventually("the job has run", lambda: mini.result(job) == "COMPLETED")
    mini.rotate_token("token-2")
    mini.eventually("only the lead broker is left", mini.is_small_again)
    mini.api.faults.away = True
    again = mini.submit("true", nodes=2)
    manager.until_said("cloud_watch_lost")
    # After a minute (stale_after) the manager decides nothing any more.
    mini.eventually("nothing is decided", lambda: manager.said("stands_still", because="stale"), within_s=120.0)
    mini.api.faults.away = False
    mini.eventually("the job has run", lambda: mini.result(again) == "COMPLETED")
    mini.eventually("only the lead broker is left", mini.is_small_again)
    assert manager.status is None


def test_pods_that_others_add_are_seen_by_a_watch_that_expired_and_leave_when_idle(mini: LiveMiniCluster) -> None:
    manager = mini.start_manager()
    manager.until_said("claimed")
    mini.api.store.compact()  # every watch ends with 410
    mini.api.store.change(
        ("flux-framework.org", "v1alpha2", "miniclusters"), "flux", "mini", lambda it: it["spec"].update(size=3)
    )
    mini.eventually("the pods are online", lambda: mini.online() == {0, 1, 2})
    mini.eventually("they have leases", lambda: len(mini.keys()) == 2)
    mini.eventually("only the lead broker is left", mini.is_small_again)


def test_a_manager_that_is_killed_at_each_step_goes_on(mini: LiveMiniCluster) -> None:
    steps: list[tuple[str, Callable[[], object]]] = [
        ("the leases are on record", mini.keys),
        ("the size is asked for", lambda: mini.size == 4),
        ("a pod is online", lambda: mini.online() > {0}),
        ("the job runs", lambda: mini.flux("jobs", "-no", "{state}", job) == "RUN"),
        ("a pod is drained", mini.drained),
        ("the smaller size is asked for", lambda: mini.size < 4),
    ]
    may_end = mini.folder / "may-end"
    job = mini.submit("sh", "-c", f"until test -e {may_end}; do sleep 0.1; done", nodes=4)
    for what, reached in steps:
        manager = mini.start_manager()
        mini.eventually(what, reached)
        manager.kill()
        if what == "the job runs":
            may_end.touch()
    mini.start_manager()
    mini.eventually("only the lead broker is left", mini.is_small_again)
    assert mini.result(job) == "COMPLETED"
