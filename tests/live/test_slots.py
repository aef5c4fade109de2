"""Slots change their type while jobs run, on a real Flux."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from nodemanager.config.text.flux_toml import ConfigFile, read_slot_types
from nodemanager.core.slots import SlotsWish, TypeName
from nodemanager.flux import bindings, kvs, retype
from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.instance import schedules_gpus
from tests.live.killed_retyping import STEPS

OFFERS = (Offer("small", "0.10", "s[1-3]"), Offer("gpu", "1.00", "g1", gpus=1))
CHANGED = {"s1": "small", "s2": "small", "s3": "gpu", "g1": "gpu"}


@pytest.fixture
def site() -> Iterator[Elastic]:
    with an_elastic_site(OFFERS) as elastic:
        yield elastic


def a_running_job(site: Elastic) -> int:
    job = site.submit("sleep", "600", requires={"properties": ["small"]})
    site.eventually("the job runs", lambda: site.jobs()[job].began_at is not None)
    return job


def ends_well(site: Elastic, job: int) -> None:
    site.eventually(f"job {job} has ended well", lambda: site.result(job) == "COMPLETED")


def still_runs(site: Elastic, job: int) -> bool:
    return site.jobs()[job].result == "" and site.jobs()[job].began_at is not None


def division(site: Elastic) -> dict[str, str | None]:
    return {slot: rank.type_name for slot, rank in site.ranks().items()}


def kept_in_the_file(site: Elastic) -> dict[str, str]:
    return {
        str(slot): str(name)
        for slot, name in read_slot_types(ConfigFile.find(site.site.flux.bootstrap_dir).read()).items()
    }


def test_an_offline_slot_becomes_another_type_while_a_job_runs(site: Elastic) -> None:
    site.start_manager()
    old = a_running_job(site)

    assert site.verb("slots", "--slots", "gpu=2", "small=2").startswith("s3 is of type gpu now")

    assert still_runs(site, old)
    assert division(site) == kept_in_the_file(site) == CHANGED
    # Only with the slot that was re-typed there are two; and it serves again after its node has gone.
    for _ in range(2):
        ends_well(site, site.submit("true", nodes=2, gpus=int(schedules_gpus()), requires={"properties": ["gpu"]}))
        site.eventually(
            "the GPU nodes have gone", lambda: not site.ranks()["s3"].online and len(site.launches()) == 1
        )
    assert still_runs(site, old)


def test_a_slot_that_is_leased_is_left_alone(site: Elastic) -> None:
    site.start_manager()
    jobs = [a_running_job(site) for _ in range(3)]
    refused = site.verb("slots", "--slots", "gpu=2", "small=2", status=1)
    assert "slots_in_use" in refused
    assert all(still_runs(site, job) for job in jobs)
    assert division(site)["s3"] == "small"


def test_without_a_manager_the_verb_acts_itself_and_gives_the_name_back(site: Elastic) -> None:
    assert "s3 is of type gpu now" in site.verb("slots", "--slots", "gpu=2", "small=2")
    assert division(site) == CHANGED
    assert site.owner() is None


def test_what_was_changed_outlives_rank_0(site: Elastic) -> None:
    site.verb("slots", "--slots", "gpu=2", "small=2")
    site.stop_head()
    site.start_head()
    assert division(site) == CHANGED
    assert site.ranks()["s3"].gpus == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_manager_killed_at_a_step_is_followed_by_one_that_repairs(site: Elastic, step: str) -> None:
    site.start_manager()
    old = a_running_job(site)
    site.end_managers()
    doomed = site.start_manager(step, module="tests.live.killed_retyping")
    wish(site, "wish-1", gpu=2, small=2)
    site.eventually(f"it dies after {step}", lambda: doomed.status is not None)
    assert doomed.status == -signal.SIGKILL, doomed.tail()

    site.start_manager()
    site.eventually("the wish is answered", lambda: answered(site) == "wish-1")
    site.eventually("the slots are divided anew", lambda: division(site) == CHANGED)
    assert kept_in_the_file(site) == CHANGED
    assert still_runs(site, old)
    assert [rank.host for rank in site.ranks().values() if rank.drain_reason is not None] == []
    assert read(site, retype.MARKER_KEY) is read(site, retype.WISH_KEY) is None
    ends_well(site, site.submit("true", nodes=2, gpus=int(schedules_gpus()), requires={"properties": ["gpu"]}))


def wish(site: Elastic, id_: str, **counts: int) -> None:
    wanted = SlotsWish(id_, {TypeName(name): count for name, count in counts.items()})
    with bindings.connection(site.site.flux.uri) as handle:
        kvs.commit(handle, {retype.WISH_KEY: retype.encode_wish(wanted)}, timeout_s=10.0)


def read(site: Elastic, key: str) -> str | None:
    with bindings.connection(site.site.flux.uri) as handle:
        return kvs.read(handle, [key], timeout_s=10.0).get(key)


def answered(site: Elastic) -> str:
    text = read(site, retype.ANSWER_KEY)
    return retype.decode_answer(text).wish_id if text is not None else ""
