"""Random small sites, each with a small workload, replayed and checked against what must hold on every site.

    python -m tests.whatif.site_search --seeds 0-2999
    python -m tests.whatif.site_search --seeds 17 --show      # one site again, with its file and its events

A seed determines the site, the workload and the cloud. ``nodemanager.whatif.replay.invariants`` has the rules.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TextIO

from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError
from nodemanager.core.jobs import Shape
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Runner
from nodemanager.whatif.workload.workload import TraceJob
from tests.whatif.sites import a_workload, unseen

HEAD = """[Site]
cluster = small
state_dir = state
mode = act
[Flux]
uri = simulated
"""
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
DAYS = ("Mon-Sun", "Mon-Fri", "Sat-Sun")
# The hours before a change to summer time, one to winter time, the end of a month, and an ordinary day.
STARTS_AT = (1_774_656_000.0, 1_792_800_000.0, 1_769_904_000.0, 1_780_000_000.0)


class Tried(NamedTuple):
    """What became of one site."""

    seed: int
    text: str
    broken: tuple[str, ...]
    took_s: float
    refused: bool = False
    dearer: float = 0.0  # the cost by that of the idle-timeout baseline, if a setting makes it more than it may be
    why: Sequence[str] = ()  # these settings
    events: Sequence[dict[str, Any]] = ()


def site_text(draw: Random) -> str:
    """A site file. Every section and key is left out now and then."""
    clouds = draw.choice([[""], [""], [""], ["east", "west"]])
    count = draw.randint(len(clouds), 3)
    types = [_node_type(draw, name, clouds) for name in ("ant", "bee", "cat")[:count]]
    names = ("ant", "bee", "cat")[: len(types)]
    sections = [HEAD]
    for cloud in clouds:
        limits = {"nodes_max": draw.choice(["1", "2", "5"]), "price_per_hour_max": draw.choice(["0.3", "1", "5"])}
        limits |= {"priority": draw.choice(["0", "1"])}
        keys = {"provider": "simulated"} | (_some(draw, limits, 0.2) if cloud else {})
        sections.append(_section(f"Cloud {cloud}" if cloud else "Cloud", keys))
    nodes_max = draw.randint(1, 10)
    limits = {"nodes_min": str(draw.randint(0, min(3, nodes_max)))}
    fixed = {"nodes_max": str(nodes_max), "price_per_hour_max": draw.choice(["0.5", "1", "2", "5", "50"])}
    sections.append(_section("Limits", fixed | _some(draw, limits, 0.25)))
    policy = {
        "idle_timeout": draw.choice(["0s", "1s", "30s", "2m", "5m", "20m", "2h"]),
        "idle_confirmations": draw.choice(["1", "2", "4"]),
        "queue_policy": draw.choice(["fifo", "backfill"]),
        "unserved": draw.choice(["hold-users", "block", "hold", "skip"]),
        "stop_lead": draw.choice(["0s", "10s", "60s", "10m"]),
        "patience": draw.choice(["0s", "1m", "30m"]),
        "packing": draw.choice(["spread", "walltime"]),
        "consolidate": draw.choice(["yes", "no"]),
        "consolidate_gain": draw.choice(["0%", "5%", "50%"]),
        "spot_share_max": draw.choice(["0.3", "0.5", "1"]),
        "drift": draw.choice(["replace", "ignore"]),
        "early_release": draw.choice(["yes", "no"]),
    }
    sections.append(_section("Policy", _some(draw, policy, 0.4)))
    timing = {
        "settle": draw.choice(["0s", "1s", "5s"]),
        "probe": draw.choice(["1s", "10s", "1m", "3m"]),
        "boot_timeout": draw.choice(["5m", "15m", "30m"]),
        "boot_retry": draw.choice(["1m", "15m"]),
    }
    sections.append(_section("Timing", _some(draw, timing, 0.25)))
    if draw.random() < 0.2:
        budgets = {"per_day": draw.choice(["0.5", "3", "20"]), "per_month": draw.choice(["1", "10", "50"])}
        budgets |= {"user_per_day": draw.choice(["0.5", "2"]), "user_per_month": draw.choice(["2", "9"])}
        sections.append(_section("Budget", _some(draw, budgets, 0.5)))
    if draw.random() < 0.3:
        hours = draw.choice(["08:00-20:00", "00:00-24:00", "22:00-23:00"])
        when = f"{draw.choice(DAYS)} {hours} {draw.choice(ZONES)}"
        keys = {"max": draw.choice(["1", "50%", "100%"]), "windows": when}
        sections.append(_section("Disruption", _some(draw, keys, 0.7)))
    for number in range(draw.choice([0, 0, 0, 1, 2])):
        begin = draw.randint(3, 20)
        hours = f"{begin:02}:00-{begin + draw.randint(1, 3):02}:00"
        keys = {"when": f"{draw.choice(DAYS)} {hours} {draw.choice(ZONES)}"}
        of_type = draw.random() < 0.5
        if of_type:
            keys["node_types"] = draw.choice(names)
        limits = {
            "nodes_min": str(draw.randint(0, 2)),
            "nodes_max": str(draw.randint(0, nodes_max)),
            "spares": str(draw.randint(0, 2)),
            "idle_timeout": draw.choice(["0s", "10m"]),
        }
        chosen = _some(draw, limits, 0.5) or {"spares": "1"}
        sections.append(_section(f"Schedule s{number}", keys | chosen))
    simulation = {
        "boot_delay": draw.choice(["1s", "30s", "90s", "5m", "12m"]),
        "stop_delay": draw.choice(["0s", "5s", "20s", "80s", "5m"]),
    }
    rare = {
        "capacity": str(draw.randint(1, 8)),
        "boot_failures": draw.choice(["0.1", "0.4"]),
        "spot_reclaims_per_hour": draw.choice(["0.1", "2"]),
    }
    chosen = _some(draw, simulation, 0.7) | _some(draw, rare, 0.15)
    sections.append(_section("Simulation", {"seed": str(draw.randint(0, 999))} | chosen))
    return "".join([*sections, *types])


def _node_type(draw: Random, name: str, clouds: Sequence[str]) -> str:
    cores = draw.choice([1, 2, 4, 8])
    fixed = {
        "cores": str(cores),
        "memory": "4GiB",
        "price_per_hour": draw.choice(["0.05", "0.1", "0.2", "0.9", "1"]),
        "billing": draw.choice(["per-second", "per-minute", "hourly", "20s", "10m", "free"]),
        "slots": f"{name}[1-{draw.randint(1, 8)}]",
    }
    if len(clouds) > 1:
        fixed["cloud"] = clouds[["ant", "bee", "cat"].index(name) % len(clouds)]
    keys = {
        "gpus": draw.choice(["1", "4"]),
        "billing_minimum": draw.choice(["1m", "10m"]),
        "market": "spot",
        "spares": str(draw.randint(1, 3)),
        "prepaid": str(draw.randint(1, 2)),
        "max_age": draw.choice(["30m", "2h", "1d"]),
        "zones": draw.choice(["a", "a,b"]),
        "placement": "cluster",
        "properties": "fast",
    }
    return _section(f"Node {name}", fixed | _some(draw, keys, 0.12))


def _some(draw: Random, keys: dict[str, str], share: float) -> dict[str, str]:
    return {key: value for key, value in keys.items() if draw.random() < share}


def _section(name: str, keys: dict[str, str]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def workload_jobs(draw: Random) -> list[TraceJob]:
    """Up to ten jobs, within a few hours."""
    at_s, jobs = 0.0, []
    for number in range(draw.randint(1, 10)):
        at_s += draw.choice([0.0, 0.0, 5.0, 60.0, 600.0, 1800.0, 7200.0])
        run_s = draw.choice([1.0, 10.0, 30.0, 300.0, 1800.0, 7200.0])
        slots, cores = draw.choice([1, 1, 1, 2, 3, 8]), draw.choice([1, 1, 2, 4])
        nodes = draw.choice([None, None, None, 1, 2, 3, 6])
        gpus = draw.choice([0] * 7 + [1])
        shape = Shape(
            slots=1 if nodes else slots,
            cores_per_slot=cores,
            gpus_per_slot=gpus,
            nodes=nodes,
            exclusive=bool(nodes) and draw.random() < 0.4,
            one_zone=draw.random() < 0.05,
        )
        limit_s = draw.choice([0.0, run_s, run_s * 3, 86_400.0])
        jobs.append(TraceJob(f"job{number}", at_s, run_s, limit_s, shape, userid=draw.choice([0, 0, 1, 2])))
    return jobs


def try_site(seed: int, *, keep_events: bool = False) -> Tried:
    """Replay one random site, and check the rules."""
    began_s, draw = time.perf_counter(), Random(seed)
    text, jobs = site_text(draw), workload_jobs(draw)
    start_at = draw.choice(STARTS_AT)
    sink = io.StringIO()
    try:
        outcome, baseline = _replay(text, jobs, start_at, sink)
    except ConfigError as error:
        return Tried(seed, f"{text}\n{error}", (), time.perf_counter() - began_s, refused=True)
    broken = [*outcome.broken, *_compared(outcome, baseline, text)]
    ratio = _ratio(outcome, baseline)
    explained: list[str] = []
    if ratio > DEARER_MAX:
        explained = explain_cost(text, jobs, start_at)
        if not explained:
            broken.append(f"dearer: {ratio:.2f} x the baseline, and no setting explains it")
    events = [json.loads(line) for line in sink.getvalue().splitlines()] if keep_events else ()
    took_s = time.perf_counter() - began_s
    return Tried(
        seed, text, tuple(broken), took_s, dearer=ratio if explained else 0.0, why=explained, events=events
    )


def _replay(
    text: str, jobs: Sequence[TraceJob], start_at: float, sink: TextIO | None = None
) -> tuple[Outcome, Outcome]:
    """The outcome of a site, and that of the idle-timeout baseline. Raises ``ConfigError``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "site.ini"
        path.write_text(text)
        site = load_site(path, {})
        runner = Runner(a_workload(jobs, start_at), unseen)
        return runner.run_production("small", site, sink), runner.run_baseline("idle-timeout", site)[0]


def _ratio(outcome: Outcome, baseline: Outcome) -> float:
    """The cost by that of the baseline; 0 if they do not serve as many jobs, or the baseline costs nothing."""
    alike = outcome.jobs_served == baseline.jobs_served and baseline.cost > 0.0
    return outcome.cost / baseline.cost if alike else 0.0


def explain_cost(text: str, jobs: Sequence[TraceJob], start_at: float) -> list[str]:
    """A few settings without which a site is at most ``DEARER_MAX`` times as dear as the baseline.

    Each of them is needed for that. ``chance`` if the same site costs no more on average over other draws of the
    simulated cloud: a long job may start on a dear node that is up a moment before those bought for it. Empty if
    nothing explains the cost.
    """

    def is_dearer_without(names: Iterable[str]) -> bool:
        plainer = text
        for name in names:
            pattern, instead, _ = MAKE_DEARER[name]
            plainer = re.sub(pattern, instead, plainer, flags=re.MULTILINE)
        try:
            return _ratio(*_replay(plainer, jobs, start_at)) > DEARER_MAX
        except ConfigError:  # another setting needs this one
            return True

    def is_dearer_with_other_draws() -> bool:
        cost = baseline_cost = 0.0
        for seed in OTHER_SEEDS:
            drawn = re.sub(r"^seed = .*", f"seed = {seed}", text, flags=re.MULTILINE)
            outcome, baseline = _replay(drawn, jobs, start_at)
            cost, baseline_cost = cost + outcome.cost, baseline_cost + baseline.cost
        return cost > DEARER_MAX * baseline_cost

    needed = [name for name, (pattern, _, _) in MAKE_DEARER.items() if re.search(pattern, text, re.MULTILINE)]
    if is_dearer_without(needed):
        # Without all of them it is another site, where other nodes may happen to join first.
        few = (names for count in (1, 2) for names in combinations(needed, count))
        found = next((list(names) for names in few if not is_dearer_without(names)), [])
        return found or ([] if is_dearer_with_other_draws() else ["chance"])
    for name in tuple(needed):
        rest = [it for it in needed if it != name]
        if not is_dearer_without(rest):
            needed = rest
    return needed


DEARER_MAX = 1.2
OTHER_SEEDS = range(5)  # of the simulated cloud: how long each node boots
# The settings that cost money on purpose, or that the baseline does not know: each as a pattern, what to write
# instead to do without it, and why it costs more.
MAKE_DEARER = {
    "spares": (r"^spares = .*\n", "", "nodes are kept up for the next job"),
    "nodes_min": (r"^nodes_min = .*\n", "", "nodes are kept up for the next job"),
    "schedules": (r"^\[Schedule .*\]\n(?:[^\[].*\n)*", "", "nodes are kept up at these times"),
    "idle_timeout": (r"^idle_timeout = (?:20m|2h)\n", "", "it is longer than the baseline's ten minutes"),
    "billing": (
        r"^billing = (?:hourly|10m)",
        "billing = per-second",
        "what is paid anyway is used, and a late stop pays more",
    ),
    "not billed": (
        r"^billing = free\n",
        "billing = per-second\n",
        "with nodes that cost nothing, any billed node on which Flux happens to start a job is most of the cost",
    ),
    "billing_minimum": (r"^billing_minimum = .*\n", "", "what is paid anyway is used"),
    "max_age": (r"^max_age = .*\n", "", "nodes are replaced"),
    "gpus": (r"^gpus = .*\n", "", "nodes with GPUs are left to jobs that ask for GPUs"),
    "clouds": (
        r"^\[Cloud (east|west)\]\n(?:[^\[].*\n)*",
        r"[Cloud \1]\nprovider = simulated\n",
        "the baseline knows neither the limits of a cloud nor its priority",
    ),
    "market": (r"^market = spot\n", "", "nodes that may be taken back are weighed against those that are not"),
    "prepaid": (r"^prepaid = .*\n", "", "nodes that are paid for anyway stay up"),
    "queue_policy": (
        r"^queue_policy = backfill\n",
        "",
        "jobs behind a stuck one get nodes of their own; the baseline lets them wait",
    ),
    "placement": (
        r"^placement = cluster\n",
        "",
        "all nodes of a job come from one placement group, not the cheapest of all types",
    ),
    "capacity": (
        r"^capacity = .*\n",
        "",
        "the cloud refuses other nodes than the baseline's",
    ),
    "boot_failures": (r"^boot_failures = .*\n", "", "other nodes fail than the baseline's"),
    "boot_timeout": (r"^boot_timeout = .*\n", "", "the baseline waits for every boot"),
    "packing": (r"^packing = walltime\n", "", "jobs of about the same length share nodes, by their time limits"),
    "unserved": (
        r"^unserved = skip\n",
        "",
        "it relies on Flux passing over a stuck job, which the replay does not",
    ),
}
# Limits that the baseline does not keep to. A job of several nodes waits for its zone, or its next try.
NOT_COMPARED = ("Budget", "Schedule", "Cloud east", "spot_share_max", "placement", "boot_failures")
NOT_BEFORE_THE_NEXT_TRY = {"gang_refused", "one_zone_short", "node_coming"}


def _compared(outcome: Outcome, baseline: Outcome, text: str) -> Iterator[str]:
    """Rules that compare a run with the idle-timeout baseline."""
    whys = [str(why) for why in outcome.jobs_unserved]
    if outcome.jobs_served < baseline.jobs_served and not any(it in text for it in NOT_COMPARED):
        if "breaker_open" in whys:
            return  # boots take longer than the site's boot_timeout, which the baseline does not have
        if "capacity" in text and NOT_BEFORE_THE_NEXT_TRY & set(whys):
            return
        yield f"unserved: {outcome.jobs_served} jobs served, the baseline serves {baseline.jobs_served}: {whys}"


def main(arguments: Sequence[str]) -> int:
    """Try the sites of these seeds, and print those that break a rule."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-99")
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args(arguments)
    first, _, last = asked.seeds.partition("-")
    counts: Counter[str] = Counter()
    dearer: Counter[str] = Counter()
    for seed in range(int(first), int(last or first) + 1):
        tried = try_site(seed, keep_events=asked.show)
        counts["refused" if tried.refused else "broken" if tried.broken else "kept"] += 1
        counts["ms"] += round(tried.took_s * 1000)
        for rule in tried.broken:
            counts[rule.split(":")[0]] += 1
            print(seed, rule, flush=True)
        if tried.dearer:
            dearer.update(tried.why)
            dearer["sites"] += 1
            print(seed, f"dearer: {tried.dearer:.2f} x the baseline, by {tried.why}", flush=True)
        if asked.show:
            print(tried.text, *tried.events, sep="\n")
        elif tried.took_s > 5.0:
            print(seed, f"slow: {tried.took_s:.1f} s", flush=True)
    print(dict(counts))
    print("dearer than the baseline:", dict(dearer.most_common()))
    return bool(counts["broken"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
