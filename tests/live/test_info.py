"""What users may ask the manager through Flux, and that no flood of questions keeps it from acting."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from nodemanager.core.ports import Info
from nodemanager.flux import bindings
from nodemanager.flux.claim import INFO_SERVICE, SERVICE, Claim, owner_of
from tests.live.elastic import Elastic
from tests.live.instance import LiveInstance

FLOOD = 100_000  # requests without an answer yet
CHECK_WITHIN_S = 20.0  # as the port has it
# A document as of a large fleet.
STATUS = json.dumps({"acts": True, "nodes": {"by_slot": {f"slot{number}": "idle" for number in range(500)}}})


@pytest.fixture
def claim(instance: LiveInstance) -> Iterator[Claim]:
    def explain(job_id: str, userid: int | None) -> str:
        if job_id != "f2":
            raise LookupError(f"you have no active job {job_id}")
        return json.dumps({"subject": job_id, "userid": userid})

    claim = Claim(instance.uri, timeout_s=CHECK_WITHIN_S, info=Info(lambda: STATUS, explain))
    claim.take()
    yield claim
    claim.release()


def test_what_is_asked_is_answered_and_nothing_that_is_asked_ends_the_service(
    instance: LiveInstance, claim: Claim
) -> None:
    del claim
    with bindings.connection(instance.uri) as handle:

        def ask(method: str, payload: object) -> object:
            return bindings.ask(handle, f"{INFO_SERVICE}.{method}", payload, timeout_s=CHECK_WITHIN_S)

        assert ask("explain", {"id": "f2"}) == {"subject": "f2", "userid": None}, "the owner asks"
        refused: tuple[object, ...] = (
            None,
            {},
            {"id": 5},
            {"id": "x" * 10_000},
            [],
            "text",
            '{"id":',
            "[" * 100_000,
        )
        for payload in refused:
            with pytest.raises(bindings.CallFailed):
                ask("explain", payload)
        with pytest.raises(bindings.CallFailed, match="explain"):
            ask("explain", {"id": "f3"})
        assert ask("status", None) == json.loads(STATUS)


def test_while_a_flood_of_questions_waits_the_name_is_checked_as_fast_as_ever(
    instance: LiveInstance, claim: Claim
) -> None:
    with bindings.connection(instance.uri) as asker, bindings.connection(instance.uri) as handle:
        topics = (f"{INFO_SERVICE}.status", f"{SERVICE}.nothing")
        pending = [asker.rpc(topics[number % 2], None, bindings.LEADER) for number in range(FLOOD)]
        for _ in range(20):
            owner = owner_of(handle, timeout_s=CHECK_WITHIN_S)
            assert owner is not None
            assert claim.is_ours(owner)
        answered = bindings.ask(handle, f"{INFO_SERVICE}.status", timeout_s=120.0)
        assert answered == json.loads(STATUS)
        for future in pending:
            future.__exit__(None, None, None)


def test_the_manager_acts_while_a_flood_of_questions_waits(elastic: Elastic) -> None:
    manager = elastic.start_manager()
    manager.until_said("claimed")
    with bindings.connection(elastic.site.flux.uri) as asker:
        pending = [asker.rpc(f"{INFO_SERVICE}.status", None, bindings.LEADER) for _ in range(20_000)]
        job = elastic.submit("true", requires={"properties": ["large"]})
        elastic.eventually("the job has run", lambda: elastic.result(job) == "COMPLETED")
        for future in pending:
            future.__exit__(None, None, None)
    assert not manager.said("not_the_actor")
