"""Odd jobspecs on a real Flux: whatever users submit, the manager serves a probe beside them, also after a restart.

FNM_ODD_JOBSPECS=500 submits so many; without it there are fewer. They are submitted by the instance's owner.
"""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

from nodemanager.simulation.odd_jobspecs import NAMED, odd_jobspec, plain_jobspec, replaced
from tests.live.elastic import Elastic
from tests.live.instance import eventually
from tests.live.manager_process import ManagerProcess

COUNT = int(os.environ.get("FNM_ODD_JOBSPECS", "60"))
PROBE_WITHIN_S = 60.0
MEMO_WITHIN_S = 30.0
MEMO = "{user.nodes}"


def submit(elastic: Elastic, jobspec: Any, urgency: int = 1) -> str:
    """Submit a jobspec; "" if Flux refuses it."""
    try:
        text = json.dumps(jobspec)
    except ValueError:
        return ""
    return elastic.flux("job", "submit", f"--urgency={urgency}", given=text, check=False)


def serve_a_probe(elastic: Elastic, manager: ManagerProcess) -> None:
    probe = elastic.submit("true")
    eventually(
        "the probe has run",
        lambda: elastic.result(probe) == "COMPLETED" or manager.status is not None,
        PROBE_WITHIN_S,
    )
    assert manager.status is None, manager.tail()


def test_a_request_that_cannot_be_read_is_explained_to_its_user_and_ends_nothing(elastic: Elastic) -> None:
    manager = elastic.start_manager()
    manager.until_said("started")
    # Held: they must still wait when the probe has a node.
    bad = [submit(elastic, replaced(plain_jobspec(), place, value), urgency=0) for place, value in NAMED]
    assert all(bad), "Flux takes them"
    serve_a_probe(elastic, manager)
    for job in bad:
        eventually(
            f"{job} says why",
            lambda job=job: "cannot be read" in elastic.flux("jobs", "-ano", MEMO, job, check=False),  # type: ignore[misc]
            MEMO_WITHIN_S,
        )
    assert "cannot be read" in elastic.verb("explain", "job", bad[0])
    manager.kill()
    manager = elastic.start_manager()
    manager.until_said("started")
    serve_a_probe(elastic, manager)
    assert len(manager.said("unreadable_job")) >= 1
    elastic.flux("cancel", *bad, check=False)
    assert manager.terminate(within_s=5.0) == 0, manager.tail()


def test_odd_jobspecs_stop_nobody(elastic: Elastic) -> None:
    manager = elastic.start_manager()
    manager.until_said("started")
    draws = Random("live")
    taken = [
        job for _ in range(COUNT) if (job := submit(elastic, odd_jobspec(draws), urgency=draws.choice([0, 1])))
    ]
    assert taken
    serve_a_probe(elastic, manager)
    manager.kill()
    manager = elastic.start_manager()
    manager.until_said("started")
    serve_a_probe(elastic, manager)
    assert not manager.said("job_set_aside"), manager.tail()
    print(f"{len(taken)} of {COUNT} were taken, {len(manager.said('unreadable_job'))} cannot be read")
    elastic.flux("cancel", "--all", check=False)
    assert manager.terminate(within_s=5.0) == 0, manager.tail()
