"""Publications and a server of them, for tests of what people see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from starlette.applications import Starlette

from nodemanager.actors.manager import Publication
from nodemanager.core.facts import OperatorFact, SteeringKept, SteeringSeen
from nodemanager.core.jobs import Job, JobState, RankAllocation
from nodemanager.core.nodes import NodeState
from nodemanager.history.follower import Follower
from nodemanager.history.store.reader import HistoryReader
from nodemanager.planner.observe import observe
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Policy
from nodemanager.planner.snapshot import Node, Snapshot
from nodemanager.web.api.control import Control, ReloadRefused
from nodemanager.web.api.documents import Document
from nodemanager.web.api.handlers import WebContext
from nodemanager.web.api.metrics import Metrics
from nodemanager.web.app import make_application
from nodemanager.web.listen import TcpAddress
from nodemanager.web.state.access import Access
from nodemanager.web.state.board import Board
from nodemanager.web.thread import WebServer
from tests.builders import NOW_S, WALL_AT, a_job, a_node, a_policy, a_snapshot, a_type, tasks, whole_nodes
from tests.live.instance import free_port

STOP_S = 10.0
TOKEN = "the-token-of-the-tests"
HOST = "testserver"

# The states of a fleet's nodes, repeated: mostly busy.
MIX = (
    *[NodeState.BUSY] * 12,
    *[NodeState.IDLE] * 3,
    NodeState.BOOTING,
    NodeState.BOOTING,
    NodeState.REQUESTED,
    NodeState.DRAINING,
    NodeState.STOPPING,
    NodeState.LOST,
)


def published(policy: Policy, snapshot: Snapshot, *, acts: bool = True) -> Publication:
    return Publication(snapshot, plan(snapshot, policy), policy, acts)


def a_fleet(count: int, *, waiting: int = 4, moment: int = 0) -> Publication:
    """A number of nodes of three types, most of them busy, and waiting jobs. Each ``moment`` is a bit different."""
    sizes = {"cpu": count - count // 4 - count // 10, "large": count // 4, "gpu": count // 10}
    types = [
        a_type("cpu", slots=sizes["cpu"] + 4, cores=16, price="0.68"),
        a_type("large", slots=sizes["large"] + 2, cores=96, price="4.10", window_s=60, minimum_s=60),
        a_type("gpu", slots=sizes["gpu"] + 2, cores=32, gpus=4, price="12.20", properties=["gpu"]),
    ]
    policy = a_policy(*types, nodes_max=int(count * 1.3) + 3, price_per_hour_max=Decimal(count * 3 + 10))
    nodes: list[Node] = []
    jobs: list[Job] = []
    for name, size in sizes.items():
        for number in range(1, size + 1):
            state = MIX[(number * 7 + len(name) + moment // 3) % len(MIX)]
            spread = (
                {"billed_from_s": NOW_S - 3600 + (number * 157) % 3600} if state is not NodeState.REQUESTED else {}
            )
            node = a_node(f"{name}{number}", state, policy, **spread)
            nodes.append(node)
            if state is NodeState.BUSY and node.rank is not None:
                holding = RankAllocation(node.launch.rank, node.rank.cores, 0)
                jobs.append(
                    a_job(len(jobs) + 1_000, state=JobState.RUN, allocations=(holding,), submitted_at=WALL_AT - 900)
                )
    shapes = [whole_nodes(2), tasks(300, cores=4), tasks(1, cores=512), tasks(8, gpus=1, cores=2)]
    jobs += [
        a_job(number + 1, shapes[number % len(shapes)], submitted_at=WALL_AT - 60 * number - 5, userid=0)
        for number in range(waiting)
    ]
    snapshot = a_snapshot(policy, nodes=nodes, jobs=jobs, jobs_ended=41)
    return published(policy, replace(snapshot, wall_at=WALL_AT + moment, now_s=NOW_S + moment / 1000))


def later(publication: Publication, after_s: float) -> Publication:
    """The same some seconds later, by both clocks."""
    snapshot = publication.snapshot
    moved = replace(snapshot, wall_at=snapshot.wall_at + after_s, now_s=snapshot.now_s + after_s)
    return replace(publication, snapshot=moved)


@dataclass
class Manager:
    """A stand-in for the running service: takes operators' facts at once, and publishes."""

    board: Board
    told: list[OperatorFact | SteeringSeen] = field(default_factory=list)
    fault: str = ""
    keeps: bool = True  # whether changes go on record
    reloaded_by: list[str] = field(default_factory=list)

    def tell(self, fact: OperatorFact | SteeringSeen) -> None:
        self.told.append(fact)
        assert self.board.latest is not None
        last = self.board.latest.published
        snapshot = observe(last.snapshot, fact, last.policy)
        if self.keeps:
            snapshot = observe(snapshot, SteeringKept(snapshot.operator.steering), last.policy)
        self.board.publish(published(last.policy, snapshot, acts=last.acts))

    def reload(self, by: str) -> Document:
        self.reloaded_by.append(by)
        if self.fault:
            raise ReloadRefused(self.fault)
        return {"path": "site.ini", "reloaded": True}


@dataclass
class Stand:
    """A board, and everything that serves it."""

    board: Board
    manager: Manager
    served: WebContext
    follower: Follower = field(default_factory=Follower)

    def post(self, *publications: Publication) -> None:
        """Do what the manager's thread and the history thread do."""
        for it in publications:
            self.board.publish(it)
            happened = self.follower.follow([it])
            self.board.take_in(happened)
            self.served.metrics.take_in(happened)

    @property
    def application(self) -> Starlette:
        return make_application(self.served, [HOST, "127.0.0.1", "localhost"], lambda: False)


def a_stand(
    journal: Path | None = None,
    *,
    by_socket: bool = False,
    jobs_for_everybody: bool = False,
    token: str | None = TOKEN,
    clock_s: Sequence[float] = (),
) -> Stand:
    ticks: Iterator[float] = iter(clock_s)
    board = Board(lambda: next(ticks, 0.0)) if clock_s else Board()
    manager = Manager(board)
    metrics = Metrics(board)
    reader = HistoryReader(journal if journal is not None else Path("/nonexistent/journal.sqlite"))
    access = Access(token, by_socket, jobs_for_everybody)
    return Stand(board, manager, WebContext(board, metrics, reader, Control(board, manager), access))


@contextmanager
def served(stand: Stand) -> Iterator[str]:
    port = free_port()
    server = WebServer(TcpAddress("127.0.0.1", port), stand.served)
    server.start()
    assert server.is_listening.wait(STOP_S)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.stop(STOP_S)
