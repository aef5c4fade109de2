"""The manager actor: the orders it sends to other actors, and what it leaves undone while it only observes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodemanager.actors.base import Fate
from nodemanager.actors.manager import Manager, Publication
from nodemanager.actors.messages import Begin, CloudActors, UsePolicy
from nodemanager.core.facts import ClaimHeld, CloudListed, LeftoversRemoved, QueueSeen, RanksSeen, Tick
from nodemanager.core.nodes import FluxRank, LaunchId, Leftover, LeftoverKind, ProviderId
from nodemanager.core.orders import ListCloud, SweepCloud
from nodemanager.core.slots import DEFAULT_CLOUD, Rank, SlotName, TypeName
from tests.builders import a_job, a_policy, a_snapshot, a_type


@dataclass
class Post:
    told: list[Any] = field(default_factory=list)

    def tell(self, message: Any) -> None:
        self.told.append(message)


@pytest.mark.parametrize("acts", [True, False])
def test_leftovers_are_swept_up_only_by_one_that_acts(acts: bool) -> None:
    lister = Post()
    manager = Manager(a_policy(), acts, lambda _: None, Fate())
    manager.on_receive(Begin(Post(), {DEFAULT_CLOUD: CloudActors(lister, [Post()])}))
    manager.on_receive(Tick(1.0, 1000.0))
    assert lister.told == [ListCloud()], "nothing is known yet, so nothing is deleted"
    for fact in (ClaimHeld(1.0, ()), QueueSeen(1.0, complete=True), RanksSeen(1.0, ()), CloudListed(1.0, ())):
        manager.on_receive(fact)
    manager.on_receive(Tick(2.0, 1001.0))
    manager.on_receive(Tick(3.0, 1002.0))
    assert lister.told.count(SweepCloud()) == (1 if acts else 0)


def test_a_reload_leaves_the_slots_divided_as_the_instance_says() -> None:
    """The slot types in the site may be older than those that were wished for since."""
    seen: list[Publication] = []
    manager = Manager(a_policy(), acts=True, publish=seen.append, fate=Fate())
    manager.on_receive(Begin(Post(), {DEFAULT_CLOUD: CloudActors(Post(), [Post()])}))
    manager.on_receive(Tick(1.0, 1000.0))
    ranks = (FluxRank(Rank(1), SlotName("cloud1"), online=False, cores=8, type_name=TypeName("gpu")),)
    manager.on_receive(RanksSeen(1.0, ranks))
    manager.on_receive(UsePolicy(a_policy(nodes_max=2)))
    manager.on_receive(Tick(2.0, 1001.0))
    assert seen[-1].policy.limits.nodes_max == 2
    assert seen[-1].policy.index_of_slot[SlotName("cloud1")][0] == "gpu"


def test_what_is_only_said_is_logged_once_though_the_queue_is_restless_in_between() -> None:
    policy = a_policy()
    manager = Manager(policy, acts=False, publish=lambda _: None, fate=Fate())
    ranks = tuple(a_snapshot(policy).ranks.values())
    jobs = a_job(1, submitted_at=1000.0), a_job(2, submitted_at=1000.0, urgency=0)
    with capture_logs() as said:
        manager.on_receive(Begin(Post(), {DEFAULT_CLOUD: CloudActors(Post(), [Post()])}))
        manager.on_receive(Tick(1.0, 1000.0))
        seen = QueueSeen(1.0, complete=True, jobs=(jobs[0],), queues_stopped=frozenset())
        for fact in (ClaimHeld(1.0, ()), seen, RanksSeen(1.0, ranks), CloudListed(1.0, ())):
            manager.on_receive(fact)
        for now_s in (3.0, 4.0):
            manager.on_receive(Tick(now_s, 1000.0 + now_s))
        manager.on_receive(QueueSeen(4.1, jobs=(jobs[1],)))
        for now_s in (4.2, 6.0, 8.0):
            manager.on_receive(Tick(now_s, 1000.0 + now_s))
    would = [line["order"] for line in said if line["event"] == "would"]
    assert would == ["BootNode cloud1"]


def test_what_was_swept_up_is_said() -> None:
    manager = Manager(a_policy(), acts=True, publish=lambda _: None, fate=Fate())
    left = Leftover(LeftoverKind.VOLUME, ProviderId("vol-1"), LaunchId("cloud1-1"))
    with capture_logs() as said:
        manager.on_receive(LeftoversRemoved((left,)))
    assert [(line["event"], line["what"], line["provider_id"]) for line in said] == [("removed", "volume", "vol-1")]


def test_a_type_that_is_declared_anew_is_no_other_instance() -> None:
    """The look that came with the change was observed under the previous types."""
    seen: list[Publication] = []
    policy = a_policy(a_type(slots=1, cores=8))
    manager = Manager(policy, acts=True, publish=seen.append, fate=Fate())
    manager.on_receive(Begin(Post(), {DEFAULT_CLOUD: CloudActors(Post(), [Post()])}))
    manager.on_receive(Tick(1.0, 1000.0))
    rank = FluxRank(Rank(1), SlotName("cloud1"), online=False, cores=8)
    manager.on_receive(RanksSeen(1.0, (rank,)))
    manager.on_receive(Tick(2.0, 1001.0))
    assert seen[-1].snapshot.slots.mismatch is None
    manager.on_receive(RanksSeen(2.0, (replace(rank, cores=6),)))
    manager.on_receive(Tick(3.0, 1002.0))
    assert seen[-1].snapshot.slots.mismatch is not None
    (node_type,) = policy.node_types
    manager.on_receive(UsePolicy(replace(policy, node_types=(replace(node_type, cores=6),))))
    manager.on_receive(Tick(4.0, 1003.0))
    assert seen[-1].snapshot.slots.mismatch is None


def test_the_join_service_hears_of_it_every_second_though_nothing_is_to_decide() -> None:
    join, seen = Post(), list[Publication]()
    manager = Manager(a_policy(), acts=True, publish=seen.append, fate=Fate())
    manager.on_receive(Begin(Post(), {DEFAULT_CLOUD: CloudActors(Post(), [Post()])}, join))
    manager.on_receive(Tick(1.0, 1000.0))
    for fact in (ClaimHeld(1.0, ()), QueueSeen(1.0, complete=True), RanksSeen(1.0, ()), CloudListed(1.0, ())):
        manager.on_receive(fact)
    for count in range(1, 13):
        manager.on_receive(Tick(1.5 + count / 4, 1000.0 + count / 4))
    assert len(seen) == 2, "as it began, and when all was seen"
    assert [order.now_s for order in join.told] == [1.75, 2.75, 3.75]
