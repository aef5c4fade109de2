"""Runs of ensembles on the simulated instance, whose process can be killed at any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from nodemanager.core.slots import Rank, Slot, SlotName
from nodemanager.ensemble.deeds import Call, Deed, Fired, Submit
from nodemanager.ensemble.file.schema import read_ensemble
from nodemanager.ensemble.ports import RunRecord
from nodemanager.ensemble.session import Session
from nodemanager.simulation.flux.ensemble_port import EnsembleHost, SimulatedEnsemblePort
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World
from tests.contract.flux_subjects import SMALL
from tests.paths import ROOT

DATA = ROOT / "tests" / "data" / "ensembles"
Returned = Mapping[str, Any] | None


class Functions:
    """Custom functions in Python, by name. They answer after a moment, as a worker would."""

    def __init__(self, port: SimulatedEnsemblePort, functions: Mapping[str, Callable[[Call], Returned]]) -> None:
        self._port = port
        self._functions = functions

    def call(self, call: Call, then: Callable[[Returned, str], None]) -> None:
        self._port.after(0.01, lambda: then(self._functions[call.function](call), ""))


class Nodes:
    """An instance that can have up to ``nodes_max`` nodes."""

    def __init__(self, port: SimulatedEnsemblePort, nodes_max: int) -> None:
        self._port = port
        self._nodes_max = nodes_max
        self.floors: list[int] = []

    def keep(self, floor: int, change: int, then: Callable[[str], None]) -> None:
        def answer() -> None:
            if floor > self._nodes_max:
                then(f"at most {self._nodes_max} nodes")
            else:
                self.floors.append(floor)
                then("")

        self._port.after(0.01, answer)


class SimulatedRun:
    """One run of a file on a simulated instance with ``nodes`` nodes of 2 cores."""

    def __init__(
        self,
        text: str,
        *,
        seed: int = 1,
        nodes: int = 2,
        until_done: bool = True,
        run_s: Mapping[str, float] | None = None,
        functions: Mapping[str, Callable[[Call], Returned]] | None = None,
        nodes_max: int = 10,
    ) -> None:
        self.ensemble, self.warnings = read_ensemble(text)
        self.world = World(seed)
        slots = [Slot(SlotName(f"slot{rank}"), Rank(rank), SMALL.name) for rank in range(1, nodes + 1)]
        self.flux = SimulatedFlux(self.world, [SMALL], slots)
        for slot in slots:
            self.flux.broker_up(slot.name)
        self.world.advance_by(1)
        times = run_s or {}
        self.host = EnsembleHost(self.flux, lambda spec: times.get(spec["attributes"]["user"].get("group"), 0.1))
        self.deeds: list[Deed] = []
        self.outcome = ""
        self.starts = 0
        self._until_done = until_done
        self._functions = functions or {}
        self._nodes_max = nodes_max
        self.start()

    def start(self) -> None:
        """Start a process that runs the ensemble."""
        self.starts += 1
        self.port = SimulatedEnsemblePort(self.host, "run-1", Random(f"{self.world.seed}/{self.starts}"))
        record = RunRecord("run-1", "test.yaml", "", "/", self.world.wall_at())
        self.nodes = Nodes(self.port, self._nodes_max)
        self.session = Session(
            self.ensemble,
            record,
            self.port,
            functions=Functions(self.port, self._functions),
            nodes=self.nodes,
            listener=self.deeds.append,
            on_end=self._end,
            until_done=self._until_done,
        )
        self.session.start()

    def kill(self) -> None:
        self.port.kill()

    def _end(self, outcome: str) -> None:
        self.outcome = outcome

    def until_end(self, within_s: float = 600.0) -> str:
        """Let the world run until the ensemble ends, and return why."""
        deadline_s = self.world.now_s + within_s
        while not self.outcome:
            assert self.world.now_s < deadline_s, f"it goes on: {self.session.summary()}"
            self.world.advance_by(0.05)
        return self.outcome

    def advance(self, seconds: float) -> None:
        self.world.advance_by(seconds)

    # --- what happened ---

    def counts(self, group: str) -> dict[str, int]:
        return {name: count for name, count in self.session.engine.metrics.counts(group).items() if count}

    def submitted(self) -> list[str]:
        """The groups of all jobs of the instance, in the order of their submission."""
        return [
            record["jobspec"]["attributes"]["user"]["group"]
            for record in self.host.records.values()
            if "group" in record["jobspec"]["attributes"].get("user", {})
        ]

    def keys(self) -> list[str]:
        """The keys of all jobs of the instance."""
        return [
            record["jobspec"]["attributes"]["user"]["member"]
            for record in self.host.records.values()
            if "member" in record["jobspec"]["attributes"].get("user", {})
        ]

    def fired(self) -> list[tuple[int, int]]:
        """Each rule that ran, with the number of the run."""
        return [(deed.rule, deed.run) for deed in self.deeds if isinstance(deed, Fired)]

    def orders_to_submit(self) -> list[str]:
        return [deed.key for deed in self.deeds if isinstance(deed, Submit)]
