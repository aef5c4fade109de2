"""Which settings would have saved most: a small sweep over the settings that cost money without doing work.

Each run repeats the site's own jobs. Its cost depends on the seed too, by the boot times and failures that the
simulated cloud draws. So every setting that looks good runs again with other seeds, on the same seeds as the site
itself, and counts only if it saves more than the site's own cost varies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from nodemanager.config.site import Site
from nodemanager.config.text.edit import KeyChange
from nodemanager.core.jobs import PackingPolicy
from nodemanager.core.notation import parse_fsd
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.run_list import with_seed
from nodemanager.whatif.study.variants import with_key

SUGGESTED_MAX = 3
TRIED_AGAIN_MAX = 5  # settings that run with every seed
SEEDS = 3
SHARE_MIN = 0.01  # of the cost: less is not worth a change of the site
IDLE_TIMEOUTS = ("30s", "1m", "2m", "5m", "10m", "20m")
PATIENCES = ("0s", "1m", "5m", "15m")
NODE = "Node "

Runs = Sequence[tuple[str, Site]]
Measure = Callable[[Runs], Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a site costs and how long its jobs wait, with each seed."""

    outcomes: tuple[Outcome, ...]

    @property
    def cost(self) -> float:
        return fmean(it.cost for it in self.outcomes)

    @property
    def wait_mean_s(self) -> float:
        return fmean(it.wait_mean_s for it in self.outcomes)

    @property
    def wait_p95_s(self) -> float:
        return fmean(it.wait_p95_s for it in self.outcomes)

    @property
    def varies(self) -> float:
        """By how much the cost differs from seed to seed."""
        costs = [it.cost for it in self.outcomes]
        return max(costs) - min(costs)


@dataclass(frozen=True, slots=True)
class Suggested:
    """A setting with its figures: alone, and with those suggested before it."""

    change: KeyChange
    alone: Figures
    together: Figures


@dataclass(frozen=True, slots=True)
class Advice:
    """The suggested settings, best first. ``noise``: savings up to this do not count. ``tried``: how many ran."""

    before: Figures
    suggested: tuple[Suggested, ...]
    noise: float
    tried: int


def changes_to_try(site: Site) -> Iterator[KeyChange]:
    """Yield the settings of the sweep that differ from the site's."""
    policy, limits = site.policy, site.limits
    for value in IDLE_TIMEOUTS:
        if parse_fsd(value) != policy.idle_timeout_s:
            yield KeyChange("Policy", "idle_timeout", value)
    for value in PATIENCES:
        if parse_fsd(value) != policy.patience_s:
            yield KeyChange("Policy", "patience", value)
    for packing in PackingPolicy:
        if packing is not policy.packing:
            yield KeyChange("Policy", "packing", packing)
    yield KeyChange("Policy", "consolidate", "no" if policy.consolidate else "yes")
    for count in _fewer(limits.nodes_min):
        yield KeyChange("Limits", "nodes_min", str(count))
    for node_type in site.node_types:
        for count in _fewer(node_type.spares):
            yield KeyChange(f"{NODE}{node_type.name}", "spares", str(count))


def _fewer(count: int) -> Sequence[int]:
    return sorted({0, count // 2}) if count else ()


def with_change(site: Site, change: KeyChange) -> Site:
    """Return the site with a setting of the sweep."""
    if not change.section.startswith(NODE):
        return with_key(site, change.key, change.value)
    name = change.section.removeprefix(NODE)
    types = (replace(it, spares=int(change.value)) if it.name == name else it for it in site.node_types)
    return replace(site, node_types=tuple(types))


def advise(site: Site, measure: Measure, longer_wait_s: float) -> Advice:
    """Find the settings that save most. ``longer_wait_s``: how much longer the mean wait may become with them.

    A setting counts if it serves as many jobs, saves with every seed, and saves more than noise on the mean.
    """
    search = _Search(site, measure, longer_wait_s)
    return search.run()


class _Search:
    def __init__(self, site: Site, measure: Measure, longer_wait_s: float) -> None:
        self._site = site
        self._measure = measure
        self._longer_wait_s = longer_wait_s
        seed = site.simulation.seed
        self._seeds = range(seed, seed + SEEDS)

    def run(self) -> Advice:
        changes = list(changes_to_try(self._site))
        first, *rest = self._seeds
        once = self._figures([(), *((change,) for change in changes)], [first])
        promising = self._most_promising(once[0], list(zip(changes, once[1:], strict=True)))
        again = self._figures([(), *((change,) for change, _ in promising)], rest)
        before = _joined(once[0], again[0])
        alone = [
            (change, _joined(figures, more)) for (change, figures), more in zip(promising, again[1:], strict=True)
        ]
        noise = max(before.varies, SHARE_MIN * before.cost)
        good = sorted(
            ((change, figures) for change, figures in alone if self._saves(before, figures, before, noise)),
            key=lambda it: it[1].cost,
        )
        return Advice(before, tuple(self._combine(before, good, noise)), noise, len(changes))

    def _most_promising(
        self, before: Figures, tried: Sequence[tuple[KeyChange, Figures]]
    ) -> Sequence[tuple[KeyChange, Figures]]:
        """Choose the cheapest value of each key; at most ``TRIED_AGAIN_MAX``."""
        best: dict[tuple[str, str], tuple[KeyChange, Figures]] = {}
        for change, figures in sorted(tried, key=lambda it: it[1].cost):
            if self._saves(before, figures, before, SHARE_MIN * before.cost):
                best.setdefault((change.section, change.key), (change, figures))
        return list(best.values())[:TRIED_AGAIN_MAX]

    def _combine(
        self, before: Figures, good: Sequence[tuple[KeyChange, Figures]], noise: float
    ) -> Iterator[Suggested]:
        """Add one setting after the other, as long as each saves more than those before it do without it."""
        chosen: list[KeyChange] = []
        so_far = before
        for change, alone in good:
            if len(chosen) == SUGGESTED_MAX:
                return
            together = alone
            if chosen:
                (together,) = self._figures([(*chosen, change)], self._seeds)
            if self._saves(so_far, together, before, noise):
                chosen.append(change)
                so_far = together
                yield Suggested(change, alone, together)

    def _saves(self, than: Figures, figures: Figures, before: Figures, at_least: float) -> bool:
        pairs = list(zip(than.outcomes, figures.outcomes, strict=True))
        return (
            all(new.serves_as_many(old) and new.cost < old.cost for old, new in pairs)
            and than.cost - figures.cost > at_least
            and figures.wait_mean_s - before.wait_mean_s <= self._longer_wait_s
        )

    def _figures(self, lists: Sequence[tuple[KeyChange, ...]], seeds: Sequence[int]) -> list[Figures]:
        """Measure the site with each list of changes and each seed."""
        runs = [
            (_name(changes, seed), with_seed(self._changed(changes), seed)) for changes in lists for seed in seeds
        ]
        outcomes = self._measure(runs)
        count = len(seeds)
        return [Figures(tuple(outcomes[at : at + count])) for at in range(0, len(outcomes), count)]

    def _changed(self, changes: tuple[KeyChange, ...]) -> Site:
        site = self._site
        for change in changes:
            site = with_change(site, change)
        return site


def _joined(some: Figures, more: Figures) -> Figures:
    return Figures((*some.outcomes, *more.outcomes))


def _name(changes: tuple[KeyChange, ...], seed: int) -> str:
    settings = ", ".join(f"{it.key}={it.value}" for it in changes) or "the site"
    return f"{settings}, seed {seed}"
