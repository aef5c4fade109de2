"""What a study shows, in plain sentences."""

from __future__ import annotations

from nodemanager.whatif.outcome import Outcome
from nodemanager.whatif.study import Study


def comparison(main: Outcome, other: Outcome) -> str:
    """In a few words, what the site's policy is beside another: "12 % cheaper, p95 wait 3 minutes longer"."""
    parts = [_cost(main, other), _wait(main, other)]
    more = main.jobs_served - other.jobs_served
    if more:  # what it costs says little then
        parts.insert(
            0, f"serves {abs(more):,} job{'' if abs(more) == 1 else 's'} {'more' if more > 0 else 'fewer'}"
        )
    return ", ".join(parts)


def _cost(main: Outcome, other: Outcome) -> str:
    if other.cost <= 0:
        return f"{main.cost - other.cost:+.2f} in cost"
    share = (main.cost / other.cost - 1) * 100
    if abs(share) < 0.5:
        return "costs the same"
    return f"{abs(share):.0f} % {'cheaper' if share < 0 else 'dearer'}"


def _wait(main: Outcome, other: Outcome) -> str:
    longer_s = main.wait_p95_s - other.wait_p95_s
    if abs(longer_s) < 1.0:
        return "p95 wait the same"
    return f"p95 wait {span(abs(longer_s))} {'longer' if longer_s > 0 else 'shorter'}"


UNITS = (("day", "d", 86_400.0), ("hour", "h", 3600.0), ("minute", "min", 60.0))


def span(duration_s: float) -> str:
    """A duration as people say it: "3.5 hours"."""
    for unit, _, length_s in UNITS:
        if duration_s >= 2 * length_s:
            return f"{_brief(duration_s / length_s)} {unit}s"
    return f"{duration_s:.0f} second{'' if round(duration_s) == 1 else 's'}"


def short_span(duration_s: float) -> str:
    """The same for a table, to three figures: "3.52 h"."""
    for _, unit, length_s in UNITS:
        if duration_s >= 2 * length_s:
            return f"{float(f'{duration_s / length_s:.3g}'):g} {unit}"
    return f"{duration_s:.0f} s"


def _brief(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}".removesuffix(".0")


def shortened(name: str, letters: int) -> str:
    """A name in so many letters. Its end is kept: by that the values of a sweep, and paths, are told apart."""
    return name if len(name) <= letters else f"…{name[len(name) - letters + 1 :]}"


def headline(study: Study) -> str:
    """The plain sentence on top: beside the first site to compare with, or the first baseline."""
    said = sentences(study)
    if said:
        return said[0]
    main = study.main
    return f"{main.cost:,.2f} for {main.jobs_served:,} jobs, p95 wait {span(main.wait_p95_s)}."


def sentences(study: Study) -> list[str]:
    """What the site is beside each other one, and what the sweep has to offer beside the site."""
    main = study.main
    said = [
        f"{main.policy} beside {name}: {comparison(main, other)}."
        for name, other in {**study.compared, **study.baselines}.items()
    ]
    if study.swept:
        swept = study.swept.values()
        served = max(it.jobs_served for it in swept)
        best = min((it for it in swept if it.jobs_served == served), key=lambda it: (it.cost, it.wait_mean_s))
        said.append(f"{best.policy}, the cheapest of the sweep, beside {main.policy}: {comparison(best, main)}.")
    return said
