"""What the Flux port owes beyond its contract: crashes of rank 0, faults of the instance, messages that help."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.core.jobs import JobId, JobResult
from nodemanager.core.nodes import FluxRank, Launch, LaunchId
from nodemanager.core.ports import FluxError, NotTheActor
from nodemanager.core.slots import Rank, SlotName, TypeName
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.port import RealFluxPort
from tests.contract.flux_subjects import CLUSTER_UUID, MonotonicClock
from tests.live.instance import LiveInstance, eventually, why_no_flux

LAUNCH = Launch(LaunchId("launch-1"), SlotName("slot1"), Rank(1), TypeName("small"), "token-1", 1_790_000_000.25)


@pytest.fixture
def port(instance: LiveInstance) -> Iterator[RealFluxPort]:
    flux = RealFlux(instance.uri, CLUSTER_UUID, MonotonicClock())
    port = flux.port()
    yield port
    port.close()
    flux.close()


def test_a_record_survives_the_sudden_death_of_rank_0_and_the_name_must_be_claimed_again(
    instance: LiveInstance, port: RealFluxPort
) -> None:
    port.claim()
    port.record([LAUNCH])
    instance.kill_head()
    with pytest.raises(FluxError):
        port.launches()
    with pytest.raises(FluxError, match="cannot reach Flux"):
        port.record([LAUNCH])
    instance.start_head()
    assert port.launches() == (LAUNCH,)
    with pytest.raises(NotTheActor):
        port.forget(LAUNCH)
    port.claim()
    port.forget(LAUNCH)
    assert port.launches() == ()


def test_after_a_restart_a_changing_call_finds_the_new_rank_0_by_itself(
    instance: LiveInstance, port: RealFluxPort
) -> None:
    port.claim()
    instance.stop_head()
    instance.start_head()
    with pytest.raises(NotTheActor):
        port.record([LAUNCH])
    port.claim()
    port.record([LAUNCH])
    assert port.launches() == (LAUNCH,)


def test_a_record_that_cannot_be_read_is_named_and_stops_what_depends_on_it(
    instance: LiveInstance, port: RealFluxPort
) -> None:
    port.claim()
    instance.run("kvs", "put", "--raw", "node-manager.leases.slot1={")
    for call in (port.launches, lambda: port.record([LAUNCH]), lambda: port.forget(LAUNCH)):
        with pytest.raises(FluxError, match=r"node-manager\.leases\.slot1 cannot be read"):
            call()


def test_an_instance_without_a_scheduler_says_so(instance: LiveInstance, port: RealFluxPort) -> None:
    instance.unload_scheduler()
    with pytest.raises(FluxError, match="no scheduler"):
        port.ranks()
    instance.load_scheduler()
    assert len(port.ranks()) == 3


def test_a_manager_beside_another_rank_is_told_which_and_what_to_do(instance: LiveInstance) -> None:
    instance.start_slot(2)
    flux = RealFlux(instance.uri.replace("head.sock", "slot2.sock"), CLUSTER_UUID, MonotonicClock())
    port = flux.port()
    with pytest.raises(FluxError, match=r"leads to rank 2.*connect to rank 0"):
        port.claim()
    port.close()


def test_the_holder_of_the_name_is_named_to_the_one_who_waits(instance: LiveInstance, port: RealFluxPort) -> None:
    port.claim()
    second = RealFlux(instance.uri, CLUSTER_UUID, MonotonicClock()).port()
    with pytest.raises(NotTheActor, match=r"process \d+ on "):
        second.claim()
    second.close()


def test_an_excluded_rank_cannot_be_drained_and_flux_s_words_are_kept(port: RealFluxPort) -> None:
    port.claim()
    with pytest.raises(FluxError, match=r"resource\.drain: .*excluded"):
        port.drain(Rank(0), "flux-node-manager:launch-1")


STUCK = """
[job-manager.housekeeping]
command = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
release-after = "0s"
"""


def test_a_housekeeping_that_ignores_sigterm_is_seen_and_killed(instance: LiveInstance, port: RealFluxPort) -> None:
    (instance.directory / "conf.d" / "housekeeping.toml").write_text(STUCK)
    instance.run("config", "reload")
    port.claim()
    instance.start_slot(1)
    eventually("it takes jobs", lambda: _rank(port, 1).cores_free > 0)
    instance.run("cancel", str(instance.submit("-n1")))
    eventually("its housekeeping is seen", lambda: _rank(port, 1).housekeeping_since_at is not None)
    assert _rank(port, 1).allocated, "no job runs there, and it is not free"

    port.kill_housekeeping(Rank(1), signal.SIGTERM)
    assert _rank(port, 1).housekeeping_since_at is not None
    port.kill_housekeeping(Rank(1), signal.SIGKILL)

    eventually("its rank is free", lambda: not _rank(port, 1).allocated)
    assert _rank(port, 1).housekeeping_since_at is None
    port.kill_housekeeping(Rank(1), signal.SIGTERM)  # nothing runs there: no error


def test_57_a_job_is_submitted_once_more_and_runs_only_once_its_node_is_lost(
    instance: LiveInstance, port: RealFluxPort
) -> None:
    port.claim()
    instance.start_slot(1)
    eventually("it takes jobs", lambda: _rank(port, 1).cores_free > 0)
    old = JobId(instance.submit("-n1", "--env=MARK=kept", "--setattr=node-manager.requeue"))
    eventually("it runs", lambda: _rank(port, 1).allocated)

    # As the manager does: for a tenth of a second after its death Flux would give the node to the next job.
    port.drain(Rank(1), "flux-node-manager:launch-1")
    new = port.requeue(old)

    assert "depend" in instance.run("jobs", "-no", "{state}", str(new)).lower(), "the first one still runs"
    assert instance.run("job", "id", "--to=f58plain", str(new)) in instance.run("jobs", "-no", "{user}", str(old))
    system = json.loads(instance.run("job", "info", "--original", str(new), "jobspec"))["attributes"]["system"]
    assert system["node-manager"]["requeued-from"] == instance.run("job", "id", "--to=f58plain", str(old))
    assert system["environment"]["MARK"] == "kept"

    instance.kill_slot(1)
    instance.start_slot(2)
    eventually("the first one has failed", lambda: port.result(old) is JobResult.FAILED)
    assert port.result(new) is None, "the second one waits for us"
    port.start_copy(new)
    eventually("the second one runs", lambda: _rank(port, 2).allocated)


def _rank(port: RealFluxPort, number: int) -> FluxRank:
    return next(rank for rank in port.ranks() if rank.rank == number)


def test_the_end_of_a_job_is_told_in_flux_s_own_words(instance: LiveInstance) -> None:
    flux = RealFlux(instance.uri, CLUSTER_UUID, MonotonicClock())
    instance.start_slot(1)
    failed = int(instance.run("job", "id", "--to=dec", instance.run("submit", "-N1", "sh", "-c", "exit 3")))
    canceled, never = instance.submit("-N1"), instance.submit("-N9")
    eventually("the first has ended", lambda: flux.job_end(JobId(failed)))
    instance.run("cancel", str(canceled))
    eventually("all have ended", lambda: all(flux.job_end(JobId(job)) for job in (failed, canceled, never)))
    seen = [flux.job_end(JobId(job)) for job in (failed, canceled, never)]
    assert [it.result for it in seen if it] == [
        instance.run("jobs", "-ano", "{result}", str(job)) for job in (failed, canceled, never)
    ]
    assert seen[0] is not None
    assert seen[0].how == "exit code 3"
    assert seen[2] is not None
    assert seen[2].began_at is None
    assert "unsatisfiable" in seen[2].exceptions[0].note
    assert flux.job_end(JobId(12345)) is None
    flux.close()


def test_a_look_shows_what_is_below_a_rank_in_the_tree() -> None:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        live = LiveInstance(Path(folder), slots=7, fan_out=2)
        flux = RealFlux(live.uri, CLUSTER_UUID, MonotonicClock())
        port = flux.port()
        try:
            live.start_head()
            assert [rank.below for rank in port.ranks()] == [3, 2, 1, 0, 0, 0, 0]
        finally:
            port.close()
            flux.close()
            live.reap()
