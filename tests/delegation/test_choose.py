"""Which peer gets a job."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.reason_codes import Code
from nodemanager.delegation.choose import Candidate, Needs, PeerLoad, choose
from nodemanager.delegation.jobs import PeerName

NOW_AT = 1000.0
IDLE = PeerLoad(NOW_AT, nodes=4, nodes_up=4, nodes_free=4, cores=16, cores_free=16)
BUSY = replace(IDLE, nodes_free=0, cores_free=0, waiting=3, last_start_at=NOW_AT + 300)
NEEDS = Needs(cores=4)


def a_candidate(name: str, load: PeerLoad | None = IDLE, price: str = "0", **values: object) -> Candidate:
    return replace(Candidate(PeerName(name), load, price_per_core_hour=Decimal(price)), **values)  # type: ignore[arg-type]


def chosen(needs: Needs, *candidates: Candidate) -> str | None:
    return choose(needs, candidates, NOW_AT).peer


def test_the_cheapest_of_those_that_start_it_at_once() -> None:
    assert chosen(NEEDS, a_candidate("b", price="2"), a_candidate("c", price="1")) == "c"


def test_an_idle_peer_before_a_cheap_busy_one() -> None:
    assert chosen(NEEDS, a_candidate("b", price="2"), a_candidate("c", BUSY, price="1")) == "b"


def test_a_patient_job_waits_for_the_cheap_one() -> None:
    patient = replace(NEEDS, patience_s=400.0)
    assert chosen(patient, a_candidate("b", price="2"), a_candidate("c", BUSY, price="1")) == "c"


def test_an_unknown_wait_is_the_longest() -> None:
    silent = replace(BUSY, last_start_at=None)
    assert chosen(NEEDS, a_candidate("b", silent), a_candidate("c", BUSY)) == "c"
    assert chosen(NEEDS, a_candidate("b", silent)) == "b", "and better than none"


def test_jobs_that_were_just_sent_take_its_free_cores() -> None:
    full = a_candidate("b", pending=4, pending_cores=16)
    assert chosen(NEEDS, full, a_candidate("c")) == "c"


def test_equal_peers_keep_the_order_of_the_site() -> None:
    assert chosen(NEEDS, a_candidate("c"), a_candidate("b")) == "c"


def test_what_rules_a_peer_out_for_now() -> None:
    cases = {
        "connection refused": a_candidate("b", why_unreachable="connection refused"),
        "not asked yet": a_candidate("b", None),
        "asked whether the job fits": a_candidate("b", misfit=None),
        "has 5 of our jobs, and jobs_max is 5": a_candidate("b", jobs=5, jobs_max=5),
        "queue gpu takes no jobs": a_candidate("b", replace(IDLE, queues={"gpu": False})),
    }
    needs = replace(NEEDS, queue="gpu")
    for against, candidate in cases.items():
        choice = choose(needs, [candidate], NOW_AT)
        assert (choice.peer, choice.final, choice.reason.code) == (None, False, Code.NO_PEER_READY)
        assert choice.reason.figures["detail"] == f"b: {against}"


def test_what_rules_a_peer_out_for_ever() -> None:
    cases = {
        "refused: no": a_candidate("b", refused="no"),
        "unsatisfiable": a_candidate("b", misfit="unsatisfiable"),
        "queue gpu does not exist": a_candidate("b", replace(IDLE, queues={"batch": True})),
    }
    for against, candidate in cases.items():
        choice = choose(replace(NEEDS, queue="gpu"), [candidate], NOW_AT)
        assert (choice.peer, choice.final, choice.reason.code) == (None, True, Code.DELEGATION_REFUSED)
        assert choice.reason.figures["detail"] == f"b: {against}"


def test_a_peer_without_queues_takes_jobs_of_any_queue() -> None:
    assert chosen(replace(NEEDS, queue="gpu"), a_candidate("b")) == "b"


def test_the_reason_names_the_options_not_taken_with_their_figures() -> None:
    choice = choose(NEEDS, [a_candidate("b", price="0.5"), a_candidate("c", BUSY, price="1")], NOW_AT)
    assert choice.reason.figures == {
        "peer": "b",
        "wait": "0 s",
        "price_per_hour": Decimal("2.0"),
        "others": "c: wait 300 s, 4 an hour",
    }


loads = st.builds(
    PeerLoad,
    seen_at=st.just(NOW_AT),
    nodes_free=st.integers(0, 4),
    cores_free=st.integers(0, 16),
    waiting=st.integers(0, 3),
    last_start_at=st.none() | st.floats(NOW_AT - 10, NOW_AT + 1000),
)
candidates = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from("bcde").map(PeerName),
        load=st.none() | loads,
        why_unreachable=st.sampled_from(["", "away"]),
        misfit=st.sampled_from(["", "too large", None]),
        jobs=st.integers(0, 3),
        jobs_max=st.integers(1, 3),
        price_per_core_hour=st.decimals(0, 5, places=1),
    ),
    max_size=4,
    unique_by=lambda it: it.name,
)


@given(candidates, st.floats(0, 2000))
def test_no_suitable_option_is_better_than_the_chosen_one(found: list[Candidate], patience_s: float) -> None:
    choice = choose(replace(NEEDS, patience_s=patience_s), found, NOW_AT)
    suitable = [option for option in choice.options if not option.against]
    if choice.peer is None:
        assert not suitable
        return
    (taken,) = [option for option in suitable if option.name == choice.peer]
    if any(option.wait_s <= patience_s for option in suitable):
        assert taken.wait_s <= patience_s
        assert taken.price_per_hour == min(it.price_per_hour for it in suitable if it.wait_s <= patience_s)
    else:
        assert taken.wait_s == min(it.wait_s for it in suitable)
