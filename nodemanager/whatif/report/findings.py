"""The findings of a study, as plain sentences."""

from __future__ import annotations

from nodemanager.core.reason_text import format_total
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Study

SMALL_SHARE = 5  # percent: below it a saving has a decimal


def compare(main: Outcome, other: Outcome, *, p95: bool = True) -> str:
    """Compare two policies in a few words: "12 % cheaper, mean wait 40 seconds longer, p95 wait 3 minutes longer".

    If they do not serve equally many jobs, their costs and waits cannot be compared: then name the difference.
    ``p95``: whether to compare the p95 wait too.
    """
    more = main.jobs_served - other.jobs_served
    if more:
        fewer = f"{abs(more):,} job{'' if abs(more) == 1 else 's'} {'more' if more > 0 else 'fewer'}"
        return f"serves {fewer}, for {format_total(main.cost)} instead of {format_total(other.cost)}"
    if not main.jobs_served:
        return f"neither serves a job, for {format_total(main.cost)} and {format_total(other.cost)}"
    return f"{_compare_cost(main, other)}, {_compare_wait(main, other, p95=p95)}"


def _compare_cost(main: Outcome, other: Outcome) -> str:
    if other.cost <= 0:
        return f"{main.cost - other.cost:+.2f} in cost"
    share = (main.cost / other.cost - 1) * 100
    if abs(share) < 0.05:
        return "costs the same"
    return f"{abs(share):.{1 if abs(share) < SMALL_SHARE else 0}f} % {'cheaper' if share < 0 else 'more expensive'}"


def _compare_wait(main: Outcome, other: Outcome, *, p95: bool) -> str:
    """Compare the mean waits, and the p95 waits."""
    mean = f"mean wait {_longer(main.wait_mean_s - other.wait_mean_s)}"
    return f"{mean}, p95 wait {_longer(main.wait_p95_s - other.wait_p95_s)}" if p95 else mean


def _longer(by_s: float) -> str:
    if abs(by_s) < 1.0:
        return "the same"
    return f"{format_span(abs(by_s))} {'longer' if by_s > 0 else 'shorter'}"


UNITS = (("day", "d", 86_400.0), ("hour", "h", 3600.0), ("minute", "min", 60.0))


def format_span(duration_s: float) -> str:
    """Write a duration in words: "3.5 hours"."""
    for unit, _, length_s in UNITS:
        if duration_s >= 2 * length_s:
            return f"{_brief(duration_s / length_s)} {unit}s"
    return f"{duration_s:.0f} second{'' if round(duration_s) == 1 else 's'}"


def format_short_span(duration_s: float) -> str:
    """Write a duration for a table, with three digits: "3.52 h"."""
    for _, unit, length_s in UNITS:
        if duration_s >= 2 * length_s:
            return f"{float(f'{duration_s / length_s:.3g}'):g} {unit}"
    return f"{duration_s:.0f} s"


def _brief(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}".removesuffix(".0")


def shorten(name: str, letters: int) -> str:
    """Shorten a name to ``letters`` characters. Its end is kept: it tells apart paths and steps of a sweep."""
    return name if len(name) <= letters else f"…{name[len(name) - letters + 1 :]}"


def headline(study: Study) -> str:
    """The first sentence of a study: the cost, compared with every other site and every baseline."""
    main, others = study.main, {**study.compared, **study.baselines}
    if len(others) > 1:
        parts = "; ".join(f"with {name}: {compare(main, other, p95=False)}" for name, other in others.items())
        return f"{_unserved_prefix(main)}{main.policy} costs {format_total(main.cost)}. Compared {parts}."
    if found := sentences(study):
        return found[0]
    waits = f"mean wait {format_span(main.wait_mean_s)}, p95 wait {format_span(main.wait_p95_s)}"
    return f"{_unserved_prefix(main)}{format_total(main.cost)} for {main.jobs_served:,} jobs, {waits}."


def details(study: Study) -> list[str]:
    """What follows the headline: the sentences that it does not say, and GPU nodes that no job needed."""
    said = len(study.compared) + len(study.baselines) <= 1
    return [*sentences(study)[1 if said else 0 :], *misused_nodes(study.main)]


def misused_nodes(outcome: Outcome) -> list[str]:
    """What was spent on nodes with GPUs that ran only jobs without GPUs, type by type."""
    return [
        f"{it.misused} {name} node{'' if it.misused == 1 else 's'} for {format_total(it.cost_misused)} ran only "
        "jobs without GPUs."
        for name, it in outcome.types.items()
        if it.misused
    ]


def sentences(study: Study) -> list[str]:
    """Compare the site with each other site and baseline, and the cheapest step of the sweep with the site."""
    main = study.main
    found = [
        f"{main.policy} compared with {name}: {compare(main, other)}."
        for name, other in {**study.compared, **study.baselines}.items()
    ]
    served = max((it.jobs_served for it in study.swept.values()), default=0)
    if served:
        alike = [it for it in study.swept.values() if it.jobs_served == served]
        best = min(alike, key=lambda it: (it.cost, it.wait_mean_s))
        found.append(
            f"{best.policy}, the cheapest of the sweep, compared with {main.policy}: {compare(best, main)}."
        )
    return [f"{_unserved_prefix(main)}{found[0]}", *found[1:]] if found else found


def _unserved_prefix(main: Outcome) -> str:
    """The sentence about jobs that the site does not serve, which comes before any saving; "" if it serves all."""
    unserved = sum(main.jobs_unserved.values())
    return f"{main.policy} leaves {unserved:,} of {main.jobs:,} jobs unserved. " if unserved else ""
