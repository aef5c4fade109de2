"""What the terminal shows: the headline, a table of the runs, what was odd, and how far a long run has come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from nodemanager.whatif.outcome import Outcome
from nodemanager.whatif.sentences import headline, sentences, short_span
from nodemanager.whatif.study import TELL_EVERY, Study


class Bar:
    """A bar a run; on something that is no terminal, nothing."""

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
def bar(console: Console, jobs_about: int | None) -> Iterator[Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bar(progress, jobs_about)


def summary(study: Study, console: Console) -> None:
    """Print the study."""
    console.print(headline(study), style="bold")
    for sentence in sentences(study)[1:]:
        console.print(sentence)
    console.print(_runs(study))
    if study.bounds is not None:
        console.print(
            f"no fleet costs less than {study.bounds.work:,.2f}, nor than {study.bounds.same_starts:,.2f} with "
            "every job starting when it did on the fixed cluster"
        )
    for run in (study.main, *study.compared.values(), *study.baselines.values(), *study.swept.values()):
        if run.restarts:
            console.print(
                f"{run.policy}: jobs began anew {run.restarts:,} times; {run.lost_core_hours:,.1f} core-hours were "
                f"lost, at {run.cost_lost:,.2f}"
            )
    for name, changes in study.differences.items():
        for key, (here, there) in changes.items():
            console.print(f"{name}: {key} = {there}, not {here}")
    for why, count in study.main.jobs_unserved.items():
        console.print(f"{count} jobs not served: {why}", style="yellow")
    for kind, count in study.oddities.counts.items():
        places = ", ".join(study.oddities.examples[kind])
        console.print(f"{count} x {kind} ({places}{', ...' if count > len(study.oddities.examples[kind]) else ''})")
    if study.cloud:
        console.print(_cloud(study))
    console.print(_speed(study.main))


def _runs(study: Study) -> Table:
    table = Table(
        title=f"{study.workload.name}, {study.main.jobs} jobs",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("policy", "cost", "of this", "wait", "p95", "used", "boots", "peak", "left"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    table.add_row(*_row(study.main, study.main), style="bold")
    for other in (*study.compared.values(), *study.baselines.values(), *study.swept.values()):
        table.add_row(*_row(other, study.main))
    return table


def _cloud(study: Study) -> Table:
    """What the simulated cloud does, and where that is from."""
    table = Table(title="the cloud", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("type", "what", "figure", "from"):
        table.add_column(name)
    for figure in study.cloud:
        table.add_row(figure.node_type, figure.what, figure.value, figure.source)
    return table


def _row(outcome: Outcome, main: Outcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        f"{outcome.cost:,.2f}",
        f"{outcome.cost / main.cost:.3f}"
        if main.cost and (outcome is main or outcome.serves_as_many(main))
        else "",
        short_span(outcome.wait_mean_s),
        short_span(outcome.wait_p95_s),
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
