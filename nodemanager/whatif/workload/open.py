"""Opens the workload that the argument WORKLOAD names."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from nodemanager.config.site import Site
from nodemanager.core.notation import NotationError, parse_fsd
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.whatif.workload.event_log import open_event_log
from nodemanager.whatif.workload.flux_jobs import open_flux_jobs, open_running_instance
from nodemanager.whatif.workload.from_history import open_service_history
from nodemanager.whatif.workload.swf import open_swf
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, Workload, WorkloadError, shape_for


def open_workload(name: str, site: Site, each: Processors) -> Workload:
    """Open a workload by its name. Raises :class:`WorkloadError`.

    - a trace: ``.swf``, ``.swf.gz``
    - Flux's own job list: ``.json``; "-" for standard input; "flux" for the site's running instance
    - the history of the service: ``.sqlite``, ``journal:PATH``; "journal" for the site's own
    - the event log of an earlier run: ``.jsonl``
    - a synthetic workload: ``lublin:...``, ``poisson:...``
    """
    path = Path(name)
    if name == "-":
        return open_flux_jobs(Path("standard input"), sys.stdin)
    if name == "flux":
        return open_running_instance(site.flux.uri)
    if name.endswith((".swf", ".swf.gz")):
        return open_swf(path, each)
    kept = history_path(name, site)
    if kept is not None:
        return open_service_history(kept)
    if path.suffix == ".jsonl":
        return open_event_log(path)
    if path.suffix == ".json":
        return open_flux_jobs(path)
    if ":" in name:
        return open_synthetic(name, _site_processors(site, each), each)
    raise WorkloadError(
        f'{name}: not a workload. Give a file .swf, .swf.gz, .json (from "flux jobs -a --json"), .jsonl (from '
        '--journal) or .sqlite (from the service), "-" (standard input), "flux" (the jobs of the running '
        'instance), "journal" (the jobs that the service saw end), lublin:jobs=1000,seed=1 or poisson:jobs=1000'
    )


def history_path(name: str, site: Site) -> Path | None:
    """Return the path of the service's history that WORKLOAD names; None if it names something else."""
    if name == "journal":
        return site.state_dir / HISTORY_FILE
    if Path(name).suffix == ".sqlite" or name.startswith("journal:"):
        return Path(name.removeprefix("journal:"))
    return None


def _site_processors(site: Site, each: Processors) -> int:
    """The most processors that the site may have at once."""
    cores = sorted((node_type.cores for node_type in site.node_types for _ in node_type.slots), reverse=True)
    there = cores[: site.limits.nodes_max]
    return len(there) if each is Processors.NODES else sum(there)


# --- synthetic --------------------------------------------------------------------------------------------
#
# Synthetic workloads, drawn from a seed: Poisson arrivals, short small jobs, the model of Lublin and Feitelson.
#
# Source: Lublin and Feitelson, "The workload on parallel supercomputers: modeling the characteristics of rigid
# jobs", J. Parallel Distrib. Comput. 63 (2003), with its parameters for batch and interactive jobs together.


LIMIT_FACTORS = (1.0, 1.5, 2.0, 5.0, 10.0)  # a job's time limit is its run time multiplied by one of these
LIMIT_STEP_S = 300.0
SMALL_JOBS = ("steady", "bursts", "daily")
PROCS: Mapping[str, int] = {
    **dict.fromkeys(SMALL_JOBS, 16),
    "narrowing": 8,
}  # of the largest job; 1 for other kinds


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The options of a synthetic workload, ``KIND:key=value,...``."""

    jobs: int = 10_000
    seed: int = 1
    procs: int = 0  # the largest job; 0: the site's cores
    every_s: float = 60.0  # all but lublin: the mean time between two jobs
    run_s: float = 600.0  # all but lublin: the mean time a job runs
    speed: float = 1.0  # lublin: how many times faster jobs arrive than in the model


def open_synthetic(text: str, site_procs: int, each: Processors = Processors.CORES) -> Workload:
    """Open a workload such as ``lublin:jobs=10000,seed=1`` or ``poisson:jobs=1000,every=60s,run=10m,procs=1``.

    Raises :class:`WorkloadError` for an unknown kind or key, or an invalid value.
    """
    kind, _, rest = text.partition(":")
    options = _read_options(text, rest)
    if kind not in MODELS:
        known = ", ".join(f"{name}:" for name in MODELS)
        raise WorkloadError(f"{text}: unknown workload; the known kinds are {known}")
    procs = options.procs or (site_procs if kind == "lublin" else PROCS.get(kind, 1))
    return Workload(
        name=text,
        read=partial(_read, MODELS[kind], options, procs, each),
        jobs_about=options.jobs,
        processors=procs if kind == "lublin" else None,
        each=each,
    )


def _read(
    model: Model, options: ModelOptions, procs: int, each: Processors, oddities: Oddities
) -> Iterator[TraceJob]:
    del oddities  # a model has none
    return model(options, procs, each)


def _read_options(text: str, rest: str) -> ModelOptions:
    readers: Mapping[str, tuple[str, Callable[[str], float]]] = {
        "jobs": ("jobs", int),
        "seed": ("seed", int),
        "procs": ("procs", int),
        "every": ("every_s", parse_fsd),
        "run": ("run_s", parse_fsd),
        "speed": ("speed", float),
    }
    values: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in readers:
            raise WorkloadError(f'{text}: unknown key "{key}"; the known keys are {", ".join(readers)}')
        name, read = readers[key]
        try:
            values[name] = read(value)
        except (ValueError, NotationError) as error:
            raise WorkloadError(f'{text}: "{value}" is not a valid value for {key}') from error
        if not 0 <= values[name] < math.inf or (key != "seed" and values[name] == 0):
            raise WorkloadError(f"{text}: {key} must be above 0")
    return ModelOptions(**values)


def _limit_s(run_s: float, draws: Random) -> float:
    return math.ceil(run_s * draws.choice(LIMIT_FACTORS) / LIMIT_STEP_S + 1e-9) * LIMIT_STEP_S


def _poisson(options: ModelOptions, procs: int, each: Processors) -> Iterator[TraceJob]:
    """Draw jobs with Poisson arrivals, exponential run times, and sizes uniform from 1 to the largest."""
    draws = Random(f"poisson/{options.seed}")
    at_s = 0.0
    for number in range(1, options.jobs + 1):
        at_s += draws.expovariate(1.0 / options.every_s)
        run_s = max(1.0, draws.expovariate(1.0 / options.run_s))
        shape = shape_for(draws.randint(1, procs), each)
        yield TraceJob(str(number), at_s, run_s, _limit_s(run_s, draws), shape, draws.randint(1, 20))


# --- short small jobs -------------------------------------------------------------------------------------

SMALL_SHARE = 0.9  # of the jobs, which need at most a quarter of ``procs``
BURST_JOBS = 50  # on average
DAY_S = 86_400.0


def _small_jobs(options: ModelOptions, procs: int, each: Processors, kind: str) -> Iterator[TraceJob]:
    """Draw short jobs, nine of ten of which need at most a quarter of ``procs``, the cores of a node.

    ``steady``: Poisson arrivals. ``bursts``: about ``BURST_JOBS`` at once, with the same mean rate. ``daily``: a
    rate that varies like a sine over the day, from a tenth to nearly twice the mean.
    """
    draws = Random(f"{kind}/{options.seed}")
    at_s, number = 0.0, 0
    while number < options.jobs:
        if kind == "bursts":
            count = max(1, round(draws.expovariate(1.0 / BURST_JOBS)))
            at_s += draws.expovariate(1.0 / (options.every_s * BURST_JOBS))
        else:
            count = 1
            rate = 1.0 if kind == "steady" else 1.0 - 0.9 * math.cos(2 * math.pi * at_s / DAY_S)
            at_s += draws.expovariate(rate / options.every_s)
        for _ in range(min(count, options.jobs - number)):
            number += 1
            run_s = max(1.0, draws.expovariate(1.0 / options.run_s))
            small = draws.random() < SMALL_SHARE
            size = draws.randint(1, max(1, procs // 4)) if small else draws.randint(max(1, procs // 4), procs)
            limit_s = _limit_s(run_s, draws)
            yield TraceJob(str(number), at_s, run_s, limit_s, shape_for(size, each), draws.randint(1, 20))


def _narrowing(options: ModelOptions, procs: int, each: Processors) -> Iterator[TraceJob]:
    """Draw jobs of 2 to ``procs`` whole nodes, which use only their first node after 10 to 90 % of their run.

    Poisson arrivals, exponential run times.
    """
    del each
    draws = Random(f"narrowing/{options.seed}")
    at_s = 0.0
    for number in range(1, options.jobs + 1):
        at_s += draws.expovariate(1.0 / options.every_s)
        run_s = max(1.0, draws.expovariate(1.0 / options.run_s))
        shape = shape_for(draws.randint(min(2, procs), procs), Processors.NODES)
        limit_s, userid = _limit_s(run_s, draws), draws.randint(1, 20)
        yield TraceJob(str(number), at_s, run_s, limit_s, shape, userid, run_s * draws.uniform(0.1, 0.9))


# --- Lublin and Feitelson ---------------------------------------------------------------------------------

SERIAL, POWER_OF_2 = 0.244, 0.576  # shares of all jobs
SIZE_LOW, SIZE_MID_BELOW_TOP, SIZE_LOW_SHARE = 0.8, 2.5, 0.86  # in log2 of processors
RUN_SHORT, RUN_LONG = (4.2, 0.94), (312.0, 0.03)  # gamma of ln seconds: shape, scale
SHORT_SLOPE, SHORT_SHARE = -0.0054, 0.78
RUN_LN_MAX, GAP_LN_MAX = 12.0, 13.0
GAP = (10.2303 * 1.0225, 0.4871)  # gamma of ln seconds at the busy hours
DAY = (8.1737, 3.9631)  # gamma of the half hour of the day
BUCKETS, BUCKET_S, DAY_BEGINS = 48, 1800.0, 11


def _lublin(options: ModelOptions, procs: int, each: Processors) -> Iterator[TraceJob]:
    draws = Random(f"lublin/{options.seed}")
    top = math.log2(max(2, procs))
    arrivals = _arrivals(draws)
    for number in range(1, options.jobs + 1):
        at_s = next(arrivals) / options.speed
        size = min(procs, _size(draws, top))
        run_s = _run_s(draws, size)
        yield TraceJob(
            str(number), at_s, run_s, _limit_s(run_s, draws), shape_for(size, each), draws.randint(1, 50)
        )


def _size(draws: Random, top: float) -> int:
    kind = draws.random()
    if kind <= SERIAL:
        return 1
    middle = max(SIZE_LOW, top - SIZE_MID_BELOW_TOP)
    low, high = (SIZE_LOW, middle) if draws.random() <= SIZE_LOW_SHARE else (middle, top)
    log2_size = draws.uniform(low, high)
    if kind <= SERIAL + POWER_OF_2:
        log2_size = math.floor(log2_size + 0.5)
    return int(2.0**log2_size + 0.5)


def _run_s(draws: Random, size: int) -> float:
    short = min(1.0, max(0.0, SHORT_SLOPE * size + SHORT_SHARE))
    while True:
        logarithm = draws.gammavariate(*(RUN_SHORT if draws.random() <= short else RUN_LONG))
        if logarithm <= RUN_LN_MAX:
            return max(1.0, math.floor(math.exp(logarithm)))


def _arrivals(draws: Random) -> Iterator[float]:
    """Yield arrival times in seconds from midnight. Gaps are drawn for busy hours, and stretched at other hours."""
    weights = _day_weights()
    at_s, left = 0.0, 1.0  # left: the remaining share of the current half hour
    bucket = 0
    while True:
        logarithm = GAP_LN_MAX + 1
        while logarithm > GAP_LN_MAX:
            logarithm = draws.gammavariate(*GAP)
        points = math.exp(logarithm) / BUCKET_S
        while points > weights[bucket] * left:
            points -= weights[bucket] * left
            at_s += BUCKET_S * left
            bucket, left = (bucket + 1) % BUCKETS, 1.0
        at_s += BUCKET_S * points / weights[bucket]
        left -= points / weights[bucket]
        yield at_s


def _day_weights() -> list[float]:
    """The weight of each half hour from midnight, 1 on average, from the density of the daily gamma distribution.

    The distribution counts half hours from 1. Those before ``DAY_BEGINS`` belong to the end of the day before.
    """
    shape, scale = DAY
    hours = [bucket + 1 if bucket + 1 >= DAY_BEGINS else bucket + 1 + BUCKETS for bucket in range(BUCKETS)]
    densities = [math.exp((shape - 1) * math.log(hour) - hour / scale) for hour in hours]
    mean = sum(densities) / BUCKETS
    return [density / mean for density in densities]


Model = Callable[[ModelOptions, int, Processors], Iterator[TraceJob]]
MODELS: Mapping[str, Model] = {
    "lublin": _lublin,
    "poisson": _poisson,
    "narrowing": _narrowing,
    **{kind: partial(_small_jobs, kind=kind) for kind in SMALL_JOBS},
}
