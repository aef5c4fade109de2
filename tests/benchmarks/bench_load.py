"""The service under load: 5,000 nodes, 20,000 jobs that wait, 100 changes a second, for ten minutes; and idle.

    python -m tests.benchmarks.bench_load                    # every case, each in processes of its own
    python -m tests.benchmarks.bench_load --seconds 120      # shorter
    python -m tests.benchmarks.bench_load --cases 1 --live   # the service's own threads, its server asked over HTTP

The production actors in a pump (virtual time), with the site of a cluster on EC2 and what ``run`` imports for one.
The world (Flux, its scheduler, its users, the provider) is another process (``load_world``), so that memory and
processor time here are the manager's: its actors, the reading of the journal and of the ranks' replies from
JSON, and the pump and the pipe, which stand in for threads and for Flux's messages. What the provider's list costs
to parse is not in it (``bench_list``). A change is a job submitted, begun, or ended: about four events of Flux's
journal each. The fleet stands when the manager starts; its first minute, in which all is read, is told apart.

The world is up to 0.1 s ahead: what its journals say is told at its moment, but a look may show a little more.
Virtual time stands still while something is worked on, but for the pace of looks, which goes by what one took: that
is its processor time. How long Flux itself takes to answer is not in it, and would make looks fewer.

``front``: the chronicle, the metrics (scraped every 15 s), the board and the journal on disk, as they run beside
the manager; the chronicle rests as it does in its thread, in virtual time. The journal's thread keeps this
machine's time, so one commit holds as many virtual seconds as pass in a second; what the server takes while nobody
asks is told apart. ``--live`` has all of them in their threads, and virtual time at this machine's pace: there a
tick is measured by the wall, with all that it waits for, and the time of other threads is in ``share`` only.

``share``: processor seconds of the process in a second of virtual time. A tick is a message that says the time and
makes a plan: its processor time from the message to the orders given. ``baseline`` is the same process before the
first fact, all imported.

``anew``: what a manager would do for each tick that keeps nothing from one to the next: read the same queue and the
same ranks as they stood at the end, and plan; measured in the same process, the median of three. And for the ranks,
what it takes to read a look where the one before is not known.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import structlog

from nodemanager.actors.base import CrashOnlyActor, Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.actors.flux import FluxWorker
from nodemanager.actors.manager import Manager, Publication
from nodemanager.actors.messages import Mailbox
from nodemanager.actors.ticker import PERIOD_S, Ticker
from nodemanager.cloud.providers import cloud_factory
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.facts import ClaimHeld, CloudListed, FluxUnreachable, QueueSeen, RanksSeen, Tick
from nodemanager.core.nodes import FluxRank
from nodemanager.core.ports import CloudPort, FluxError, FluxPort
from nodemanager.core.slots import DEFAULT_CLOUD, Hardware, Rank, SlotName, TypeName
from nodemanager.flux.parse.resources import Look
from nodemanager.planner.observe import advance_to, observe
from nodemanager.planner.plan import plan
from nodemanager.planner.snapshot import Snapshot
from nodemanager.service.assembly.policy import policy_of
from nodemanager.service.assembly.ports import SitePorts, SystemClock
from nodemanager.service.assembly.wiring import wire
from nodemanager.service.outputs import Outputs
from nodemanager.service.service import freeze_startup_objects
from nodemanager.simulation.flux.instance import JournalFollower
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.flux.watch import SimulatedFluxWatch
from nodemanager.simulation.time.pump import Inbox, Pump
from nodemanager.simulation.time.world import World
from tests.benchmarks.load_front import MEASURED_S, LiveFront, Meter, VirtualFront, listening_share, share_of
from tests.benchmarks.load_world import Load, event_of, serve
from tests.builders import a_policy
from tests.live.instance import free_port

TRAVEL_S: Mapping[type[CrashOnlyActor], tuple[float, float]] = {
    Manager: (0.0, 0.001),
    FluxWorker: (0.001, 0.01),
    CloudWatcher: (0.5, 1.0),
    CloudWorker: (0.1, 0.3),
}
WARM_UP_S = 60.0
SAMPLE_EVERY_S = 60.0
STEPS_AHEAD = 4
ANEW = 3
SITE = """\
[Site]
cluster = bench
cluster_uuid = 11111111-1111-4111-8111-111111111111
state_dir = state
mode = act
[Flux]
head_address = 10.0.0.1
[Cloud]
provider = ec2
region = us-east-1
image = ami-0abc0123456789abc
[Cloud Credentials]
access_key_id = none
secret_access_key = none
[Limits]
nodes_max = {nodes}
nodes_min = {least}
price_per_hour_max = 1000000
[Node cpu]
size = c7i.4xlarge
cores = 8
memory = 32GiB
price_per_hour = 0.40
slots = cpu[1-{slots}]
[Web]
listen = 127.0.0.1:{port}
"""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    nodes: int
    pending: int
    changes_per_s: float  # 0: nothing happens
    front: bool
    goal_mb: int
    goal_share: float | None


CASES = (
    Case("load", 5_000, 20_000, 100.0, front=False, goal_mb=200, goal_share=None),
    Case("load", 5_000, 20_000, 100.0, front=True, goal_mb=200, goal_share=None),
    Case("idle", 1_000, 0, 0.0, front=False, goal_mb=80, goal_share=0.01),
    Case("idle", 1_000, 0, 0.0, front=True, goal_mb=80, goal_share=0.01),
)


# --- the world, from afar ---------------------------------------------------------------------------------


class Remote:
    """The other process, and what its journal said."""

    world: World  # this process's, for the watch

    def __init__(self, load: Load) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, load), daemon=True)
        self._process.start()
        self._pipe.recv()
        self._follower: JournalFollower | None = None
        self._ahead: deque[tuple[float, list[str], int]] = deque()

    def ask(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, arguments))
        well, answer = self._pipe.recv()
        if not well:
            raise FluxError(answer)
        return answer

    def advance(self, step: int) -> None:
        """To a step of the ticker's. A few are asked for together, as each question costs a change of process."""
        if not self._ahead:
            moments_s = [later * PERIOD_S for later in range(step, step + STEPS_AHEAD)]
            self._ahead = deque(self.ask("world.advance", moments_s))
        _, lines, stirred = self._ahead.popleft()
        if self._follower is None:
            return
        for line in lines:
            self._follower.on_job(event_of(line))
        if stirred:
            self._follower.on_resource(cast("Any", None))

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()

    # --- what the watch asks ---

    def follow(self, follower: JournalFollower) -> Callable[[], None]:
        self._follower = follower
        self._backlog: list[str] = self.ask("world.follow")
        return lambda: None

    def active_events(self) -> Iterator[JobEvent]:
        backlog, self._backlog = self._backlog, []
        return map(event_of, backlog)

    def queues_stopped(self) -> frozenset[str]:
        return frozenset()


class RemotePort:
    """A port of the other process, by whatever is called."""

    def __init__(self, remote: Remote, room: str) -> None:
        self._remote = remote
        self._room = room
        self._look = Look()
        self._ended: Mapping[Rank, float] = {}
        self._division: Mapping[SlotName, TypeName] | None = None
        self._jobs_ended = 0
        self.said = ""  # the latest replies

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._remote.ask(f"{self._room}.{name}", *arguments)

    def ranks(self) -> tuple[FluxRank, ...]:
        """As the real port reads a look from its replies."""
        if self._division is None:
            self._division = self._remote.ask("world.division")
        self.said = self._remote.ask("world.look")
        said = json.loads(self.said)
        if ended := {Rank(int(rank)): at for rank, at in said["ended"].items()}:
            self._ended = {**self._ended, **ended}
        self._look = self._look.next(
            said["resources"], said["scheduler"], self._ended, self._division, said["stats"]
        )
        self._jobs_ended = said["jobs_ended"]
        return tuple(self._look.ranks.values())

    def jobs_ended(self) -> int:
        return self._jobs_ended

    def slots_wish(self) -> None:
        """Nobody wishes for other slots here."""

    def read_anew(self) -> None:
        """The latest look, where nothing of those before is known."""
        said = json.loads(self.said)
        Look().next(said["resources"], said["scheduler"], self._ended, self._division, said["stats"])

    def read_hardware(self) -> dict[Rank, Hardware]:
        return {}


# --- the clockwork ----------------------------------------------------------------------------------------


@dataclass
class WorkingClock:
    """Virtual time, and what the message that is being handled has taken so far."""

    world: World
    meter: Meter

    def monotonic_s(self) -> float:
        return self.world.now_s + self.meter.worked_s

    def wall_at(self) -> float:
        return self.world.wall_at() + self.meter.worked_s


class MeteredPump(Pump):
    """Its actors' messages are timed."""

    meter: Meter

    def spawn(self, actor: type[Any], /, *arguments: Any) -> Mailbox[Any]:
        inbox = cast("Inbox", super().spawn(actor, *arguments))
        inbox.actor = cast("CrashOnlyActor", _Timed(inbox.actor, self.meter))
        return inbox


class _Timed:
    def __init__(self, actor: CrashOnlyActor, meter: Meter) -> None:
        self._actor = actor
        self._meter = meter

    def on_receive(self, message: Any) -> None:
        meter, name = self._meter, type(self._actor).__name__
        meter.planned = False
        meter.began_s = meter.clock_s()
        self._actor.on_receive(message)
        took_s = meter.worked_s
        meter.began_s = None
        if isinstance(message, Tick):
            name += " (tick)" if meter.planned else " (nothing new)"
            if meter.planned:
                meter.ticks_s.append(took_s)
        elif name == "Manager":
            name += f" ({type(message).__name__})"
        meter.of[name] += took_s
        meter.handled[name] += 1


# --- a run ------------------------------------------------------------------------------------------------


def measure(case: Case, seconds: float, *, live: bool) -> dict[str, Any]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), wrapper_class=_Silent)
    folder = Path(tempfile.mkdtemp(prefix="bench-load-"))
    text = SITE.format(
        nodes=case.nodes, least=0 if case.pending else case.nodes, slots=case.nodes + 500, port=free_port()
    )
    (folder / "site.ini").write_text(text)
    (folder / "site.ini").chmod(0o600)
    site = load_site(folder / "site.ini", {})
    run = _Run(case, site, folder, live=live)
    try:
        return run.result(seconds)
    finally:
        run.remote.close()


class _Silent(structlog.BoundLoggerBase):
    """Logs go nowhere: how they are written is the site's choice."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_arguments, **_fields: None


class _Run:
    def __init__(self, case: Case, site: Site, folder: Path, *, live: bool) -> None:
        self.case = case
        busy = case.nodes if case.changes_per_s else 0
        mean_s = 3.0 * busy / case.changes_per_s if busy else 0.0  # each job is three changes
        self.remote = Remote(
            Load(
                site.node_types,
                site.cluster,
                site.cluster_uuid,
                case.nodes,
                case.pending,
                busy,
                (mean_s * 2 / 3, mean_s * 4 / 3),
            )
        )
        # What a site on EC2 loads when it starts; nothing is called.
        self._imported = (Outputs, cloud_factory(site, lambda _launch, _type: "", World(1).clock())())
        freeze_startup_objects()  # as the service does before its first fact
        self.baseline_mb = rss_mb()
        self.meter = Meter(time.perf_counter if live else time.thread_time)
        self.front: VirtualFront | LiveFront | None = None
        if case.front:
            self.front = LiveFront(site) if live else VirtualFront(folder, self.meter)
        self.world = World(2)
        self.world.advance_to(self.remote.ask("world.now_s"))
        self.remote.world = self.world
        self.published: Publication | None = None
        clock = WorkingClock(self.world, self.meter)
        self.looks: list[RemotePort] = []
        pump = MeteredPump(self.world, "bench", TRAVEL_S, tick_s=PERIOD_S)
        pump.meter = self.meter
        watch = SimulatedFluxWatch(cast("Any", self.remote))
        outside = SitePorts(
            clock=clock,
            flux=self._flux_port,
            clouds={DEFAULT_CLOUD: lambda: cast("CloudPort", RemotePort(self.remote, "cloud"))},
            watch=cast("Any", watch),
            close=lambda: None,
        )
        manager = wire(outside, policy_of(site), site.acts, self._publish, Fate(), pump.spawn)
        pump.start_ticks(manager, clock)
        watch.start(manager.tell, lambda why: manager.tell(FluxUnreachable(clock.monotonic_s(), why)))

    def _flux_port(self) -> FluxPort:
        self.looks.append(RemotePort(self.remote, "flux"))
        return cast("FluxPort", self.looks[-1])

    def _publish(self, published: Publication) -> None:
        self.published = published
        self.meter.planned = True
        if self.front is not None:
            self.front.publish(published)

    def _go(self, until_s: float) -> None:
        step = round(self.world.now_s / PERIOD_S)
        while self.world.now_s < until_s:
            step += 1
            self.remote.advance(step)
            self.world.advance_to(step * PERIOD_S)
            if self.front is not None:
                self.front.at(self.world.now_s)

    def result(self, seconds: float) -> dict[str, Any]:
        start = self._warm_up()
        self.meter.clear()
        before, began_s, began_at_s = self.remote.ask("world.standing"), self.world.now_s, time.process_time()
        memory_mb = [rss_mb()]
        while (gone_s := self.world.now_s - began_s) < seconds:
            self._go(began_s + min(seconds, gone_s + SAMPLE_EVERY_S))
            memory_mb.append(rss_mb())
            self._tell(self.world.now_s - began_s, time.process_time() - began_at_s, memory_mb[-1])
        cpu_s = time.process_time() - began_at_s
        after = self.remote.ask("world.standing")
        ticks = sorted(self.meter.ticks_s)
        return {
            "baseline_mb": self.baseline_mb,
            "late_s": self.front.late_s if isinstance(self.front, LiveFront) else 0.0,
            "memory_mb": memory_mb,
            "start": start,
            "share": cpu_s / seconds,
            "p50_ms": 1e3 * ticks[len(ticks) // 2],
            "p99_ms": 1e3 * ticks[int(len(ticks) * 0.99)],
            "worst_ms": 1e3 * ticks[-1],
            "ticks_per_s": len(ticks) / seconds,
            "anew_ms": 1e3 * _median_s(self._plan_anew),
            "look_ms": 1e3 * self.meter.of["FluxWorker"] / max(1, self.meter.handled["FluxWorker"]),
            "look_anew_ms": 1e3 * _median_s(next(it for it in self.looks if it.said).read_anew),
            "standing": after,
            "changes_per_s": (after.get("changes", 0) - before.get("changes", 0)) / seconds,
            "journal_per_s": (after.get("journal", 0) - before.get("journal", 0)) / seconds,
            "shares": {name: took_s / seconds for name, took_s in self.meter.of.items()}
            | {"pump, pipe, journals": (cpu_s - sum(self.meter.of.values())) / seconds},
            "per_s": {name: count / seconds for name, count in self.meter.handled.items()},
        }

    def _tell(self, gone_s: float, cpu_s: float, mb: float) -> None:
        """How it goes, by the minute: the whole takes a while."""
        ticks = sorted(self.meter.ticks_s)
        p99_ms = 1e3 * ticks[int(len(ticks) * 0.99)]
        said = f"{gone_s:4.0f} s: {mb:.0f} MB, tick p99 {p99_ms:.1f} ms, share {100 * cpu_s / gone_s:.1f} %"
        print(said, file=sys.stderr, flush=True)

    def _plan_anew(self) -> None:
        assert self.published is not None
        known, policy = self.published.snapshot, self.published.policy
        now_s = known.now_s
        read = advance_to(Snapshot(), Tick(now_s, known.wall_at))
        for fact in (
            ClaimHeld(now_s, tuple(node.launch for node in known.nodes.values())),
            QueueSeen(now_s, tuple(known.jobs.values()), complete=True),
            RanksSeen(now_s, tuple(known.ranks.values())),
            CloudListed(now_s, tuple(node.cloud for node in known.nodes.values() if node.cloud is not None)),
        ):
            read = observe(read, fact, policy)
        plan(read, policy)

    def _warm_up(self) -> dict[str, float]:
        """All is read, and the manager knows every node."""
        began_s = time.process_time()
        self._go(self.world.now_s + WARM_UP_S)
        assert self.published is not None
        online = sum(1 for rank in self.published.snapshot.ranks.values() if rank.online)
        assert online == len(self.published.snapshot.nodes) == self.case.nodes, f"{online} nodes are known"
        return {
            "cpu_s": time.process_time() - began_s,
            "worst_ms": 1e3 * max(self.meter.ticks_s),
            "mb": rss_mb(),
        }


def _median_s(work: Callable[[], None]) -> float:
    took_s = []
    for _ in range(ANEW):
        began_s = time.thread_time()
        work()
        took_s.append(time.thread_time() - began_s)
    return statistics.median(took_s)


def clockwork_share() -> float:
    """What telling the time costs by threads where nothing happens: the ticker's, and the actor's that notes it.

    The ticker begins lively, as after a look. In an idle service there is one in about as long as this measures.
    """
    manager = cast("Any", Manager).start(a_policy(), acts=False, publish=lambda _: None, fate=Fate())
    ticker = Ticker(SystemClock(), manager, threading.Event())
    ticker.start()
    share = share_of(MEASURED_S)
    ticker.stop()
    ticker.join()
    manager.stop()
    return share


def rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


# --- running it -------------------------------------------------------------------------------------------


def in_a_process(number: int, seconds: float, *, live: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_load", "--one", str(number), "--seconds", str(seconds)]
    command += ["--live"] if live else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def show(numbers: Sequence[int], seconds: float, *, live: bool) -> None:
    for number in numbers:
        case = CASES[number]
        found = in_a_process(number, seconds, live=live)
        share = f"{100 * case.goal_share:g} % of a core" if case.goal_share is not None else "tick p99 100 ms"
        print(f"\n{case.name}: {case.nodes} nodes, front {'on' if case.front else 'off'}, {seconds:g} s")
        print(f"  goals: {case.goal_mb} MB, {share}")
        if live:
            print(f"  at this machine's pace, at the worst {found['late_s']:.1f} s late; ticks by the wall")
        print(f"  memory MB: baseline {found['baseline_mb']:.0f}; then", end=" ")
        print(", ".join(f"{mb:.0f}" for mb in found["memory_mb"]))
        print(
            f"  tick ms: p50 {found['p50_ms']:.2f}, p99 {found['p99_ms']:.2f}, worst {found['worst_ms']:.1f};",
            end="",
        )
        print(f" {found['ticks_per_s']:.1f} a second")
        anew = f"{found['anew_ms']:.0f} ms, {found['anew_ms'] / found['p50_ms']:.0f} times the p50"
        print(f"  all read and planned anew: {anew}; looks take {found['look_ms']:.1f} ms,", end=" ")
        print(f"anew {found['look_anew_ms']:.1f} ms, {found['look_anew_ms'] / found['look_ms']:.1f} times that")
        parts = "; ".join(f"{name} {100 * of:.2f}" for name, of in _greatest(found["shares"]))
        print(f"  share of a core: {100 * found['share']:.2f} %{'' if live else f', of which {parts}'}")
        listening = f"; the server that listens: {100 * listening_share():.2f} %" if case.front else ""
        print(f"  telling the time by threads: {100 * clockwork_share():.2f} % of a core{listening}")
        print(f"  messages a second: {', '.join(f'{name} {of:.2f}' for name, of in _greatest(found['per_s']))}")
        print(f"  changes a second: {found['changes_per_s']:.0f}, journal's events {found['journal_per_s']:.0f}")
        print(f"  at the end: {found['standing']}; its start: {found['start']}", flush=True)


def _greatest(of: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(of.items(), key=lambda item: -item[1])[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description="the service under load")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="by number, from 0")
    parser.add_argument("--live", action="store_true", help="at this machine's pace, with the front itself")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(CASES[given.one], given.seconds, live=given.live)))
    else:
        show(given.cases, given.seconds, live=given.live)


if __name__ == "__main__":
    main()
