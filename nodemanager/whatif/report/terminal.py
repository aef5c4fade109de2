"""Prints a study on the terminal: the headline, a table of the runs, the oddities, and progress bars meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nodemanager.core.reason_text import format_total
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.report.findings import details, format_short_span, headline, shorten
from nodemanager.whatif.study.study import TELL_EVERY, Study

WIDTH_MAX = 10_000  # letters: the width of an output that is not a terminal
NAME_MIN = 12
GAP = 2  # between two columns


class ProgressBar:
    """A progress bar for each run. Without a terminal it shows nothing."""

    def __init__(self, progress: Progress, jobs_about: int | None) -> None:
        self._progress = progress
        self._jobs_about = jobs_about
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, run: str, jobs: int) -> None:
        if run not in self._tasks:
            self._tasks[run] = self._progress.add_task(run, total=self._jobs_about)
        if jobs % TELL_EVERY == 0 or jobs == self._jobs_about:
            self._progress.update(self._tasks[run], completed=jobs)

    def done(self, outcome: Outcome) -> None:
        if outcome.policy in self._tasks:
            self._progress.update(self._tasks[outcome.policy], completed=outcome.jobs, total=outcome.jobs)


@contextmanager
def progress_bar(console: Console, jobs_about: int | None) -> Iterator[ProgressBar]:
    """Show progress bars while the block runs. ``jobs_about``: the expected number of jobs, if known."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield ProgressBar(progress, jobs_about)


def print_summary(study: Study, console: Console) -> None:
    """Print a study. No figure is cut: a table may be wider than the terminal.

    Without a terminal, a table has its full width.
    """
    _print(console, headline(study), "bold")
    for sentence in details(study):
        _print(console, sentence)
    _print_table(console, _runs(study, _name_room(study, console)))
    _print_bounds(study, console)
    for run in study.outcomes:
        if run.restarts:
            _print(
                console,
                f"{run.policy}: jobs restarted {run.restarts:,} times; {run.lost_core_hours:,.1f} core-hours were "
                f"lost, at a cost of {format_total(run.cost_lost)}",
            )
    for name, changes in study.differences.items():
        for key, (here, there) in changes.items():
            _print(console, f"{name}: {key} = {there} instead of {here}")
    for why, count in study.main.jobs_unserved.items():
        _print(console, f"{count} jobs not served: {why}", "yellow")
    for kind, count in study.oddities.counts.items():
        places = ", ".join(study.oddities.examples[kind])
        more = ", ..." if count > len(study.oddities.examples[kind]) else ""
        _print(console, f"{count} x {kind} ({places}{more})")
    for rule in study.main.broken:
        _print(console, f"a fault of the manager: {rule}", "red")
    if study.cloud:
        _print_table(console, _cloud(study), folds=True)
    _print(console, _speed(study.main))


def _print_bounds(study: Study, console: Console) -> None:
    if study.bounds is not None:
        _print(
            console,
            f"no fleet costs less than {format_total(study.bounds.work)}, or less than "
            f"{format_total(study.bounds.same_starts)} with every job starting when it did on the fixed cluster",
        )
    for name, bounds in study.compared_bounds.items():
        _print(
            console,
            f"{name}: with its nodes and prices no fleet costs less than {format_total(bounds.work)}, or less than "
            f"{format_total(bounds.same_starts)} with every job starting when it did on its fixed cluster",
        )


def _print(console: Console, text: str, style: str | None = None) -> None:
    """Print a text literally: names of files and jobs may contain rich's markup."""
    console.print(text, style=style, markup=False, emoji=False)


def _print_table(console: Console, table: Table, *, folds: bool = False) -> None:
    """Print a table. ``folds``: its cells are words, which may be folded to the terminal's width."""
    width_before = console.width
    if not (folds and console.is_terminal):
        whole = Measurement.get(console, console.options.update(max_width=WIDTH_MAX), table)
        console.width = max(width_before, whole.maximum)
    console.print(table)
    console.width = width_before


HEADS = ("policy", "cost", "/ site", "wait", "p95", "used", "boots", "peak", "unserved")


def _name_room(study: Study, console: Console) -> int:
    """How many letters of a policy's name fit next to its figures."""
    rows = [HEADS, *(_row(outcome, study.main) for outcome in study.outcomes)]
    figures = sum(max(map(len, column)) + GAP for column in list(zip(*rows, strict=True))[1:])
    return max(NAME_MIN, console.width - figures - GAP) if console.is_terminal else WIDTH_MAX


def _runs(study: Study, name_room: int) -> Table:
    table = Table(
        title=Text(f"{study.workload.name}, {study.main.jobs} jobs"),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in HEADS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for outcome in study.outcomes:
        name, *figures = _row(outcome, study.main)
        cells = [Text(cell) for cell in (shorten(name, name_room), *figures)]
        table.add_row(*cells, style="bold" if outcome is study.main else None)
    return table


def _cloud(study: Study) -> Table:
    """The table of the simulated cloud's figures, with their sources."""
    table = Table(title="the simulated cloud", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("type", "figure", "value", "source"):
        table.add_column(name)
    for figure in study.cloud:
        table.add_row(*map(Text, (figure.node_type, figure.what, figure.value, figure.source)))
    return table


def _row(outcome: Outcome, main: Outcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        format_total(outcome.cost),
        f"{outcome.cost / main.cost:.3f}"
        if main.cost and (outcome is main or outcome.serves_as_many(main))
        else "",
        format_short_span(outcome.wait_mean_s),
        format_short_span(outcome.wait_p95_s),
        f"{outcome.utilisation:.0%}",
        str(outcome.boots),
        str(outcome.peak_nodes),
        str(sum(outcome.jobs_unserved.values())),
    )


def _speed(outcome: Outcome) -> str:
    took_s = max(outcome.took_s, 1e-9)
    return (
        f"{outcome.jobs / took_s:,.0f} jobs/s, {outcome.plans / took_s:,.0f} plans/s, "
        f"{outcome.plans / max(1, outcome.events):.2f} plans per event"
    )
