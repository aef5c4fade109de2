"""Builds the cloud of a run: from the keys set in ``[Simulation]``, else what was learned, else the keys' defaults.

A learned figure is the type's own if the type was observed often enough, else that of all types of its market.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodemanager.config.site import Site
from nodemanager.config.text.settings import SimulationSettings
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.whatif.cloud.cloud import SPREAD, CloudConditions
from nodemanager.whatif.cloud.distributions import Distribution, TypeBehaviour
from nodemanager.whatif.cloud.learned import LearnedCloud, Observed

SAMPLES_MIN = 10  # boots, stops, attempts: fewer are not enough to learn from


@dataclass(frozen=True, slots=True)
class Figure:
    """One property of a run's cloud, in words, and its source."""

    what: str
    node_type: str
    value: str
    source: str


def cloud_conditions(site: Site, learned: LearnedCloud | None) -> tuple[CloudConditions, tuple[Figure, ...]]:
    """Build the cloud of a site's runs. Also return its figures, for people."""
    markets = {node_type.name: node_type.market for node_type in site.node_types}
    sources = [_TypeParameters(node_type, site.simulation, learned, markets) for node_type in site.node_types]
    habits = {source.node_type.name: source.behaviour() for source in sources}
    simulation = site.simulation
    conditions = CloudConditions(habits, simulation.capacity)
    figures = _merge_types([figure for source in sources for figure in source.figures])
    if simulation.capacity:
        figures.append(Figure("nodes at once", "all types", str(simulation.capacity), "[Simulation] capacity"))
    return conditions, tuple(figures)


def _merge_types(figures: list[Figure]) -> list[Figure]:
    """Merge equal figures of several types into one."""
    types: dict[Figure, list[str]] = {}
    for figure in figures:
        types.setdefault(replace(figure, node_type=""), []).append(figure.node_type)
    return [replace(figure, node_type=", ".join(names)) for figure, names in types.items()]


def _around(mean_s: float) -> Distribution:
    return Distribution((mean_s * (1 - SPREAD), mean_s * (1 + SPREAD)))


def _default_behaviour(simulation: SimulationSettings, market: Market) -> TypeBehaviour:
    boot_s = _around(simulation.boot_delay_s)
    return TypeBehaviour(
        boot_s=boot_s,
        stop_s=_around(simulation.stop_delay_s),
        failing_s=boot_s,
        p_boot_failure=simulation.boot_failures,
        lost_per_hour=simulation.spot_reclaims_per_hour if market is Market.SPOT else 0.0,
    )


class _TypeParameters:
    """Builds one type's behaviour, and notes each figure with its source."""

    def __init__(
        self,
        node_type: NodeType,
        simulation: SimulationSettings,
        learned: LearnedCloud | None,
        markets: Mapping[TypeName, Market],
    ) -> None:
        self.node_type = node_type
        self.figures: list[Figure] = []
        self._simulation = simulation
        self._learned = learned
        self._own = learned.of_type.get(node_type.name, Observed()) if learned is not None else Observed()
        alike = [name for name, market in markets.items() if market is node_type.market]
        self._same_market = learned.merged(alike) if learned is not None else Observed()

    def behaviour(self) -> TypeBehaviour:
        default = _default_behaviour(self._simulation, self.node_type.market)
        boot_s = self._durations("boot time", "boot_delay", lambda it: it.boots_s, "boots", default.boot_s)
        p_boot_failure, failing_s = self._failures(default, boot_s)
        stop_s = self._durations("stop time", "stop_delay", lambda it: it.stops_s, "stops", default.stop_s)
        lost_per_hour = self._lost_per_hour(default)
        p_shortage, shortage_s = self._shortages()
        return TypeBehaviour(
            boot_s=boot_s,
            stop_s=stop_s,
            failing_s=failing_s,
            p_boot_failure=p_boot_failure,
            lost_per_hour=lost_per_hour,
            p_shortage=p_shortage,
            shortage_s=shortage_s,
            nodes_max=self._nodes_max(),
        )

    # --- each figure ---

    def _durations(
        self, what: str, key: str, of: Callable[[Observed], Sequence[float]], counted: str, default: Distribution
    ) -> Distribution:
        observed, source = self._choose_source(key, lambda it: len(of(it)))
        distribution = Distribution.from_samples(of(observed)) if observed is not None else default
        counts = f"{len(of(observed)):,} {counted} " if observed is not None else ""
        self._note(what, _format_distribution(distribution), f"{counts}{source}")
        return distribution

    def _failures(self, default: TypeBehaviour, boot_s: Distribution) -> tuple[float, Distribution]:
        observed, source = self._choose_source("boot_failures", lambda it: len(it.boots_s) + len(it.failing_s))
        if observed is None:
            if default.p_boot_failure:
                self._note("boots that fail", f"{default.p_boot_failure:.2%}", source)
            return default.p_boot_failure, boot_s
        failed, boots = len(observed.failing_s), len(observed.boots_s) + len(observed.failing_s)
        failing_s = Distribution.from_samples(observed.failing_s) if failed else boot_s
        after = f", given up after {_format_distribution(failing_s)}" if failed else ""
        self._note("boots that fail", f"{failed / boots:.2%}{after}", f"{failed:,} of {boots:,} boots {source}")
        return failed / boots, failing_s

    def _lost_per_hour(self, default: TypeBehaviour) -> float:
        key = "spot_reclaims_per_hour" if self.node_type.market is Market.SPOT else ""
        observed, source = self._choose_source(key, lambda it: it.nodes_up if it.up_s > 0 else 0)
        if observed is None:
            if default.lost_per_hour:
                self._note("nodes reclaimed", f"{default.lost_per_hour:g} per node-hour", source)
            return default.lost_per_hour
        hours = observed.up_s / 3600.0
        value = f"{observed.lost / hours:.4f} per node-hour" if observed.lost else "none"
        self._note("nodes reclaimed or lost", value, f"{observed.lost:,} in {hours:,.0f} node-hours {source}")
        return observed.lost / hours

    def _shortages(self) -> tuple[float, Distribution]:
        observed, source = self._choose_source("capacity", lambda it: it.attempts)
        if observed is None:
            return 0.0, Distribution((0.0,))
        short = len(observed.shortages_s)
        lasting_s = Distribution.from_samples(observed.shortages_s) if short else Distribution((0.0,))
        lasts = f" of attempts, for {_format_distribution(lasting_s)}" if short else ""
        value = f"{short / observed.attempts:.2%}{lasts}" if short else "never"
        self._note("capacity shortages", value, f"{short:,} of {observed.attempts:,} attempts {source}")
        return short / observed.attempts, lasting_s

    def _nodes_max(self) -> int | None:
        most = None if self._is_set("capacity") else self._own.nodes_max
        if most is not None:
            self._note("quota", f"{most} nodes", f"the number of nodes when it was met, in {self._source}")
        return most

    # --- source they are ---

    def _choose_source(self, key: str, count: Callable[[Observed], int]) -> tuple[Observed | None, str]:
        """Choose the observations for a figure, and describe their source; None if ``[Simulation]`` decides."""
        if self._is_set(key):
            return None, f"[Simulation] {key}"
        if self._learned is None:
            return None, f"the default of [Simulation] {key}"
        if count(self._own) >= SAMPLES_MIN:
            return self._own, f"in {self._source}"
        if count(self._same_market) >= SAMPLES_MIN:
            return self._same_market, f"of all {self.node_type.market} types in {self._source}"
        return None, f"the default of [Simulation] {key}: only {count(self._same_market)} in {self._source}"

    def _is_set(self, key: str) -> bool:
        fields = type(self._simulation).model_fields
        return any(
            key in (name, fields[name].validation_alias) for name in self._simulation.model_fields_set if key
        )

    @property
    def _source(self) -> str:
        return self._learned.source if self._learned is not None else ""

    def _note(self, what: str, value: str, source: str) -> None:
        self.figures.append(Figure(what, self.node_type.name, value, source))


def _format_distribution(distribution: Distribution) -> str:
    low, middle, high = (distribution.quantile(share) for share in (0.05, 0.5, 0.95))
    if low == high:
        return f"{middle:,.0f} s"
    return f"{middle:,.0f} s ({low:,.0f} to {high:,.0f} s, nine times in ten)"
