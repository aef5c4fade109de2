"""The interface of a run for its faults and manager processes. ``Scenario`` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import OperatorFact
from nodemanager.core.nodes import ProviderId
from nodemanager.core.ports import JoinPort
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner.policy import Policy
from nodemanager.simulation.boot_faults import BootFaults
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World
from tests.chaos.run.history_file import HistoryFile
from tests.chaos.run.invariants import Invariants, SubmittedJobs
from tests.chaos.run.peers import PeerWorld
from tests.chaos.run.script import Script
from tests.chaos.run.upkeep import UpkeepTruth


class Run(Protocol):
    """The parts of a run that faults and manager processes use."""

    script: Script
    world: World
    policy: Policy
    flux: SimulatedFlux
    provider: SimulatedProvider
    boots: BootFaults
    invariants: Invariants
    upkeep: UpkeepTruth
    jobs: SubmittedJobs
    peers: PeerWorld | None  # None in a run without other instances
    history: HistoryFile | None  # None in a run whose history file is not disturbed
    published: Publication | None  # the last publication of the manager that acts
    decisions: int
    spend_is_knowable: bool  # whether the clock and the lists let the manager know the exact amount spent
    peace: bool  # whether the phase with faults is over
    trace: list[str] | None

    def note(self, line: str) -> None:
        """Add a line to the trace, if the run keeps one."""

    # --- manager processes ---

    def start_process(self) -> None: ...

    def kill(self, amount: float, down_s: float) -> None:
        """SIGKILL a process of the service, and start another ``down_s`` later."""

    def kill_at_a_call(self, amount: float, down_s: float) -> None:
        """Kill a process at one of its next calls, before or after the call is carried out."""

    def end_process(self, amount: float) -> None:
        """End one of several processes, and start none instead."""

    def freeze(self, amount: float, lasts_s: float) -> None:
        """SIGSTOP a process, and SIGCONT it later."""

    def use_policy(self, policy: Policy) -> None:
        """Reload the site in every process of the service, and for those that start later."""

    def tell_manager(self, fact: OperatorFact) -> None:
        """Tell the acting manager a fact, as an operator does."""

    def lose_link(self, amount: float, *, home: bool) -> None:
        """Break a connection of a process's delegator: to home, or to a peer."""

    # --- nodes and their joins ---

    def join_port(self) -> JoinPort | None:
        """The join port of a manager that starts now; None if nodes join without a service."""

    def turn_join_knob(self, name: str, probability: float) -> None:
        """Set the probability of a fault of the join service."""

    def give_notice(self, provider_id: ProviderId) -> None:
        """Have the provider announce to a node that it is about to reclaim it."""

    def our_nodes(self) -> list[ProviderId]: ...

    def running_nodes(self) -> set[ProviderId]: ...

    # --- the instance ---

    def restart_rank_0(self, down_s: float) -> None: ...

    def reconnected(self, slot: SlotName, machine: str) -> None:
        """Restore the network to a machine: its broker joins again, unless another one has the slot."""

    def resize(self, added: Mapping[SlotName, TypeName], down_s: float) -> None: ...

    def flux_is_up(self) -> bool: ...
