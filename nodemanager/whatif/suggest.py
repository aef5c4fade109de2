"""The verb ``suggest``: the settings that would have saved most, by the site's own history."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodemanager.config.site import Site
from nodemanager.config.text.edit import diff_of_site
from nodemanager.core.notation import NotationError, format_fsd, parse_fsd
from nodemanager.core.reason_text import format_total
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.service import logs
from nodemanager.whatif.cloud.learned import LearnedCloud, learn_from
from nodemanager.whatif.command import EXIT_FAILED, EXIT_OK, sigterm_raises
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.report.findings import format_short_span
from nodemanager.whatif.report.terminal import progress_bar
from nodemanager.whatif.study.run_pool import PolicyRun, execute_all
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.study.suggestion import Advice, Figures, Runs, advise
from nodemanager.whatif.workload.from_history import open_service_history
from nodemanager.whatif.workload.workload import Workload, WorkloadError

JOBS_MIN = 100  # fewer say little about the jobs to come
JOBS_MAX = 5000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``suggest``."""
    parser.add_argument(
        "--since", type=_span, default="30d", metavar="SPAN", help="replay the jobs of this time (default: 30d)"
    )
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=JOBS_MAX,
        metavar="N",
        help=f"replay at most the latest N of them (default: {JOBS_MAX})",
    )
    parser.add_argument(
        "--longer-wait",
        type=_span,
        default="30s",
        metavar="SPAN",
        help="accept settings with which the mean wait is this much longer (default: 30s)",
    )
    parser.add_argument(
        "--processes",
        type=_positive,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="replay N settings at once; default: the number of processors",
    )


def suggest(site: Site, chosen: argparse.Namespace) -> int:
    """Replay the site's history with other settings, and print those that save most. Return the exit status."""
    logs.configure(logging.CRITICAL)
    try:
        with sigterm_raises():
            workload = _open_history(site, chosen)
            advice = advise(site, _Replays(workload, _learn(site), chosen.processes), chosen.longer_wait)
            diff = diff_of_site(site.path, [it.change for it in advice.suggested])
    except (WorkloadError, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    if chosen.json:
        print(json.dumps(as_json(workload, advice, diff), indent=1))
    elif advice.suggested:
        _print_advice(workload, advice)
        print(diff, end="")
    else:
        print(_nothing_to_suggest(workload, advice, chosen.longer_wait), file=sys.stderr)
    return EXIT_OK


def as_json(workload: Workload, advice: Advice, diff: str) -> Mapping[str, Any]:
    """Return the advice as JSON values. Times are in seconds, money is in the site's currency."""
    return {
        "since_at": workload.start_at,
        "jobs": advice.before.outcomes[0].jobs,
        "tried": advice.tried,
        "noise": advice.noise,
        "before": _figures(advice.before),
        "suggested": [
            {
                "section": it.change.section,
                "key": it.change.key,
                "value": it.change.value,
                "alone": _figures(it.alone),
                "together": _figures(it.together),
            }
            for it in advice.suggested
        ],
        "diff": diff,
    }


def _figures(figures: Figures) -> Mapping[str, float]:
    return {"cost": figures.cost, "wait_mean_s": figures.wait_mean_s, "wait_p95_s": figures.wait_p95_s}


class _Replays:
    """Replays the history under other settings, several at once."""

    def __init__(self, workload: Workload, learned: LearnedCloud | None, processes: int) -> None:
        self._workload = workload
        self._learned = learned
        self._processes = processes

    def __call__(self, runs: Runs) -> Sequence[Outcome]:
        outcomes = []
        with progress_bar(Console(stderr=True), self._workload.jobs_about) as shown:
            runner = Runner(self._workload, shown, learned=self._learned)
            asked = [PolicyRun(name, site) for name, site in runs]
            with closing(execute_all(runner, asked, self._processes)) as results:
                for result in results:
                    shown.done(result.outcome)
                    outcomes.append(result.outcome)
        return outcomes


def _open_history(site: Site, chosen: argparse.Namespace) -> Workload:
    path = site.state_dir / HISTORY_FILE
    workload = open_service_history(path, time.time() - chosen.since, chosen.jobs)
    if (workload.jobs_about or 0) < JOBS_MIN:
        raise WorkloadError(
            f"{path}: only {workload.jobs_about} jobs were submitted in the last {format_fsd(chosen.since)} and "
            f"have ended. A suggestion needs {JOBS_MIN}: give a longer --since, or ask again later"
        )
    return workload


def _learn(site: Site) -> LearnedCloud | None:
    """Learn how the site's nodes behave. A history without nodes teaches nothing: [Simulation] has its defaults."""
    try:
        return learn_from(site.state_dir / HISTORY_FILE)
    except WorkloadError:
        return None


def _print_advice(workload: Workload, advice: Advice) -> None:
    console = Console(markup=False, emoji=False, soft_wrap=True)
    before = advice.before
    console.print(
        f"{_jobs_text(workload, before)}, replayed with {advice.tried} other settings. "
        f"Savings below {format_total(advice.noise)} are noise and not shown."
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("setting", "cost", "saved", "mean wait", "95 %"):
        table.add_column(title, no_wrap=True, justify="left" if title == "setting" else "right")
    _add_row(table, "as the site is", before, before)
    for it in advice.suggested:
        _add_row(table, str(it.change), it.alone, before)
    if len(advice.suggested) > 1:
        _add_row(table, "all of these", advice.suggested[-1].together, before)
    console.print(table)


def _add_row(table: Table, name: str, figures: Figures, before: Figures) -> None:
    saved = 1 - figures.cost / before.cost if before.cost else 0.0
    cells = (
        name,
        format_total(figures.cost),
        f"{saved:.1%}" if figures is not before else "",
        format_short_span(figures.wait_mean_s),
        format_short_span(figures.wait_p95_s),
    )
    table.add_row(*map(Text, cells))


def _nothing_to_suggest(workload: Workload, advice: Advice, longer_wait_s: float) -> str:
    return (
        f"Nothing to suggest. {_jobs_text(workload, advice.before)}: none of {advice.tried} other settings "
        f"saves more than {format_total(advice.noise)} of {format_total(advice.before.cost)}, serves as many jobs, "
        f"and lets them wait at most {format_fsd(longer_wait_s)} longer on the mean"
    )


def _jobs_text(workload: Workload, before: Figures) -> str:
    return f"{before.outcomes[0].jobs:,} jobs since {datetime.fromtimestamp(workload.start_at, UTC):%Y-%m-%d}"


def _span(text: str) -> float:
    try:
        return parse_fsd(text)
    except NotationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}": give a whole number of 1 or more')
    return int(text)


def _jobs(text: str) -> int:
    if (number := _positive(text)) < JOBS_MIN:
        raise argparse.ArgumentTypeError(f'"{text}": a suggestion needs at least {JOBS_MIN} jobs')
    return number
