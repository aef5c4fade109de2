"""What befalls a fleet: a node dies under a job, rank 0 goes and comes, a second manager waits for its turn."""

from __future__ import annotations

import pytest

from tests.live.elastic import Elastic, an_elastic_site
from tests.live.six_jobs import OFFERS, submit_six_jobs
from tests.live.witness import slot_of

LARGE = {"properties": ["large"]}  # a type of one slot
CPU = {"properties": ["cpu"]}
TAKEN_OVER_WITHIN_S = 5.0


@pytest.mark.smoke
def test_a_lost_nodes_rank_is_taken_over_and_the_waiting_job_runs(elastic: Elastic) -> None:
    before = set(elastic.witness.look())
    elastic.start_manager()
    dies = elastic.submit("sleep", "600", requires=LARGE)
    elastic.eventually("the job runs", lambda: elastic.jobs()[dies].began_at is not None)

    elastic.kill_node("large1")

    # For a tenth of a second Flux would give the dead rank to the next job, and that would die too.
    elastic.eventually("the rank is offline", lambda: not elastic.ranks()["large1"].online)
    waits = elastic.submit("true", requires=LARGE)
    elastic.eventually("the waiting job has run", lambda: elastic.result(waits) == "COMPLETED")
    assert elastic.result(dies) == "FAILED"
    stood = [slot_of(node) for name, node in elastic.witness.look().items() if name not in before]
    assert stood == ["large1", "large1"]
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())


@pytest.mark.smoke
def test_of_two_managers_one_acts_and_the_other_takes_over_when_it_dies(elastic: Elastic) -> None:
    first = elastic.start_manager()
    first.until_said("claimed")
    owner = elastic.owner()
    assert owner is not None
    second = elastic.start_manager()
    second.until_said("stands_still", because=f"process {owner.pid} on")
    job = elastic.submit("true")
    elastic.eventually("the job has run", lambda: elastic.result(job) == "COMPLETED")
    assert second.orders() == []

    first.kill()

    elastic.eventually("the second acts", lambda: second.said("claimed"), within_s=TAKEN_OVER_WITHIN_S)
    again = elastic.submit("true", requires=LARGE)
    elastic.eventually("its job has run", lambda: elastic.result(again) == "COMPLETED")
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    assert "BootNode large1" in second.orders()


def test_a_manager_that_was_stopped_and_wakes_when_another_has_taken_over_does_nothing_more(
    elastic: Elastic,
) -> None:
    first = elastic.start_manager()
    first.until_said("claimed")
    jobs = [elastic.submit("true") for _ in range(3)]
    elastic.eventually("a lease is on record", lambda: any(elastic.launches()))
    elastic.freeze(first)
    second = elastic.start_manager()
    # Who holds the name is not dead: nobody else acts. That it does not answer is known after a timeout.
    elastic.eventually(
        "the second waits", lambda: second.said("stands_still", because="did not answer within"), within_s=60.0
    )
    assert second.orders() == []

    # So the name is lost only with rank 0.
    elastic.stop_head()
    elastic.start_head()

    elastic.eventually("the second acts", lambda: second.said("claimed"))
    elastic.eventually("the jobs have run", lambda: all(elastic.result(job) == "COMPLETED" for job in jobs))
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    made = set(elastic.witness.look())
    said = len(first.lines())
    # A call that was past its last check when the manager was stopped goes on where it was.
    under_way = {order.split()[1] for order in first.orders() if order.startswith("CreateNode ")}

    first.thaw()

    owner = f"process {second.process.pid} on"
    elastic.eventually(
        "the first sees that another one acts",
        lambda: any(owner in str(line.get("because", "")) for line in first.lines()[said:]),
    )
    again = elastic.submit("true", requires=LARGE)
    elastic.eventually("the next job has run", lambda: elastic.result(again) == "COMPLETED")
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    anew = [slot_of(node) for name, node in elastic.witness.look().items() if name not in made]
    assert [slot for slot in anew if slot not in under_way] == ["large1"], first.tail()
    assert first.status is None
    assert second.status is None


def test_rank_0_goes_and_comes_back_and_the_queue_runs_on() -> None:
    # A window that does not end meanwhile: no node goes because rank 0, which lets no job begin, takes long to go.
    with an_elastic_site(OFFERS, billing="1h") as elastic:
        manager = elastic.start_manager()
        running = elastic.submit("sleep", "600", requires=LARGE)
        waiting = elastic.submit("true", requires=LARGE)
        elastic.eventually("the first job runs", lambda: elastic.jobs()[running].began_at is not None)
        nodes = set(elastic.witness.look())

        elastic.stop_head()
        elastic.start_head()

        elastic.eventually("its node is back", lambda: elastic.ranks()["large1"].online)
        elastic.flux("cancel", str(running), check=False)
        elastic.eventually("the waiting job has run", lambda: elastic.result(waiting) == "COMPLETED")
        assert set(elastic.witness.look()) == nodes, manager.tail()
        assert manager.status is None


def test_one_that_observes_follows_the_nodes_of_one_that_acts_beside_it(elastic: Elastic) -> None:
    observer = elastic.start_observer()
    observer.until_said("observes")
    elastic.start_manager()
    first, second = elastic.submit("true", requires=LARGE), elastic.submit("sleep", "600", requires=CPU)

    elastic.eventually("both have begun", lambda: all(elastic.jobs()[job].began_at for job in (first, second)))
    (busy,) = (launch.id for launch in elastic.launches() if launch.slot != "large1")
    observer.until_said("node", node=busy, now="busy")
    elastic.flux("cancel", str(second))
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
    observer.until_said("lease_ended", node=busy)
    assert observer.said("decided") == []


def test_one_that_observes_says_what_it_would_do_and_changes_nothing(elastic: Elastic) -> None:
    manager = elastic.start_manager(mode="observe")
    submit_six_jobs(elastic)
    manager.until_said("would", order="BootNode gpu1")
    assert elastic.owner() is None
    assert elastic.keys() == ()
    assert not elastic.witness.living()
    assert manager.said("decided") == []
    assert manager.terminate(within_s=5.0) == 0
