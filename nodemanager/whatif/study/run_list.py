"""The list of runs that the command line asks for: the site's own, those to compare it with, and their names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.jobs import QueuePolicy
from nodemanager.core.slots import Market
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.study.run_pool import PolicyRun
from nodemanager.whatif.study.variants import Sweep, SweepError, read_sweep, variants
from nodemanager.whatif.workload.workload import WorkloadError


@dataclass(frozen=True, slots=True)
class RunList:
    """Every run of a study. ``main`` is the unchanged site. ``caution``: how the list differs from the request."""

    main: PolicyRun
    compared: Sequence[PolicyRun]
    swept: Sequence[PolicyRun]
    baselines: Sequence[PolicyRun]
    caution: str = ""
    bounding: Sequence[tuple[str, PolicyRun]] = ()  # the compared sites with bounds of their own: the fixed cluster

    @property
    def all_runs(self) -> tuple[PolicyRun, ...]:
        return (self.main, *self.compared, *self.swept, *self.baselines, *(run for _, run in self.bounding))


def list_runs(site: Site, chosen: argparse.Namespace) -> RunList:
    """List the runs to do. Raises :class:`SweepError` and :class:`~nodemanager.config.site.ConfigError`.

    Raises :class:`WorkloadError` for anything that ``--actors`` does not support.
    """
    sweep = read_sweep(chosen.sweep) if chosen.sweep else Sweep("", ())
    swept = [PolicyRun(name, variant, actors=chosen.actors) for name, variant in variants(site, sweep)]
    baselines = [PolicyRun(name, site, baseline=True) for name in _baselines(chosen.baselines)]
    own, *others = name_runs((str(site.path), *chosen.compare), {*BASELINES, *(run.name for run in swept)})
    main = PolicyRun(own, site, actors=chosen.actors, event_log=Path(chosen.journal) if chosen.journal else None)
    compared = [
        PolicyRun(name, with_seed(load_site(path, with_credentials=False), chosen.seed), actors=chosen.actors)
        for name, path in zip(others, chosen.compare, strict=True)
    ]
    if chosen.actors:
        _check_actors((main, *compared, *swept))
    bounding = [
        (run.name, PolicyRun("fixed", run.site, baseline=True))
        for run in compared
        if any(it.name == "fixed" for it in baselines) and _bounds_differ(site, run.site)
    ]
    return RunList(main, compared, swept, baselines, sweep.caution, bounding)


def _bounds_differ(site: Site, other: Site) -> bool:
    """Whether the lower bounds of two sites may differ: they depend on the nodes, and on what the cloud does."""
    return (site.node_types, site.limits, site.simulation) != (other.node_types, other.limits, other.simulation)


def with_seed(site: Site, seed: int | None) -> Site:
    """Return the site with another seed; unchanged if ``seed`` is None."""
    if seed is None:
        return site
    return replace(site, simulation=site.simulation.model_copy(update={"seed": seed}))


def name_runs(paths: Sequence[str], others: AbstractSet[str]) -> list[str]:
    """Name runs after their site files: by the file's stem, or by its path if the stem is not unique.

    ``others``: the names of runs without a site file.
    """
    stems = [Path(path).stem for path in paths]
    names: list[str] = []
    for path, stem in zip(paths, stems, strict=True):
        name = path if stem in others or stems.count(stem) > 1 else stem
        taken = {*others, *names}
        again = (f"{name} ({number})" for number in count(2))
        names.append(name if name not in taken else next(it for it in again if it not in taken))
    return names


def _check_actors(runs: Iterable[PolicyRun]) -> None:
    """Raise :class:`WorkloadError` if a run needs something that ``--actors`` does not support."""
    for run in runs:
        if run.site.policy.queue_policy is not QueuePolicy.FIFO:
            raise WorkloadError(
                f"{run.name}: --actors supports only first come, first served: replay queue_policy = "
                f"{run.site.policy.queue_policy} without --actors"
            )
        if run.site.simulation.spot_reclaims_per_hour and any(
            node_type.market is Market.SPOT for node_type in run.site.node_types
        ):
            raise WorkloadError(
                f"{run.name}: --actors does not reclaim spot nodes: replay spot_reclaims_per_hour above 0 without "
                "--actors"
            )
        if run.event_log is not None:
            raise WorkloadError("--actors does not write a journal: leave out --journal")


def _baselines(text: str) -> list[str]:
    if text in ("all", "none"):
        return list(BASELINES) if text == "all" else []
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BASELINES:
            raise SweepError(f'--baselines: unknown policy "{name}"; the known policies are {", ".join(BASELINES)}')
    return names
