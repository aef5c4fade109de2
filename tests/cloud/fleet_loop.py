"""The real planner and cloud actors on any cloud port, without the threads of a manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, assert_never

from nodemanager.actors.base import Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.core.facts import (
    BrokerStopped,
    Fact,
    LaunchesRecorded,
    LeaseEnded,
    NodeUndrained,
    QueueProbed,
)
from nodemanager.core.nodes import NodeState
from nodemanager.core.orders import (
    BootNode,
    CancelCopy,
    ChangeSlots,
    CordonNode,
    CreateNode,
    DelegateJob,
    DestroyNode,
    DrainNode,
    EndLease,
    HoldJobs,
    KillHousekeeping,
    ListCloud,
    ReadResult,
    RecordLaunches,
    RefuseSlots,
    ReleaseJobs,
    RequeueJob,
    StartCopy,
    StopBroker,
    UndrainNode,
    WithDeadline,
)
from nodemanager.core.ports import CloudPort
from nodemanager.planner.plan import Action
from tests.builders import World


class FleetLoop:
    """A world with its facts and its workers. Each step lists the cloud and carries out a plan. No node ever joins.

    ``step_s``: how far the world's time advances with each step.
    """

    def __init__(self, world: World, a_port: Callable[[], CloudPort], step_s: float = 10.0) -> None:
        self.world = world
        self.told: list[Fact] = []
        self._step_s = step_s
        # Unstarted actors, used as plain objects.
        self.worker = CloudWorker(a_port(), self, self, self, Fate())
        self.watcher = CloudWatcher(a_port(), self, self, Fate())

    def tell(self, fact: Fact) -> None:
        self.told.append(fact)

    def ensure_actor(self) -> None:
        """Do nothing: there is no other manager."""

    def monotonic_s(self) -> float:
        return self.world.snapshot.now_s

    def wall_at(self) -> float:
        return self.world.snapshot.wall_at

    def run(self, steps: int) -> Self:
        for _ in range(steps):
            self.world.wait(self._step_s).see(QueueProbed(self.monotonic_s())).see_ranks()
            self.watcher.on_receive(ListCloud())
            self._see()
            for action in self.world.decide().actions:
                self._carry_out(action)
            self._see()
        return self

    def nodes(self) -> list[tuple[str, NodeState]]:
        return [(node.launch.type_name, node.state) for node in self.world.snapshot.nodes.values()]

    def _carry_out(self, action: Action | DestroyNode) -> None:
        match action:
            case BootNode(launch=launch):
                self.tell(LaunchesRecorded((launch,)))
            case RecordLaunches(launches=launches):
                self.tell(LaunchesRecorded(launches))
            case CreateNode() | DestroyNode():
                self.worker.on_receive(WithDeadline(action, self.monotonic_s()))
            case EndLease(launch=launch):
                self.tell(LeaseEnded(launch.id))
            case DrainNode(launch=launch_id):
                self.world.see_drained(self.world.snapshot.nodes[launch_id].launch.slot)
            case UndrainNode(launch=launch_id):
                self.tell(NodeUndrained(launch_id))
            case StopBroker(launch=launch_id):
                self.tell(BrokerStopped(launch_id))
            case ChangeSlots() | RefuseSlots() | CordonNode() | KillHousekeeping() | RequeueJob():
                raise AssertionError(action)
            case HoldJobs() | ReleaseJobs() | DelegateJob() | ReadResult() | StartCopy() | CancelCopy():
                raise AssertionError(action)
            case _:
                assert_never(action)

    def _see(self) -> None:
        told, self.told = self.told, []
        self.world.see(*told)
