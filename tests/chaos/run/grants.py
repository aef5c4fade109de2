"""Who was let in as what: each grant of the join service, compared with the providers' own records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodemanager.core.nodes import LaunchId, ProviderId, RosterEntry, stamp_of
from nodemanager.core.slots import CloudName
from nodemanager.simulation.cloud.provider import SimulatedProvider


@dataclass
class GrantChecks:
    """Checks each grant: an instance is let in once, as the launch that its own cloud made it for.

    It reads neither the service's store nor the manager's mind: only what the providers were asked to make.
    """

    providers: Mapping[CloudName, SimulatedProvider]
    require: Callable[[bool, str], None]
    launch_of: dict[str, LaunchId] = field(default_factory=dict)  # by machine that was let in
    machine_of: dict[LaunchId, str] = field(default_factory=dict)
    in_batches: Counter[CloudName] = field(default_factory=Counter)  # machines let in by the ticket of a batch

    def note_grant(self, machine: str, instance: ProviderId, entry: RosterEntry, *, batch: str) -> None:
        """Check that a machine was let in rightly. ``instance``: the one that it proves to be.

        ``batch``: whose ticket it has shown; "" for one of its own.
        """
        launch = entry.launch
        made_for = {
            (cloud, line.launch)
            for cloud, provider in self.providers.items()
            for line in provider.bill()
            if line.provider_id == instance
        }
        self.require(
            made_for == {(entry.cloud, launch)},
            f"{machine} was let in as {launch} of {entry.cloud}, and {instance} was made for {made_for}",
        )
        self.require(bool(stamp_of(launch, entry.slot)), f"{machine} was given {entry.slot}, and is {launch}")
        self.require(
            not batch or stamp_of(launch, entry.slot) == batch, f"{launch} was let in by the ticket of {batch}"
        )
        before = self.launch_of.setdefault(machine, launch)
        self.require(before == launch, f"{machine} was let in as {before} and as {launch}")
        other = self.machine_of.setdefault(launch, machine)
        self.require(other == machine, f"{launch} was let in twice: {other} and {machine}")
        if batch:
            self.in_batches[entry.cloud] += 1

    def check_end(self, cluster_uuid: str, planted: set[ProviderId]) -> None:
        """After a run: no launch had two instances, in one cloud or in both. Planted ones are not counted."""
        made = Counter(
            line.launch
            for provider in self.providers.values()
            for line in provider.bill()
            if line.cluster_uuid == cluster_uuid and line.provider_id not in planted
        )
        twice = [launch for launch, count in made.items() if count > 1]
        self.require(not twice, f"launches with two instances: {twice}")
