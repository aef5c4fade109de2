"""How the cloud of a run is: what ``[Simulation]`` says, else what was learned, else ``[Simulation]``'s defaults.

Of each type the figures are its own where enough was seen of it, else those of all types of its market together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodemanager.config.site import Site
from nodemanager.config.text.settings import SimulationSettings
from nodemanager.core.slots import Market, NodeType, TypeName
from nodemanager.whatif.cloud.cloud import SPREAD, CloudConditions
from nodemanager.whatif.cloud.distributions import Distribution, TypeBehaviour
from nodemanager.whatif.cloud.learned import Learned, Observed

SAMPLES_MIN = 10  # boots, ends, asks: fewer say too little


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that the cloud of a run does, in words, and where that is from."""

    what: str
    node_type: str
    value: str
    source: str


def cloud_conditions(site: Site, learned: Learned | None) -> tuple[CloudConditions, tuple[Figure, ...]]:
    """The cloud of a site's runs, and what it is made of."""
    markets = {node_type.name: node_type.market for node_type in site.node_types}
    sources = [_TypeParameters(node_type, site.simulation, learned, markets) for node_type in site.node_types]
    habits = {source.node_type.name: source.behaviour() for source in sources}
    simulation = site.simulation
    conditions = CloudConditions(habits, simulation.capacity)
    figures = _merge_types([figure for source in sources for figure in source.figures])
    if simulation.capacity:
        figures.append(
            Figure("nodes to be had at once", "all types", str(simulation.capacity), "[Simulation] capacity")
        )
    return conditions, tuple(figures)


def _merge_types(figures: list[Figure]) -> list[Figure]:
    """One for all types of which the same is so."""
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
    """Where one type's figures are from."""

    def __init__(
        self,
        node_type: NodeType,
        simulation: SimulationSettings,
        learned: Learned | None,
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
        usual = _default_behaviour(self._simulation, self.node_type.market)
        boot_s = self._durations("a boot", "boot_delay", lambda it: it.boots_s, "boots", usual.boot_s)
        p_boot_failure, failing_s = self._failures(usual, boot_s)
        stop_s = self._durations("an end", "stop_delay", lambda it: it.stops_s, "ends", usual.stop_s)
        lost_per_hour = self._lost_per_hour(usual)
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
        self, what: str, key: str, of: Callable[[Observed], Sequence[float]], counted: str, usual: Distribution
    ) -> Distribution:
        seen, whose = self._choose_source(key, lambda it: len(of(it)))
        spread = Distribution.from_samples(of(seen)) if seen is not None else usual
        source = f"{len(of(seen)):,} {counted} {whose}" if seen is not None else whose
        self._note(what, _format_distribution(spread), source)
        return spread

    def _failures(self, usual: TypeBehaviour, boot_s: Distribution) -> tuple[float, Distribution]:
        seen, whose = self._choose_source("boot_failures", lambda it: len(it.boots_s) + len(it.failing_s))
        if seen is None:
            if usual.p_boot_failure:
                self._note("boots that fail", f"{usual.p_boot_failure:.2%}", whose)
            return usual.p_boot_failure, boot_s
        failed, boots = len(seen.failing_s), len(seen.boots_s) + len(seen.failing_s)
        failing_s = Distribution.from_samples(seen.failing_s) if failed else boot_s
        after = f", given up after {_format_distribution(failing_s)}" if failed else ""
        self._note("boots that fail", f"{failed / boots:.2%}{after}", f"{failed:,} of {boots:,} boots {whose}")
        return failed / boots, failing_s

    def _lost_per_hour(self, usual: TypeBehaviour) -> float:
        key = "spot_reclaims_per_hour" if self.node_type.market is Market.SPOT else ""
        seen, whose = self._choose_source(key, lambda it: it.nodes_up if it.up_s > 0 else 0)
        if seen is None:
            if usual.lost_per_hour:
                self._note("nodes taken back", f"{usual.lost_per_hour:g} an hour of one", whose)
            return usual.lost_per_hour
        hours = seen.up_s / 3600.0
        said = f"{seen.lost / hours:.4f} an hour of one" if seen.lost else "none"
        self._note("nodes taken back or lost", said, f"{seen.lost:,} in {hours:,.0f} node-hours {whose}")
        return seen.lost / hours

    def _shortages(self) -> tuple[float, Distribution]:
        seen, whose = self._choose_source("capacity", lambda it: it.attempts)
        if seen is None:
            return 0.0, Distribution((0.0,))
        short = len(seen.shortages_s)
        lasting_s = Distribution.from_samples(seen.shortages_s) if short else Distribution((0.0,))
        lasts = f" of the asks, for {_format_distribution(lasting_s)}" if short else ""
        said = f"{short / seen.attempts:.2%}{lasts}" if short else "never"
        self._note("none to be had", said, f"{short:,} of {seen.attempts:,} asks {whose}")
        return short / seen.attempts, lasting_s

    def _nodes_max(self) -> int | None:
        most = None if self._is_set("capacity") else self._own.nodes_max
        if most is not None:
            self._note("quota", f"{most} nodes", f"so many stood when it was met, in {self._source}")
        return most

    # --- whose they are ---

    def _choose_source(self, key: str, count: Callable[[Observed], int]) -> tuple[Observed | None, str]:
        """What was seen that is to be gone by, and of whom; None where ``[Simulation]`` is, with its key."""
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


def _format_distribution(spread: Distribution) -> str:
    low, middle, high = (spread.quantile(share) for share in (0.05, 0.5, 0.95))
    if low == high:
        return f"{middle:,.0f} s"
    return f"{middle:,.0f} s ({low:,.0f} to {high:,.0f} s, nine times in ten)"
