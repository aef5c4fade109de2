"""What a study shows, in plain sentences."""

from __future__ import annotations

from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Study

NOTABLE = 0.05  # of the longer of two waits
NOTABLE_S = 10.0


def compare(main: Outcome, other: Outcome) -> str:
    """In a few words, what the site's policy is beside another: "12 % cheaper, p95 wait 3 minutes longer".

    Where they serve not as many jobs, neither is cheaper or quicker than the other: it does something else.
    """
    more = main.jobs_served - other.jobs_served
    if more:
        fewer = f"{abs(more):,} job{'' if abs(more) == 1 else 's'} {'more' if more > 0 else 'fewer'}"
        return f"serves {fewer}, for {main.cost:,.2f} and not {other.cost:,.2f}"
    if not main.jobs_served:
        return f"neither serves a job, for {main.cost:,.2f} and {other.cost:,.2f}"
    return f"{_compare_cost(main, other)}, {_compare_wait(main, other)}"


def _compare_cost(main: Outcome, other: Outcome) -> str:
    if other.cost <= 0:
        return f"{main.cost - other.cost:+.2f} in cost"
    share = (main.cost / other.cost - 1) * 100
    if abs(share) < 0.5:
        return "costs the same"
    return f"{abs(share):.0f} % {'cheaper' if share < 0 else 'dearer'}"


def _compare_wait(main: Outcome, other: Outcome) -> str:
    """The p95, and the mean where that is notably another and the p95 is not."""
    said = f"p95 wait {_longer(main.wait_p95_s - other.wait_p95_s)}"
    if _notable(main.wait_mean_s, other.wait_mean_s) and not _notable(main.wait_p95_s, other.wait_p95_s):
        said += f", mean wait {_longer(main.wait_mean_s - other.wait_mean_s)}"
    return said


def _longer(by_s: float) -> str:
    if abs(by_s) < 1.0:
        return "the same"
    return f"{format_span(abs(by_s))} {'longer' if by_s > 0 else 'shorter'}"


def _notable(one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) >= max(NOTABLE_S, NOTABLE * max(one_s, other_s))


UNITS = (("day", "d", 86_400.0), ("hour", "h", 3600.0), ("minute", "min", 60.0))


def format_span(duration_s: float) -> str:
    """A duration as people say it: "3.5 hours"."""
    for unit, _, length_s in UNITS:
        if duration_s >= 2 * length_s:
            return f"{_brief(duration_s / length_s)} {unit}s"
    return f"{duration_s:.0f} second{'' if round(duration_s) == 1 else 's'}"


def format_short_span(duration_s: float) -> str:
    """The same for a table, to three figures: "3.52 h"."""
    for _, unit, length_s in UNITS:
        if duration_s >= 2 * length_s:
            return f"{float(f'{duration_s / length_s:.3g}'):g} {unit}"
    return f"{duration_s:.0f} s"


def _brief(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}".removesuffix(".0")


def shorten(name: str, letters: int) -> str:
    """A name in so many letters. Its end is kept: by that the values of a sweep, and paths, are told apart."""
    return name if len(name) <= letters else f"…{name[len(name) - letters + 1 :]}"


def headline(study: Study) -> str:
    """The plain sentence on top: beside the first site to compare with, or the first baseline."""
    said = sentences(study)
    if said:
        return said[0]
    main = study.main
    p95_wait = format_span(main.wait_p95_s)
    return f"{_unserved_prefix(main)}{main.cost:,.2f} for {main.jobs_served:,} jobs, p95 wait {p95_wait}."


def sentences(study: Study) -> list[str]:
    """What the site is beside each other one, and what the sweep has to offer beside the site."""
    main = study.main
    said = [
        f"{main.policy} beside {name}: {compare(main, other)}."
        for name, other in {**study.compared, **study.baselines}.items()
    ]
    served = max((it.jobs_served for it in study.swept.values()), default=0)
    if served:
        alike = [it for it in study.swept.values() if it.jobs_served == served]
        best = min(alike, key=lambda it: (it.cost, it.wait_mean_s))
        said.append(f"{best.policy}, the cheapest of the sweep, beside {main.policy}: {compare(best, main)}.")
    return [f"{_unserved_prefix(main)}{said[0]}", *said[1:]] if said else said


def _unserved_prefix(main: Outcome) -> str:
    """What a site does not serve comes before all that it saves."""
    left = sum(main.jobs_unserved.values())
    return f"{main.policy} leaves {left:,} of {main.jobs:,} jobs unserved. " if left else ""
