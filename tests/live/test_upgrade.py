"""A running site is taken over from the version before: nothing is lost, and no node is booted twice.

``FNM_BEFORE`` names the command ``flux-node-manager`` of that version, in an environment of its own.
"""

from __future__ import annotations

import os

import pytest

from tests.live.elastic import Elastic
from tests.live.instance import schedules_gpus
from tests.live.test_operate import drain_reason
from tests.live.witness import slot_of

LARGE = {"properties": ["large"]}  # a type of one slot
GPU = {"properties": ["gpu"]}
BEFORE = os.environ.get("FNM_BEFORE", "")

pytestmark = pytest.mark.skipif(not BEFORE, reason="FNM_BEFORE does not name a command of the version before")


def test_jobs_nodes_holds_and_history_outlive_the_upgrade(elastic: Elastic) -> None:
    before = set(elastic.witness.look())
    old = elastic.start_manager(program=BEFORE)
    old.until_said("claimed")
    runs = elastic.submit("sleep", "600", requires=LARGE)
    elastic.eventually("the job runs", lambda: elastic.jobs()[runs].began_at is not None)
    elastic.verb("hold", "large1")
    elastic.eventually("the node is held", lambda: "hold:" in (drain_reason(elastic, "large1") or ""))
    # Its node is leased, and boots while no manager is there.
    boots = elastic.submit("sleep", "0.5", gpus=int(schedules_gpus()), requires=GPU)
    elastic.eventually("a lease is on record", lambda: "gpu1" in {it.slot for it in elastic.launches()})
    assert old.terminate(within_s=20.0) == 0
    waits = elastic.submit("true", requires={"properties": ["fast"]})

    new = elastic.start_manager()
    new.until_said("claimed")

    elastic.eventually("the booting node's job has run", lambda: elastic.result(boots) == "COMPLETED")
    elastic.eventually("the waiting job has run", lambda: elastic.result(waits) == "COMPLETED")
    assert elastic.result(runs) == "", "it still runs"
    assert not {"BootNode large1", "BootNode gpu1"} & set(new.orders())
    made = [slot_of(node) for name, node in elastic.witness.look().items() if name not in before]
    assert sorted(made) == ["fast1", "gpu1", "large1"]
    # What the version before wrote is still told, and the hold goes on until it is released.
    assert "large1" in elastic.verb("events")
    assert "hold:" in (drain_reason(elastic, "large1") or "")
    elastic.verb("release", "large1")
    elastic.flux("cancel", str(runs))
    elastic.eventually("nothing is left", lambda: not elastic.what_is_left())
