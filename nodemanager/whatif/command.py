"""The verb ``simulate``: its options, its runs, and its outputs."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from nodemanager.config.site import ConfigError, Site
from nodemanager.service import logs
from nodemanager.whatif.cloud.learned import LearnedCloud, learn_from
from nodemanager.whatif.cloud.parameters import cloud_conditions
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.report.findings import headline, misused_nodes, sentences
from nodemanager.whatif.report.html import render_report
from nodemanager.whatif.report.outputs import (
    OutputClosed,
    OutputError,
    check_apart,
    check_standard_output,
    flushed_output,
    open_output,
    write,
)
from nodemanager.whatif.report.terminal import print_summary, progress_bar
from nodemanager.whatif.study.run_list import list_runs, with_seed
from nodemanager.whatif.study.run_pool import execute_all
from nodemanager.whatif.study.study import Runner, Study
from nodemanager.whatif.study.variants import SweepError, differences
from nodemanager.whatif.workload.open import history_path, open_workload
from nodemanager.whatif.workload.workload import Oddities, Processors, Workload, WorkloadError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 78
EXIT_CLOSED = 141  # as shells report a process that SIGPIPE ended


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``simulate``."""
    parser.add_argument("--compare", nargs="+", default=[], metavar="OTHER.INI", help="compare with other sites")
    parser.add_argument("--sweep", metavar="KEY=FROM..TO", help="compare with other values of one key of the site")
    parser.add_argument(
        "--baselines",
        default="all",
        metavar="NAMES",
        help=f"run these baselines: all, none, or some of {', '.join(BASELINES)}",
    )
    parser.add_argument("--processors", choices=[it.value for it in Processors], default=Processors.CORES.value,
                       help="read one processor of a trace as a core or as a whole node")  # fmt: skip
    parser.add_argument(
        "--learn-from",
        metavar="JOURNAL",
        help="learn from this history of the service how the site's nodes behave, for keys that [Simulation] does "
        "not set (journal: the site's own; none: do not learn); default: the history given as WORKLOAD, if it is "
        "one",
    )
    parser.add_argument("--jobs", type=_whole_number, metavar="N", help="replay only the first N jobs")
    parser.add_argument("--seed", type=_whole_number, metavar="N", help="use this seed instead of the site's")
    parser.add_argument(
        "--processes",
        type=_whole_number,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="replay N policies at once; default: the number of processors",
    )
    parser.add_argument("--actors", action="store_true", help="replay with the production actors: exact but slow")
    parser.add_argument("--report", metavar="OUT.HTML", help="write a report as an HTML page")
    parser.add_argument("--journal", metavar="OUT.JSONL", help="write the jobs, nodes and decisions of the run")


def simulate(site: Site, chosen: argparse.Namespace) -> int:
    """Replay a workload under the site's policy, and print its cost and waits. Return the exit status."""
    logs.configure(logging.CRITICAL)
    try:
        with sigterm_raises():
            return _simulate(with_seed(site, chosen.seed), chosen)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    except OutputClosed:
        return EXIT_CLOSED
    except (WorkloadError, SweepError, OutputError, OSError) as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED


def _simulate(site: Site, chosen: argparse.Namespace) -> int:
    """Check the outputs, run the study, write it. If one output fails at the end, the others are still written."""
    check_standard_output()
    with open_output("--report", chosen.report) as report, open_output("--journal", chosen.journal) as journal:
        check_apart({"--report": report, "--journal": journal}, _inputs(site, chosen))
        workload = open_workload(chosen.subject, site, Processors(chosen.processors))
        study, journal_fault = _study(site, workload, chosen)
        faults = [f"--journal {chosen.journal}: {journal_fault}"] if journal_fault else []
        closed = None
        try:
            with flushed_output(sys.stdout):
                sys.stdout.write(_render(study, chosen))
        except OutputClosed as error:
            closed = error
        except OutputError as error:
            faults.append(str(error))
        if report is not None:
            try:
                write(f"--report {chosen.report}", report, render_report(study))
            except OutputError as error:
                faults.append(str(error))
    if faults:
        raise OutputError("\n".join(faults))
    if closed:
        raise closed
    return EXIT_OK


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM end the study as Ctrl-C does: files are closed, and no worker process is left."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # one signal is enough
        raise SystemExit(128 + number)  # the shells' convention

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _inputs(site: Site, chosen: argparse.Namespace) -> dict[str, Path]:
    """The input files, by their role."""
    named = {"the WORKLOAD": chosen.subject, "--learn-from": chosen.learn_from}
    read = {what: history_path(name, site) or Path(name) for what, name in named.items() if name is not None}
    return {**read, "--config": site.path, **{f"--compare {path}": Path(path) for path in chosen.compare}}


def _render(study: Study, chosen: argparse.Namespace) -> str:
    if chosen.json:
        return json.dumps(as_json(study), indent=1) + "\n"
    console = Console(markup=False, emoji=False)  # names of types and files may look like markup
    with console.capture() as captured:
        print_summary(study, console)
    return captured.get()


def _whole_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f'"{text}": give a whole number')
    return int(text)


def _study(site: Site, workload: Workload, chosen: argparse.Namespace) -> tuple[Study, str]:
    """Do every run, the site's own first. Also return why its event log is incomplete; "" if it is not."""
    runs = list_runs(site, chosen)
    if runs.caution:
        print(runs.caution, file=sys.stderr)
    learned = _learn(site, chosen)
    with progress_bar(Console(stderr=True), chosen.jobs or workload.jobs_about) as shown:
        runner = Runner(workload, shown, chosen.jobs, learned)
        results = execute_all(runner, runs.all_runs, chosen.processes)
        with closing(results):
            first = next(results)
            if not first.outcome.jobs:
                raise WorkloadError(_no_jobs_message(workload, first.oddities))
            shown.done(first.outcome)
            _, cloud = cloud_conditions(site, learned)
            study = Study(site, workload, first.outcome, oddities=first.oddities, cloud=cloud)
            groups = (study.compared, runs.compared), (study.swept, runs.swept), (study.baselines, runs.baselines)
            for outcomes, group in groups:
                for run, result in zip(group, results, strict=False):  # the results come in the order of the list
                    shown.done(result.outcome)
                    outcomes[run.name] = result.outcome
                    if run.baseline and run.name == "fixed":
                        study.bounds = result.bounds
            for (name, _), result in zip(runs.bounding, results, strict=False):
                if result.bounds is not None:
                    study.compared_bounds[name] = result.bounds
    study.differences.update({run.name: differences(site, run.site) for run in runs.compared})
    return study, first.event_log_fault


def _no_jobs_message(workload: Workload, oddities: Oddities) -> str:
    odd = "; ".join(f"{count:,} x {kind}" for kind, count in oddities.counts.items())
    return f"{workload.name}: it has no job that can be replayed{': ' if odd else ''}{odd}"


def _learn(site: Site, chosen: argparse.Namespace) -> LearnedCloud | None:
    """Learn how the site's nodes behave: from the history given by ``--learn-from``, or from the one replayed."""
    if chosen.actors and chosen.learn_from not in (None, "none"):
        raise WorkloadError("--actors uses the cloud of [Simulation]: leave out --learn-from")
    if chosen.actors or chosen.learn_from == "none":
        return None
    if chosen.learn_from is None:
        path = history_path(chosen.subject, site)
        return learn_from(path) if path is not None else None
    return learn_from(history_path(chosen.learn_from, site) or Path(chosen.learn_from))


def as_json(study: Study) -> Mapping[str, Any]:
    """Return a study as JSON values. Times are in seconds, money is in the site's currency."""
    return {
        "headline": headline(study),
        "sentences": [*sentences(study), *misused_nodes(study.main)],
        "workload": {"name": study.workload.name, "header": dict(study.workload.header)},
        "site": str(study.site.path),
        "main": asdict(study.main),
        "compared": {name: asdict(it) for name, it in study.compared.items()},
        "differences": {name: dict(changes) for name, changes in study.differences.items()},
        "swept": {name: asdict(it) for name, it in study.swept.items()},
        "baselines": {name: asdict(it) for name, it in study.baselines.items()},
        "cloud": [asdict(figure) for figure in study.cloud],
        "bounds": asdict(study.bounds) if study.bounds is not None else None,
        "compared_bounds": {name: asdict(bounds) for name, bounds in study.compared_bounds.items()},
        "oddities": {
            kind: {"count": count, "examples": study.oddities.examples[kind]}
            for kind, count in study.oddities.counts.items()
        },
    }
