"""``bin/chaos``: runs the service in a simulated world, with faults drawn from seeds."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import structlog

from nodemanager.service.child_processes import end_with_parent
from tests.chaos.join_network import JoinScenario
from tests.chaos.run.invariants import Violation
from tests.chaos.run.script import Script, draw_script
from tests.chaos.scenario import Scenario

EXIT_OK = 0
EXIT_FAILED = 1
JOIN_EVERY = 5  # in every fifth seed, nodes join by ticket
TWIN_JOINS_EVERY = 8  # with two clouds, in every eighth: every second of those that create nodes in batches
PEERS_EVERY = 3  # in every third seed, jobs may run in other instances
GROUPS_EVERY = 7  # in every seventh seed, nodes are created in placement groups
UPKEEP_EVERY = 4  # in every fourth seed, all of upkeep is on
SHRINK_RUNS_MAX = 300
TRACE_SHOWN = 60  # lines
SEEDS_DEFAULT = range(100)


@dataclass(frozen=True, slots=True)
class FailedSeed:
    """A seed that broke a rule. ``only``: a short list of acts that still breaks it; () before it was shortened."""

    seed: int
    rule: str
    acts: int
    only: ActNumbers = ()
    trace: tuple[str, ...] = ()
    script: Mapping[str, Any] = field(default_factory=dict)  # with only these acts, as JSON values
    stacked: bool = False  # the nodes are pods of a MiniCluster
    twin: bool = False  # there is a second cloud

    @property
    def command(self) -> str:
        chosen = f" --only {','.join(map(str, self.only))}" if self.only else ""
        provider = " --provider minicluster" if self.stacked else " --provider two-clouds" if self.twin else ""
        return f"bin/chaos --seeds {self.seed}{chosen}{provider}"


def scenario_for_seed(
    seed: int,
    only: Collection[int] | None = None,
    trace: list[str] | None = None,
    *,
    stacked: bool = False,
    twin: bool = False,
) -> Scenario:
    """Return the scenario of a seed; with ``only``, of only these acts.

    ``stacked``: with a MiniCluster. ``twin``: with a second cloud.
    """
    joins = not (stacked or twin) and seed % JOIN_EVERY == JOIN_EVERY - 1
    joins = joins or (twin and seed % TWIN_JOINS_EVERY == TWIN_JOINS_EVERY - 2)
    peers = not (stacked or twin) and seed % PEERS_EVERY == PEERS_EVERY // 2
    groups = not (stacked or twin) and seed % GROUPS_EVERY == GROUPS_EVERY - 2
    upkeep = not (stacked or twin) and seed % UPKEEP_EVERY == UPKEEP_EVERY - 1
    script = draw_script(seed, joins=joins, stacked=stacked, peers=peers, twin=twin, upkeep=upkeep, groups=groups)
    return build_scenario(script if only is None else script.with_acts(only), trace)


def build_scenario(script: Script, trace: list[str] | None = None) -> Scenario:
    """Return the scenario of a script, with or without a join service."""
    return (JoinScenario if script.joins else Scenario)(script, trace)


def silence_logs() -> None:
    """Drop the service's log lines: rendering them would take longer than the run."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def run_seed(
    seed: int,
    only: Collection[int] | None = None,
    trace: list[str] | None = None,
    *,
    stacked: bool = False,
    twin: bool = False,
) -> FailedSeed | None:
    """Run a seed. Return None if no rule broke."""
    scenario = scenario_for_seed(seed, only, trace, stacked=stacked, twin=twin)
    try:
        scenario.run()
    except (Exception, Violation) as broken:  # noqa: BLE001 - a bug of the service may raise anything
        rule = (
            str(broken) if isinstance(broken, AssertionError | Violation) else f"{type(broken).__name__}: {broken}"
        )
        return FailedSeed(seed, rule, len(scenario.script.acts), tuple(only or ()), stacked=stacked, twin=twin)
    return None


def shorten(broken: FailedSeed) -> FailedSeed:
    """Find a short list of acts that still fails. Return it with the trace of its run."""
    kind = _rule_kind(broken.rule)

    def still(only: ActNumbers) -> bool:
        found = run_seed(broken.seed, only, stacked=broken.stacked, twin=broken.twin)
        return found is not None and _rule_kind(found.rule) == kind

    all_acts = scenario_for_seed(broken.seed, stacked=broken.stacked, twin=broken.twin).script.acts
    numbers = broken.only or [act.number for act in all_acts]
    only = find_shortest(numbers, still, SHRINK_RUNS_MAX)
    trace: list[str] = []
    again = run_seed(broken.seed, only, trace, stacked=broken.stacked, twin=broken.twin) or broken
    script = scenario_for_seed(broken.seed, only, stacked=broken.stacked, twin=broken.twin).script.as_data()
    return FailedSeed(broken.seed, again.rule, broken.acts, only, tuple(trace), script, broken.stacked, broken.twin)


def _rule_kind(rule: str) -> str:
    """Reduce a rule's text to its first words, without the names and figures of this run."""
    return " ".join(re.findall(r"\b[a-z]+\b", rule)[:4])


# --- the command ------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Run the seeds that the command line names. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="bin/chaos",
        description="Run the service among simulated faults, once per seed, and report broken rules.",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=SEEDS_DEFAULT,
        metavar="A-B",
        help="run these seeds, both ends included; default 0-99",
    )
    parser.add_argument("--only", type=_numbers, metavar="N,N", help="run one seed with only these jobs and faults")
    parser.add_argument(
        "--provider",
        choices=("clouds", "two-clouds", "minicluster"),
        default="clouds",
        help="what the nodes are: machines of three types, those of two clouds of which one has all the faults, or"
        " the pods of a MiniCluster (default: clouds)",
    )
    parser.add_argument("--jobs", type=_count, metavar="N", default=1, help="do N runs at once (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(words)
    seeds: range = chosen.seeds
    if chosen.only is not None and len(seeds) != 1:
        parser.error("--only selects acts of one seed: give one seed with --seeds N")
    silence_logs()
    began_s = time.monotonic()
    found: list[FailedSeed] = []
    for broken in _failed_seeds(seeds, chosen.only, chosen.jobs, chosen.provider):
        found.append(shorten(broken))
        if not chosen.json:
            _show(found[-1])
    took_s = time.monotonic() - began_s
    if chosen.json:
        failed = [{**asdict(broken), "command": broken.command} for broken in found]
        report = {"seeds": [seeds[0], seeds[-1]], "runs": len(seeds), "took_s": took_s, "failed": failed}
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print(f"{len(seeds)} seeds in {took_s:.0f} s; {len(found)} broke a rule")
    return EXIT_FAILED if found else EXIT_OK


def _failed_seeds(seeds: Sequence[int], only: ActNumbers | None, jobs: int, provider: str) -> Iterator[FailedSeed]:
    run = partial(run_seed, stacked=provider == "minicluster", twin=provider == "two-clouds")
    if jobs == 1:
        results = (run(seed, only) for seed in seeds)
        yield from (broken for broken in results if broken is not None)
        return
    context = multiprocessing.get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    with held, watched, ProcessPoolExecutor(jobs, context, _init_worker, (watched,)) as pool:
        for broken in pool.map(run, seeds, chunksize=4):
            if broken is not None:
                yield broken


def _init_worker(watched: Connection) -> None:
    silence_logs()
    end_with_parent(watched)


def _show(broken: FailedSeed) -> None:
    print(f"seed {broken.seed}: {broken.rule}")
    print(f"  {broken.command}   ({len(broken.only)} of {broken.acts} acts are enough to break it)")
    for line in broken.trace[-TRACE_SHOWN:]:
        print(f"  {line}")
    print(flush=True)


def _seeds(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", text, re.ASCII)
    if match is None or int(match[1]) > int(match[2] or match[1]):
        raise argparse.ArgumentTypeError(f'"{text}": give seeds as A-B or as one number')
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f'"{text}": give a whole number of 1 or more')
    return int(text)


def _numbers(text: str) -> ActNumbers:
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f'"{text}": give numbers separated by commas')
    return tuple(int(number) for number in text.split(","))


# --- shrinks a failing script: finds a short list of acts that still fails --------------------------------


ActNumbers = tuple[int, ...]


def find_shortest(numbers: Sequence[int], fails: Callable[[ActNumbers], bool], runs_max: int) -> ActNumbers:
    """Leave out as many acts as possible: first halves, then quarters, down to single acts (Zeller's ddmin).

    ``fails`` tells whether a part still fails; it is called at most ``runs_max`` times. All ``numbers`` together
    are assumed to fail, and are returned if no act can be left out.
    """
    kept = tuple(numbers)
    left = runs_max
    pieces = 2
    while len(kept) >= 1:
        size = -(-len(kept) // pieces)
        shorter = None
        for start in range(0, len(kept), size):
            if left == 0:
                return kept
            left -= 1
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                shorter = rest
                break
        if shorter is not None:
            kept, pieces = shorter, max(pieces - 1, 2)
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(kept))
    return kept


if __name__ == "__main__":
    sys.exit(main())
