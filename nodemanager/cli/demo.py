"""Show the whole loop in a minute: jobs are submitted, nodes boot, jobs run, a node is lost, nodes are terminated.

It runs on the simulated Flux and cloud of ``config/embedded.ini``, or with ``--real`` on a real Flux with local
nodes. The service is the one used in production, and the display shows the snapshots that it publishes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import mean
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from nodemanager.actors.manager import Publication
from nodemanager.cli.demo_real import real_setup
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.jobs import JobId, JobState
from nodemanager.core.nodes import USABLE, CloudState, LaunchId, NodeState
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.orders import BootNode, DrainNode
from nodemanager.core.reason_text import ClockReading, format_duration, format_money
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.delegation.jobs import PeerName
from nodemanager.delegation.view import DelegationView, PeerRun
from nodemanager.planner import billing
from nodemanager.service import logs
from nodemanager.service.assembly.cluster import with_cluster_uuid
from nodemanager.service.assembly.ports import SitePorts
from nodemanager.service.service import Service
from nodemanager.simulation.embedded import EmbeddedWorld, start_embedded_world
from nodemanager.simulation.workload import BUILTIN

EMBEDDED = Path(__file__).parents[2] / "config" / "embedded.ini"
LIMIT_S = 58.0
LOSE_A_NODE_AT_S = 400.0


class DemoSetup(Protocol):
    """What the demo runs on. Its ``step`` submits jobs and, once, takes a node away."""

    @property
    def site(self) -> Site: ...

    @property
    def ports(self) -> SitePorts: ...

    @property
    def held(self) -> int:
        """The number of jobs that their users hold, and that therefore never run."""
        ...

    def step(self) -> None:
        """Take the steps that are due. Called several times a second."""
        ...

    def has_submitted_all(self) -> bool: ...


@dataclass
class SimulatedSetup:
    """The simulated Flux and cloud, which submits its jobs itself."""

    site: Site
    world: EmbeddedWorld
    lost: bool = False
    held: int = sum(submission.count for submission in BUILTIN if submission.urgency == 0)

    @property
    def ports(self) -> SitePorts:
        world = self.world
        return SitePorts(world.clock, world.flux_port, world.clouds, world.watch, world.close)

    def step(self) -> None:
        """Take a busy node away, once."""
        if not self.lost and self.world.world.now_s >= LOSE_A_NODE_AT_S:
            at_work = {self.site.slots[grant.rank - 1] for _, grant in self.world.flux.held_grants()}
            for node in self.world.provider.nodes():
                if not self.lost and node.identity is not None and node.identity.slot in at_work:
                    self.lost = True
                    self.world.provider.kill(node.provider_id)

    def has_submitted_all(self) -> bool:
        return self.world.workload_done


class Story:
    """What happens, a line each, with the time since the start on the service's clock."""

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._states: dict[str, NodeState] = {}  # by slot
        self._told: list[str] = []

    def take_in(self, published: Publication) -> None:
        snapshot = published.snapshot
        self._began_at = snapshot.wall_at if self._began_at is None else self._began_at
        clock = ClockReading(snapshot.now_s, snapshot.wall_at)
        since = format_duration(snapshot.wall_at - self._began_at)
        self._told += [f"{since:>7}  {line}" for line in (*self._decided(published, clock), *self._seen(published))]

    def new_lines(self) -> list[str]:
        """The lines since the last call."""
        told, self._told = self._told, []
        return told

    @staticmethod
    def _decided(published: Publication, clock: ClockReading) -> Iterator[str]:
        bought: dict[tuple[TypeName, str], list[str]] = {}
        for action in published.plan.actions:
            why = clock.sentence(action.why) if action.why is not None else ""
            if isinstance(action, BootNode):
                bought.setdefault((action.launch.type_name, why), []).append(action.launch.slot)
            elif (
                isinstance(action, DrainNode) and (node := published.snapshot.nodes.get(action.launch)) is not None
            ):
                yield f"{node.launch.slot} leaves: {why}"
        for (_, why), slots in bought.items():
            yield f"{compress_hostlist(sorted(slots))} ordered: {why}"

    def _seen(self, published: Publication) -> Iterator[str]:
        before, self._states = (
            self._states,
            {node.launch.slot: node.state for node in published.snapshot.nodes.values()},
        )
        changed = {slot: state for slot, state in self._states.items() if before.get(slot) is not state}
        joined = [slot for slot, state in changed.items() if state in USABLE and before.get(slot) not in USABLE]
        if joined:
            yield f"{compress_hostlist(sorted(joined))} joined"
        if lost := [slot for slot, state in changed.items() if state is NodeState.LOST]:
            yield f"{compress_hostlist(lost)} lost: its broker disconnected"
        if ended := [slot for slot in before if slot not in self._states]:
            yield f"{compress_hostlist(sorted(ended))} ended"


@dataclass
class Tally:
    """The totals of a demo, summed from the publications."""

    types: dict[str, NodeType]
    story: Story = field(default_factory=Story)
    began_at: float | None = None
    most: Counter[str] = field(default_factory=Counter)  # nodes of each type at once
    waits_s: dict[JobId, float] = field(default_factory=dict)
    jobs: set[JobId] = field(default_factory=set)
    lives_s: dict[LaunchId, tuple[str, float]] = field(default_factory=dict)
    retired: set[LaunchId] = field(default_factory=set)
    latest: Publication | None = None
    runs: dict[tuple[PeerName, JobId], PeerRun] = field(default_factory=dict)

    def take_delegation(self, view: DelegationView) -> None:
        self.runs |= {(run.peer, run.remote): run for run in view.runs}

    def take_in(self, published: Publication) -> None:
        self.latest = published
        self.story.take_in(published)
        snapshot = published.snapshot
        self.began_at = snapshot.wall_at if self.began_at is None else self.began_at
        self.most |= Counter(node.launch.type_name for node in snapshot.nodes.values())
        for job in snapshot.jobs.values():
            self.jobs.add(job.id)
            if job.state is JobState.RUN:
                self.waits_s.setdefault(job.id, snapshot.wall_at - job.submitted_at)
        for node in snapshot.nodes.values():
            if node.listing.billed_from_s is not None and node.state is not NodeState.GONE:
                self.lives_s[node.id] = (node.launch.type_name, billing.age_s(node, snapshot.now_s))
            if node.state is NodeState.STOPPING:
                self.retired.add(node.id)

    @property
    def cost(self) -> Decimal:
        lives = self.lives_s.values()
        return sum((billing.cost(self.types[name], lived_s) for name, lived_s in lives), Decimal(0))

    @property
    def fixed_cost(self) -> Decimal:
        """What a cluster costs that always has as many nodes of each type as there were at once."""
        if self.latest is None or self.began_at is None:
            return Decimal(0)
        hours = Decimal((self.latest.snapshot.wall_at - self.began_at) / 3600)
        return sum(
            (self.types[name].price_per_hour * count * hours for name, count in self.most.items()), Decimal(0)
        )

    def at_peers(self) -> Iterator[tuple[str, str]]:
        """For each peer, a row of the summary."""
        for peer in sorted({run.peer for run in self.runs.values()}):
            runs = [run for run in self.runs.values() if run.peer == peer and run.started_at is not None]
            used = {run.remote: run.cores * (run.ended_at - (run.started_at or 0.0)) / 3600 for run in runs}
            cost = sum((Decimal(used[run.remote]) * run.price_per_core_hour for run in runs), Decimal(0))
            yield (
                f"jobs run at peer {peer}",
                f"{len(runs)}, {sum(used.values()):.4f} core-hours, {format_money(cost)}",
            )

    @property
    def node_hours(self) -> float:
        return sum(lived_s for _, lived_s in self.lives_s.values()) / 3600


def main() -> int:
    """Run the demo. Returns 0 if every job ran and every node was terminated, else 1."""
    parser = argparse.ArgumentParser(prog="bin/demo", description=__doc__)
    parser.add_argument("--real", action="store_true", help="on a real Flux (on PATH), with local nodes")
    chosen = parser.parse_args()
    logs.configure(logging.CRITICAL)
    console = Console()
    with real_setup() if chosen.real else _simulated_setup() as setup:
        return _run_demo(setup, console)


@contextmanager
def _simulated_setup() -> Iterator[DemoSetup]:
    site = with_cluster_uuid(load_site(EMBEDDED))
    yield SimulatedSetup(site, start_embedded_world(site, rounds=1))


def _run_demo(setup: DemoSetup, console: Console) -> int:
    tally = Tally({node_type.name: node_type for node_type in setup.site.node_types})
    ports = setup.ports
    service = Service(setup.site, ports, tally.take_in, tally.take_delegation)
    service.start()
    began_s = time.monotonic()
    in_time = True
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while not _is_over(setup, tally) and service.fate.crashed is None:
            if time.monotonic() - began_s > LIMIT_S:
                in_time = False
                break
            setup.step()
            for line in tally.story.new_lines():
                live.console.print(line, markup=False, highlight=False)
            live.update(_live_view(tally))
            time.sleep(0.1)
    listed = [node for cloud in ports.clouds.values() for node in cloud().list_nodes()]
    leaked = [node for node in listed if node.state is not CloudState.TERMINATED]
    service.stop()
    left = _waiting(tally) - setup.held
    for line in tally.story.new_lines():
        console.print(line, markup=False, highlight=False)
    console.print(_summary(tally, left, setup.held, len(leaked), time.monotonic() - began_s))
    if service.fate.crashed is not None:
        console.print(f"the service crashed: {service.fate.crashed!r}", style="bold red", markup=False)
    if not in_time:
        console.print(f"not done within {LIMIT_S:g} s", style="bold red")
    return 0 if in_time and not left and not leaked and service.fate.crashed is None else 1


def _is_over(setup: DemoSetup, tally: Tally) -> bool:
    if tally.latest is None or not setup.has_submitted_all():
        return False
    return not tally.latest.snapshot.nodes and _waiting(tally) <= setup.held


def _waiting(tally: Tally) -> int:
    return len(tally.latest.snapshot.jobs) if tally.latest is not None else 0


def _live_view(tally: Tally) -> Group:
    if tally.latest is None:
        return Group("waiting for the first plan ...")
    snapshot, plan = tally.latest.snapshot, tally.latest.plan
    clock = ClockReading(snapshot.now_s, snapshot.wall_at)
    states = Counter(str(job.state) for job in snapshot.jobs.values())
    queue = Table(title="queue", title_justify="left", expand=False)
    for name in ("waits for another job", "waits for nodes, or held", "runs"):
        queue.add_column(name, justify="right")
    queue.add_row(*(str(states[name]) for name in ("depend", "sched", "run")))
    nodes = Table(title="nodes", title_justify="left", expand=False)
    for name in ("slot", "type", "state", "because"):
        nodes.add_column(name, overflow="ellipsis", no_wrap=True)
    for node in sorted(snapshot.nodes.values(), key=lambda node: node.launch.rank):
        because = plan.nodes.get(node.id)
        nodes.add_row(
            node.launch.slot, node.launch.type_name, str(node.state), clock.sentence(because) if because else ""
        )
    money = f"{format_money(plan.price_per_hour)} an hour now, {format_money(tally.cost)} so far (an estimate)"
    return Group(queue, nodes, money)


def _summary(tally: Tally, left: int, held: int, leaked: int, took_s: float) -> Table:
    lasted_s = tally.latest.snapshot.wall_at - (tally.began_at or 0.0) if tally.latest is not None else 0.0
    table = Table(
        title=f"{format_duration(lasted_s)} of a cluster, in {took_s:.0f} s",
        show_header=False,
        title_justify="left",
    )
    waits_s = list(tally.waits_s.values())
    rows: list[tuple[str, str]] = [
        ("jobs submitted / run / held by their users", f"{len(tally.jobs)} / {len(waits_s)} / {held}"),
        ("jobs that should have run and did not", str(left)),
        ("wait, mean / longest", f"{mean(waits_s):.1f} s / {max(waits_s):.1f} s" if waits_s else "-"),
        ("nodes booted / retired", f"{len(tally.lives_s)} / {len(tally.retired)}"),
        ("nodes lost (the demo takes one away)", str(len(tally.lives_s) - len(tally.retired))),
        ("nodes left running", str(leaked)),
        ("node-hours", f"{tally.node_hours:.2f}"),
        ("cost, by the site's prices", format_money(tally.cost)),
        ("cost of as many nodes, always on", format_money(tally.fixed_cost)),
        *tally.at_peers(),
    ]
    for name, figure in rows:
        table.add_row(name, figure)
    return table


if __name__ == "__main__":
    sys.exit(main())
