"""What is learned of the cloud from a history, and what the simulated cloud then does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.cli.main import main
from nodemanager.config.load import load_site
from nodemanager.core.nodes import CloudState, FailureKind, LaunchId, ProviderId
from nodemanager.core.slots import TypeName
from nodemanager.history.node_lives import NodeLife
from nodemanager.whatif.cloud.cloud import CloudConditions, CloudDraws, ReplayMachine
from nodemanager.whatif.cloud.distributions import QUANTILES_MAX, Distribution, TypeBehaviour
from nodemanager.whatif.cloud.learned import LearnedCloud, Observed, learn, learn_from
from nodemanager.whatif.cloud.parameters import SAMPLES_MIN, cloud_conditions
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.study.variants import with_key
from nodemanager.whatif.workload.workload import WorkloadError
from tests.whatif.cloud.journals import a_journal, a_life
from tests.whatif.sites import a_job, a_site, a_workload, unseen

NONE_FOR_A_WHILE = {"boot_s": None, "up_s": 1.0, "outcome": "create_capacity"}
THIN = TypeName("thin")
DURATIONS = st.floats(0.0, 1e5, allow_nan=False)


def _seen(*lives: NodeLife) -> Observed:
    return learn(lives, ())[THIN]


def _learned(*lives: NodeLife, stops: Sequence[tuple[str, float]] = ()) -> LearnedCloud:
    return LearnedCloud("journal.sqlite", learn(lives, stops))


# --- how durations are spread -----------------------------------------------------------------------------


@given(st.lists(DURATIONS, min_size=1, max_size=50), st.lists(st.floats(0.0, 1.0), min_size=2, max_size=10))
def test_a_draw_is_one_of_those_seen_or_between_two(seen: list[float], shares: list[float]) -> None:
    spread = Distribution.from_samples(seen)
    drawn = [spread.quantile(share) for share in sorted(shares)]
    assert drawn == sorted(drawn)
    assert all(min(seen) <= it <= max(seen) for it in drawn)
    assert (spread.quantile(0.0), spread.quantile(1.0)) == (min(seen), max(seen))


def test_of_very_many_the_spread_is_kept_and_not_all_of_them() -> None:
    spread = Distribution.from_samples(range(100_000))
    assert len(spread.quantiles) == QUANTILES_MAX
    assert (spread.quantile(0.0), spread.quantile(1.0)) == (0, 99_999)
    assert spread.quantile(0.5) == pytest.approx(50_000, rel=0.01)


# --- what lives tell --------------------------------------------------------------------------------------

FATES = {
    "joins": lambda number, at_s: a_life(number, at_s=at_s, boot_s=60.0 + number % 7),
    "fails": lambda number, at_s: a_life(number, at_s=at_s, boot_s=None, up_s=900.0, outcome="never_joined"),
    "lost": lambda number, at_s: a_life(number, at_s=at_s, why="reclaimed"),
    "ends": lambda number, at_s: a_life(number, at_s=at_s, why="gone"),
    "found": lambda number, at_s: a_life(number, at_s=at_s, why="gone", found=True),
    "stands": lambda number, at_s: a_life(number, at_s=at_s, up_s=None, why=""),
    "none": lambda number, at_s: a_life(number, at_s=at_s, boot_s=None, up_s=1.0, outcome="create_capacity"),
    "throttled": lambda number, at_s: a_life(number, at_s=at_s, boot_s=None, up_s=1.0, outcome="create_throttled"),
    "given up": lambda number, at_s: a_life(
        number, at_s=at_s, boot_s=None, up_s=9.0, outcome="retired_by_operator"
    ),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(FATES)), st.integers(0, 500)), max_size=60))
def test_every_life_is_counted_as_what_it_was(story: list[tuple[str, int]]) -> None:
    at_s, lives = 0.0, []
    for number, (fate, after_s) in enumerate(story):
        at_s += after_s
        lives.append(FATES[fate](number, at_s))
    fates = [fate for fate, _ in story]
    seen = learn(lives, ()).get(THIN, Observed())
    assert len(seen.boots_s) == sum(fate in ("joins", "lost", "ends", "stands") for fate in fates)
    assert seen.failing_s == [900.0] * fates.count("fails")
    assert seen.lost == fates.count("lost") + fates.count("ends")
    assert seen.nodes_up == sum(fate in ("joins", "lost", "ends", "found") for fate in fates)
    assert seen.up_s == pytest.approx(3600.0 * seen.nodes_up)
    assert seen.other_refusals["throttled"] == fates.count("throttled")
    assert len(seen.shortages_s) <= seen.attempts <= len(lives)
    assert all(0 <= lasting_s <= at_s for lasting_s in seen.shortages_s)
    assert bool(seen.shortages_s) == ("none" in fates)


def test_creates_that_follow_one_another_ask_once_and_a_shortage_lasts_till_one_is_served() -> None:
    none = NONE_FOR_A_WHILE
    seen = _seen(
        *(a_life(number, at_s=number * 0.1) for number in range(20)),
        *(a_life(number, at_s=1000.0 + number * 0.1, **none) for number in range(20, 40)),  # type: ignore[arg-type]
        a_life(50, at_s=1120.0, **none),  # type: ignore[arg-type]
        a_life(51, at_s=1362.0),
        a_life(52, at_s=2000.0),
    )
    assert seen.attempts == 4
    assert seen.shortages_s == [pytest.approx(360.0)]


def test_a_quota_is_how_many_stood_until_more_stand() -> None:
    def refused(number: int, at_s: float) -> NodeLife:
        return a_life(number, at_s=at_s, boot_s=None, up_s=1.0, outcome="create_quota")

    standing = [a_life(number, at_s=float(number), up_s=None) for number in range(4)]
    gone = a_life(4, at_s=5.0, boot_s=10.0, up_s=10.0)
    assert _seen(*standing, gone, refused(5, 100.0)).nodes_max == 4
    more = [a_life(number, at_s=200.0 + number, up_s=None) for number in (6, 7)]
    assert _seen(*standing, gone, refused(5, 100.0), *more).nodes_max is None


# --- which figures are gone by ----------------------------------------------------------------------------


def test_what_the_site_says_comes_before_what_was_learned_and_that_before_the_defaults(tmp_path: Path) -> None:
    lives = [a_life(number, at_s=number * 100.0, boot_s=200.0 + number) for number in range(SAMPLES_MIN)]
    learned = _learned(*lives)
    site = a_site(tmp_path, simulation="boot_failures = 0.25")
    conditions, figures = cloud_conditions(site, learned)
    habit = conditions.behaviours[THIN]
    assert (habit.boot_s.quantile(0.0), habit.boot_s.quantile(1.0)) == (200.0, 209.0)
    assert habit.p_boot_failure == 0.25
    assert habit.stop_s.quantile(0.5) == pytest.approx(20.0)
    sources = {figure.what: figure.source for figure in figures}
    assert sources["boot time"] == "10 boots in journal.sqlite"
    assert sources["boots that fail"] == "[Simulation] boot_failures"
    assert "default" in sources["stop time"]


def test_a_key_that_is_swept_leaves_the_others_learned(tmp_path: Path) -> None:
    learned = _learned(*(a_life(number, at_s=number * 100.0) for number in range(SAMPLES_MIN)))
    swept = with_key(a_site(tmp_path), "boot_failures", "0.5")
    habit = cloud_conditions(swept, learned)[0].behaviours[THIN]
    assert (habit.p_boot_failure, habit.boot_s.quantile(0.5)) == (0.5, 80.0)


def test_a_type_of_which_too_little_was_seen_goes_by_those_of_its_market(tmp_path: Path) -> None:
    text = a_site(tmp_path).path.read_text()
    node = text[text.index("[Node thin]") :]
    thick = node.replace("thin", "thick").replace("on-demand", "{market}")
    lives = [a_life(number, at_s=number * 100.0, boot_s=300.0) for number in range(SAMPLES_MIN)]
    few = [a_life(100 + number, at_s=number * 100.0, node_type="thick") for number in range(2)]
    medians = {}
    for market in ("on-demand", "spot"):
        site = a_site(tmp_path)
        site.path.write_text(text + thick.format(market=market))
        site = load_site(site.path, {})
        conditions, _ = cloud_conditions(site, _learned(*lives, *few))
        medians[market] = conditions.behaviours[TypeName("thick")].boot_s.quantile(0.5)
    assert medians == {"on-demand": pytest.approx(300.0), "spot": pytest.approx(90.0)}


# --- what the cloud then does -----------------------------------------------------------------------------


def _habit(**changes: object) -> TypeBehaviour:
    return TypeBehaviour(
        **{  # type: ignore[arg-type]
            "boot_s": Distribution((60.0,)),
            "stop_s": Distribution((5.0,)),
            "failing_s": Distribution((900.0,)),
            **changes,
        }
    )


def test_as_many_boots_fail_as_were_seen_to_and_take_as_long(tmp_path: Path) -> None:
    (node_type,) = a_site(tmp_path).node_types
    chance = CloudDraws(CloudConditions({THIN: _habit(p_boot_failure=0.3)}), seed=1)
    boots = [chance.boot(node_type) for _ in range(4000)]
    assert sum(fails for _, fails in boots) / len(boots) == pytest.approx(0.3, abs=0.03)
    assert {(took_s, fails) for took_s, fails in boots} == {(60.0, False), (900.0, True)}


def test_nodes_are_lost_as_often_as_was_seen(tmp_path: Path) -> None:
    (node_type,) = a_site(tmp_path).node_types
    chance = CloudDraws(CloudConditions({THIN: _habit(lost_per_hour=0.5)}), seed=1)
    stays_s = [chance.reclaimed_after_s(node_type) for _ in range(4000)]
    assert sum(stays_s) / len(stays_s) == pytest.approx(7200.0, rel=0.05)


def test_a_type_is_short_for_as_long_as_was_seen_and_to_be_had_then(tmp_path: Path) -> None:
    (node_type,) = a_site(tmp_path).node_types
    chance = CloudDraws(CloudConditions({THIN: _habit(p_shortage=1.0, shortage_s=Distribution((300.0,)))}), seed=1)
    assert chance.refusal_kind(node_type, (), 0.0) is FailureKind.CAPACITY
    assert chance.refusal_kind(node_type, (), 299.0) is FailureKind.CAPACITY
    asked = CloudDraws(CloudConditions({THIN: _habit(p_shortage=0.5, shortage_s=Distribution((300.0,)))}), seed=1)
    outcomes = [asked.refusal_kind(node_type, (), ask * 1000.0) is not None for ask in range(2000)]
    assert sum(outcomes) / len(outcomes) == pytest.approx(0.5, abs=0.05)


def test_a_learned_quota_is_met_as_a_quota(tmp_path: Path) -> None:
    (node_type,) = a_site(tmp_path).node_types
    standing = [
        ReplayMachine(ProviderId(str(rank)), LaunchId(""), node_type.slots[rank], rank, node_type, 0.0, state=state)
        for rank, state in enumerate((CloudState.PENDING, CloudState.RUNNING))
    ]
    chance = CloudDraws(CloudConditions({THIN: _habit(nodes_max=2)}), seed=1)
    assert chance.refusal_kind(node_type, standing, 0.0) is FailureKind.QUOTA
    assert chance.refusal_kind(node_type, standing[:1], 0.0) is None


# --- the verb ---------------------------------------------------------------------------------------------


def _simulate(site: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    workload = "poisson:jobs=40,procs=3,run=4m,every=4m"
    assert main(["simulate", workload, "--config", str(site), "--json", "--baselines", "none", *arguments]) == 0
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    del told["main"]["took_s"]  # type: ignore[attr-defined]
    return told


def test_a_run_goes_by_the_journal_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draws = Random(1)
    lives = [
        a_life(number, at_s=number * 300.0, boot_s=draws.uniform(500.0, 700.0))
        if number % 4
        else a_life(number, at_s=number * 300.0, boot_s=None, up_s=120.0, outcome="failed_at_provider")
        for number in range(400)
    ]
    path = a_journal(tmp_path / "journal.sqlite", lives, [("thin", 40.0)] * 20)
    site = a_site(tmp_path).path
    plain = _simulate(site, capsys)
    learned = _simulate(site, capsys, "--learn-from", str(path))
    again = _simulate(site, capsys, "--learn-from", str(path))
    other = _simulate(site, capsys, "--learn-from", str(path), "--seed", "9")
    assert learned == again
    assert learned != other
    said = {figure["what"]: (figure["value"], figure["source"]) for figure in learned["cloud"]}  # type: ignore[attr-defined]
    assert said["boots that fail"] == ("25.00%, given up after 120 s", "100 of 400 boots in journal.sqlite")
    assert said["stop time"] == ("40 s", "20 stops in journal.sqlite")
    assert learned["main"]["boot_failures"] > 0 == plain["main"]["boot_failures"]  # type: ignore[index]
    assert learned["main"]["wait_mean_s"] > plain["main"]["wait_mean_s"] + 100  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--learn-from", "nowhere.sqlite"], "--learn-from: nowhere.sqlite: unable to open database file"),
        (["--learn-from", "{empty}"], "contains no nodes, so nothing can be learned"),
        (["--learn-from", "{empty}", "--actors"], "leave out --learn-from"),
    ],
)
def test_what_nothing_can_be_learned_from_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    empty = a_journal(tmp_path / "empty.sqlite", ())
    given = [it.format(empty=empty) for it in arguments]
    assert main(["simulate", "poisson:jobs=3", "--config", str(a_site(tmp_path).path), *given]) == 1
    assert why in capsys.readouterr().err


def test_the_latest_hundred_days_are_learned_from(tmp_path: Path) -> None:
    old = [a_life(number, boot_s=1.0) for number in range(5)]
    new = [a_life(10 + number, at_s=101 * 86_400.0 + number, boot_s=90.0) for number in range(5)]
    learned = learn_from(a_journal(tmp_path / "journal.sqlite", [*old, *new]))
    assert learned.of_type[THIN].boots_s == [90.0] * 5


def test_a_file_that_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "text.sqlite"
    path.write_text("no database")
    with pytest.raises(WorkloadError, match=r"text\.sqlite: .*not a journal of the service"):
        learn_from(path)


def test_jobs_wait_for_a_learned_quota_and_a_learned_shortage_and_are_served(tmp_path: Path) -> None:
    jobs = [a_job(number * 10.0, slots=4, run_s=1200.0) for number in range(3)]
    quota = [a_life(number, up_s=None) for number in range(2)]
    met = a_life(2, at_s=5.0, boot_s=None, up_s=1.0, outcome="create_quota")
    within = Runner(a_workload(jobs), unseen, learned=_learned(*quota, met)).run_production("q", a_site(tmp_path))
    assert (within.jobs_served, within.peak_nodes) == (3, 2)
    assert within.creates_refused > 0
    none = [
        a_life(number, at_s=number * 100.0, boot_s=None, up_s=1.0, outcome="create_capacity")
        for number in range(20)
    ]
    served = [a_life(100 + number, at_s=2000.0 + number * 100.0) for number in range(10)]
    short = Runner(a_workload(jobs), unseen, learned=_learned(*none, *served)).run_production("s", a_site(tmp_path))
    assert short.jobs_served == 3


def test_a_baseline_that_was_refused_looks_again(tmp_path: Path) -> None:
    lives = [
        a_life(number, at_s=number * 600.0, **({} if number % 2 else NONE_FOR_A_WHILE))  # type: ignore[arg-type]
        for number in range(40)
    ]
    runner = Runner(a_workload([a_job(0.0, slots=4, run_s=900.0)]), unseen, learned=_learned(*lives))
    refused = 0
    for name in ("fixed", "idle-timeout", "arvados"):
        for seed in range(4):
            site = a_site(tmp_path)
            site = replace(site, simulation=site.simulation.model_copy(update={"seed": seed}))
            outcome, _ = runner.run_baseline(name, site)
            assert outcome.jobs_served == 1, name
            refused += outcome.creates_refused
    assert refused > 0
