"""The runs that are asked for on the command line: the site's own, those beside it, and what each is called."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from nodemanager.config.site import Site, load_site
from nodemanager.core.jobs import QueuePolicy
from nodemanager.core.slots import Market
from nodemanager.whatif.replay.baselines import BASELINES
from nodemanager.whatif.study.run_pool import PolicyRun
from nodemanager.whatif.study.variants import Sweep, SweepError, read_sweep, variants
from nodemanager.whatif.workload.workload import WorkloadError


@dataclass(frozen=True, slots=True)
class RunList:
    """Every run of a study, ``main`` the site as it stands. ``caution``: in what it is not what was asked for."""

    main: PolicyRun
    compared: Sequence[PolicyRun]
    swept: Sequence[PolicyRun]
    baselines: Sequence[PolicyRun]
    caution: str = ""

    @property
    def all_runs(self) -> tuple[PolicyRun, ...]:
        return (self.main, *self.compared, *self.swept, *self.baselines)


def list_runs(site: Site, chosen: argparse.Namespace) -> RunList:
    """What is to be run. Raises :class:`SweepError` and :class:`~nodemanager.config.site.ConfigError`.

    What ``--actors`` cannot do is a :class:`WorkloadError`.
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
    return RunList(main, compared, swept, baselines, sweep.caution)


def with_seed(site: Site, seed: int | None) -> Site:
    """The site with another seed, where one is given."""
    if seed is None:
        return site
    return replace(site, simulation=site.simulation.model_copy(update={"seed": seed}))


def name_runs(paths: Sequence[str], others: AbstractSet[str]) -> list[str]:
    """What runs are called by their sites' files: the name of each, or its path where that would not tell it apart.

    ``others``: what runs are called that have no file of their own.
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
    """Raises :class:`WorkloadError` for what a site asks for and the simulated Flux and cloud do not do."""
    for run in runs:
        if run.site.policy.queue_policy is not QueuePolicy.FIFO:
            raise WorkloadError(
                f"{run.name}: --actors has jobs come first, served first: queue_policy = "
                f"{run.site.policy.queue_policy} can only be replayed without --actors"
            )
        if run.site.simulation.spot_reclaims_per_hour and any(
            node_type.market is Market.SPOT for node_type in run.site.node_types
        ):
            raise WorkloadError(
                f"{run.name}: --actors takes back no spot node: spot_reclaims_per_hour above 0 can only be "
                "replayed without --actors"
            )
        if run.event_log is not None:
            raise WorkloadError("--journal is not for --actors, which writes none")


def _baselines(text: str) -> list[str]:
    if text in ("all", "none"):
        return list(BASELINES) if text == "all" else []
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in BASELINES:
            raise SweepError(f'--baselines: no such policy "{name}"; known are {", ".join(BASELINES)}')
    return names
