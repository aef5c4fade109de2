"""``check --online``: each line, and the exit status."""

from __future__ import annotations

import socket
from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.cli import main
from nodemanager.cli.online import checks
from nodemanager.cli.online.checks import compare_clocks
from nodemanager.cli.prices import PriceComparison, PriceMatch
from nodemanager.cloud.common.findings import Verdict
from nodemanager.cloud.local.provider import Local
from nodemanager.config.load import load_site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market, TypeName
from tests.paths import CONFIG

LOCAL = CONFIG / "local.ini"


class Failing:
    """A cloud that refuses to list."""

    def __init__(self, kind: FailureKind) -> None:
        self._kind = kind

    def list_nodes(self) -> tuple[()]:
        raise CloudError(self._kind, "the provider's words")


@pytest.mark.parametrize("kind", FailureKind)
def test_an_account_that_refuses_is_a_fault_with_a_remedy(kind: FailureKind) -> None:
    found = checks.check_account(lambda: Failing(kind))  # type: ignore[arg-type, return-value]
    assert found.verdict is Verdict.FAULT
    assert found.text == "the provider's words"
    assert found.remedy


def test_the_remedy_names_the_section_of_its_cloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.ini"
    text = LOCAL.read_text(encoding="utf-8").replace("../state", str(tmp_path)).replace("[Cloud]", "[Cloud near]")
    site.write_text(text, encoding="utf-8")
    monkeypatch.setattr(Local, "ports", lambda *_: lambda: Failing(FailureKind.CREDENTIALS))
    assert main.main(["check", "--online", "--config", str(site)]) == 1
    assert "Correct [Cloud near Credentials], the permissions" in capsys.readouterr().out


def test_wrong_credentials_are_told_apart_from_an_account_that_is_away() -> None:
    texts = {kind: checks.CLOUD_REMEDIES.get(kind, checks.CLOUD_REMEDY) for kind in FailureKind}
    assert texts[FailureKind.CREDENTIALS] != texts[FailureKind.TRANSIENT]


def priced(match: PriceMatch) -> PriceComparison:
    return PriceComparison(TypeName("a"), "big", "here", Market.ON_DEMAND, Decimal(2), Decimal(1), match)


def test_a_price_that_differs_from_the_list_is_a_warning() -> None:
    [found] = checks.check_prices([priced(PriceMatch.DEARER), priced(PriceMatch.SAME)])
    assert (found.verdict, found.subject) == (Verdict.WARNING, "price of a")
    [good] = checks.check_prices([priced(PriceMatch.SAME), priced(PriceMatch.MISSING)])
    assert (good.verdict, good.text) == (Verdict.OK, "1 of 2 agree with the list; it lacks the others")


def test_the_join_service_is_reached_or_its_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert checks.check_address("join service", address, checks.JOIN_REMEDY).verdict is Verdict.OK
    closed = checks.check_address("join service", address, checks.JOIN_REMEDY)
    assert closed.verdict is Verdict.FAULT
    assert str(closed).startswith(f"fault    join service: {address}: ")
    assert "join-service" in closed.remedy


def test_an_instance_that_is_not_there_is_a_fault_and_the_exit_status_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text(encoding="utf-8").replace("../state", str(tmp_path)), encoding="utf-8")
    assert main.main(["check", "--online", "--config", str(site)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "ok       account: it answers; 0 instances of this cluster listed" in lines
    assert any(line.startswith("fault    instance: ") for line in lines)


def test_a_simulated_site_has_nothing_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", "--online", "--config", str(CONFIG / "embedded.ini")]) == 0
    assert capsys.readouterr().out.count("simulated, so there is none to ask") == 2


@pytest.mark.parametrize(
    ("before_at", "their_at", "after_at", "verdict", "words"),
    [
        (1000.2, 1000.0, 1000.4, Verdict.OK, "agrees"),
        (1000.9, 1000.0, 1029.0, Verdict.OK, "agrees"),  # a slow reply says nothing about the clock
        (1000.0, 1100.0, 1000.5, Verdict.WARNING, "100 s behind"),
        (1100.0, 1000.0, 1100.5, Verdict.WARNING, "99 s ahead of"),
        (1000.0, 2000.0, 1000.5, Verdict.FAULT, "behind"),
    ],
)
def test_the_clock_is_compared_within_what_the_reply_can_tell(
    before_at: float, their_at: float, after_at: float, verdict: Verdict, words: str
) -> None:
    found = compare_clocks(before_at, their_at, after_at)
    assert found.verdict is verdict
    assert words in found.text
    assert bool(found.remedy) is (verdict is not Verdict.OK)


def test_slots_without_a_rank_are_named() -> None:
    site = load_site(LOCAL)
    whole = {"head", *(slot for node_type in site.node_types for slot in node_type.slots)}
    assert checks.check_slots(site, whole).verdict is Verdict.OK
    found = checks.check_slots(site, whole - {"cloud3", "cloud4"})
    assert (found.verdict, found.text) == (
        Verdict.FAULT,
        "the instance has no rank for 2 of the 6: cloud[3-4]",
    )


@pytest.mark.parametrize(
    ("policy", "queue_policy", "found"),
    [
        ("low", "easy", [("scheduler", Verdict.OK, "Fluxion, match policy low: nodes are planned by")]),
        ("locality", "easy", [("scheduler", Verdict.WARNING, "Fluxion, match policy locality: this match policy")]),
        ("lonodex", "easy", [("scheduler", Verdict.WARNING, "Fluxion, match policy lonodex: jobs take whole")]),
        (
            "first",
            "fcfs",
            [
                ("scheduler", Verdict.OK, "Fluxion, match policy first"),
                ("queues", Verdict.WARNING, "jobs cannot wait for nodes in default"),
            ],
        ),
    ],
)
def test_with_fluxion_its_match_policy_and_its_queues_are_looked_at(
    policy: str, queue_policy: str, found: list[tuple[str, Verdict, str]]
) -> None:
    replies: dict[str, object] = {
        "module.list": {"mods": [{"name": "sched-fluxion-qmanager"}]},
        "sched-fluxion-resource.params": {"params": {"policy": policy}},
        "config.get": {"sched-fluxion-qmanager": {"queue-policy": queue_policy}},
    }
    findings = [*checks.check_scheduler(replies.__getitem__)]
    assert [(it.subject, it.verdict) for it in findings] == [(subject, verdict) for subject, verdict, _ in found]
    assert all(it.text.startswith(text) for it, (_, _, text) in zip(findings, found, strict=True))


def test_with_sched_simple_nothing_is_said_of_a_scheduler() -> None:
    assert not [*checks.check_scheduler(lambda _topic: {"mods": [{"name": "sched-simple"}]})]
