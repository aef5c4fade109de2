"""Refused creates and failed boots: blocks, learned quotas, the circuit breaker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemanager.core.facts import (
    CloudCallFailed,
    LaunchesRecorded,
    LeaseEnded,
    NodeCreated,
    NodeReported,
    QueueProbed,
)
from nodemanager.core.nodes import (
    CallKind,
    CloudNode,
    CloudState,
    FailureKind,
    JoinPhase,
    LaunchId,
    NodeState,
    QuotaScope,
)
from nodemanager.core.orders import BootNode, CreateNode, DrainNode, EndLease
from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.backoff import zone_scope
from nodemanager.planner.policy import BLOCK_S, Fixed
from nodemanager.planner.snapshot import EVERYTHING, Block, Scope
from tests.builders import (
    CLOUD,
    GPU,
    GPU_FOR_ALL,
    NOW_S,
    World,
    a_call,
    a_cloud_node,
    a_launch,
    a_type,
    a_world,
    boots,
    changed,
    orders,
    tasks,
    whole_nodes,
)

QUOTA_S = BLOCK_S[FailureKind.QUOTA]
SPOT = replace(a_type("spot", price="0.10"), market=Market.SPOT)


class Provider:
    """Answers every order at once as configured, and lists what it made."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.refuse: dict[TypeName, CloudCallFailed] = {}  # why creates of a type are refused
        self.limit: dict[TypeName, int] = {}  # with so many nodes, the next create is refused for lack of quota
        self.boots_fail = ""  # the reason of the failure
        self.made: dict[LaunchId, CloudNode] = {}

    def standing(self, name: str) -> int:
        return sum(1 for id_ in self.made if self.world.snapshot.nodes[id_].launch.type_name == name)

    def turn(self, wait_s: float = 2.0) -> list[str]:
        """Let time pass and carry out the orders; return the types for which a create was sent."""
        world = self.world.wait(wait_s)
        self._fail_boots()
        world.see(QueueProbed(world.snapshot.now_s)).see_ranks().see_cloud(*self.made.values())
        sent = []
        for action in world.decide().actions:
            match action:
                case BootNode(launch=launch):
                    world.see(LaunchesRecorded((launch,)))
                case CreateNode(launch=launch):
                    sent.append(str(launch.type_name))
                    self._create(action)
                case EndLease(launch=launch):
                    world.see(LeaseEnded(launch.id))
                    self.made.pop(launch.id, None)
                case DrainNode(launch=id_):
                    # Stopping a node is not the subject here: it is gone at once.
                    world.but(nodes={key: it for key, it in world.snapshot.nodes.items() if key != id_})
                    del self.made[id_]
                case _:
                    raise AssertionError(action)
        return sent

    def turns(self, count: int, wait_s: float = 2.0) -> list[str]:
        return [name for _ in range(count) for name in self.turn(wait_s)]

    def _create(self, order: CreateNode) -> None:
        launch, name = order.launch, order.launch.type_name
        if name in self.refuse:
            self.world.see(replace(self.refuse[name], launch=launch.id))
        elif name in self.limit and self.standing(name) >= self.limit[name]:
            self.world.see(_quota(QuotaScope.TYPE, launch.id))
        else:
            self.made[launch.id] = a_cloud_node(launch, state=CloudState.PENDING, created_at=None)
            self.world.see(NodeCreated(launch.id, self.made[launch.id]))

    def _fail_boots(self) -> None:
        for id_, cloud in self.made.items():
            node = self.world.snapshot.nodes[id_]
            match self.boots_fail:
                case "dies":
                    self.made[id_] = replace(cloud, state=CloudState.TERMINATED, died_because="kernel panic")
                case "never joins":
                    late = changed(
                        node, requested_s=node.create.requested_s - 5000.0, since_s=node.since_s - 5000.0
                    )
                    self.world.but(nodes={**self.world.snapshot.nodes, id_: late})
                case "says that it cannot":
                    self.world.see(NodeReported(id_, JoinPhase.FAILED, "another flux-core", 0.0))


def _quota(reach: QuotaScope | None, launch: LaunchId | None = None) -> CloudCallFailed:
    return CloudCallFailed("create", launch, FailureKind.QUOTA, "limit reached", quota_scope=reach)


def test_a_provider_that_asked_for_a_long_pause_is_left_alone_although_a_later_refusal_names_none() -> None:
    world = a_world(CLOUD)
    for slot in ("cloud1", "cloud2"):
        world.node(slot, NodeState.REQUESTED, sent_s=1.0, call=a_call(CallKind.CREATE))
    world.see(CloudCallFailed("create", world.id("cloud1"), FailureKind.THROTTLED, "slow down", 3600.0))
    world.see(CloudCallFailed("create", world.id("cloud2"), FailureKind.THROTTLED, "slow down"))
    world.job(whole_nodes(1)).wait(1800.0).all_is_fresh()
    assert boots(world.plan()) == []


# --- quota ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reach", "scope", "blocked"),
    [
        (QuotaScope.TYPE, Scope(SPOT.name), {"spot"}),
        (QuotaScope.MARKET, Scope(EVERYTHING.type_name, Market.SPOT), {"spot", "spot2"}),
        (QuotaScope.ACCOUNT, EVERYTHING, {"spot", "spot2", "cloud"}),
        (None, EVERYTHING, {"spot", "spot2", "cloud"}),
    ],
)
def test_a_quota_keeps_out_as_much_as_the_provider_says(
    reach: QuotaScope | None, scope: Scope, blocked: set[str]
) -> None:
    other = replace(a_type("spot2", price="0.12"), market=Market.SPOT)
    world = a_world(SPOT, other, CLOUD).node("spot1", NodeState.REQUESTED, sent_s=1.0, call=a_call(CallKind.CREATE))
    world.see(_quota(reach, world.id("spot1")))
    assert set(world.snapshot.learned.quotas) == {scope}
    types = world.job(whole_nodes(1)).plan().types
    assert {name for name, why in types.items() if why.code == "at_quota"} == blocked


def test_21_a_quota_is_learned_as_what_stood_and_kept_to() -> None:
    provider = Provider(a_world(CLOUD, GPU_FOR_ALL, nodes_max=6))
    provider.limit[CLOUD.name] = 2
    provider.world.job(*[whole_nodes(1)] * 4)
    provider.turns(8)
    assert provider.standing("cloud") == 2
    assert provider.world.snapshot.learned.quotas[Scope(CLOUD.name)].cap == 2
    # Nodes beyond the quota are bought of another type, and no further create is wasted on the first.
    assert provider.standing("gpu") == 2
    assert provider.turns(5) == []


def test_21_one_more_than_the_quota_is_tried_later_and_the_cap_rises_with_what_is_had() -> None:
    provider = Provider(a_world(CLOUD, nodes_max=4))
    provider.limit[CLOUD.name] = 1
    provider.world.job(*[whole_nodes(1)] * 4)
    provider.turns(5)
    assert provider.standing("cloud") == 1
    assert provider.turns(3) == [], "not before its time"
    provider.limit[CLOUD.name] = 3
    sent = provider.turns(14, QUOTA_S / 6)
    assert sent.count("cloud") == 3, "two that were had, and one that met the new limit"
    assert provider.world.snapshot.learned.quotas[Scope(CLOUD.name)].cap == 3


def test_21_a_quota_that_stays_is_probed_more_rarely_each_time() -> None:
    provider = Provider(a_world(CLOUD))
    provider.limit[CLOUD.name] = 0
    provider.world.job(whole_nodes(1))
    pauses = []
    for _ in range(8):
        while not provider.turn(30.0):
            pass
        pauses.append(provider.world.snapshot.learned.quotas[Scope(CLOUD.name)].pause_s)
    assert pauses[:4] == [QUOTA_S, 2 * QUOTA_S, 4 * QUOTA_S, 8 * QUOTA_S]
    assert max(pauses) == Fixed().probe_s_max


def test_20_a_quota_met_with_no_node_at_all_is_probed_again() -> None:
    provider = Provider(a_world(CLOUD))
    provider.limit[CLOUD.name] = 0
    provider.world.job(whole_nodes(1))
    provider.turns(3)
    assert provider.world.snapshot.learned.quotas[Scope(CLOUD.name)].cap == 0
    assert provider.world.why_job(1).code == "at_quota"
    provider.limit[CLOUD.name] = 1
    provider.turns(3, QUOTA_S / 2)
    assert provider.standing("cloud") == 1


def test_a_node_that_goes_makes_room_within_the_quota_at_once() -> None:
    world = a_world(CLOUD).busy_node("cloud1").busy_node("cloud2")
    world.node("cloud3", NodeState.REQUESTED, sent_s=1.0, call=a_call(CallKind.CREATE))
    world.see(_quota(QuotaScope.TYPE, world.id("cloud3"))).job(whole_nodes(1))
    assert boots(world.decide()) == []
    world.see(LeaseEnded(world.id("cloud3")))
    gone = replace(world["cloud2"], state=NodeState.GONE)
    world.but(nodes={**world.snapshot.nodes, gone.id: gone})
    assert len(boots(world.plan())) == 1


@pytest.mark.parametrize(("rounds", "goes"), [(1, True), (2, True), (3, False), (4, True), (7, False), (8, True)])
def test_idle_nodes_make_room_for_fewer_and_fewer_tries_of_a_type_that_the_provider_lacks(
    rounds: int, *, goes: bool
) -> None:
    """Their end may not help: only a try shows it. They are not ended and bought again for each try."""
    block = Block(NOW_S + 60.0, FailureKind.CAPACITY, "none left", rounds)
    world = a_world().idle_node("cloud1").but(blocks={zone_scope(GPU, ""): block})
    world.job(tasks(1, gpus=1))
    assert orders(world.plan()) == (["drain cloud1-1"] if goes else [])


def test_what_was_leased_beyond_a_quota_gives_its_slot_back() -> None:
    provider = Provider(a_world(CLOUD, nodes_max=4, creates_burst=1, creates_per_s=0.5))
    provider.limit[CLOUD.name] = 1
    provider.world.job(*[whole_nodes(1)] * 4)
    provider.turns(8)
    assert [node.state for node in provider.world.snapshot.nodes.values()] == [NodeState.BOOTING]


# --- what passes ------------------------------------------------------------------------------------------


def test_hours_of_500s_are_tried_more_and_more_rarely() -> None:
    provider = Provider(a_world(CLOUD))
    provider.refuse[CLOUD.name] = CloudCallFailed("create", None, FailureKind.TRANSIENT, "500")
    provider.world.job(whole_nodes(1))
    tries = len(provider.turns(4 * 360, 10.0))  # four hours
    assert tries < 4 * 3600 / provider.world.policy.fixed.block_s_max + 10
    del provider.refuse[CLOUD.name]
    provider.turns(70, 10.0)
    assert provider.standing("cloud") == 1
    assert provider.world.snapshot.learned.blocks == {}, (
        "what is over is forgotten, so the next refusal waits briefly"
    )


def test_credentials_that_expired_keep_everything_out_until_they_work_again() -> None:
    provider = Provider(a_world())
    for name in (CLOUD.name, GPU.name):
        provider.refuse[name] = CloudCallFailed("create", None, FailureKind.CREDENTIALS, "ExpiredToken")
    provider.world.job(whole_nodes(1))
    provider.turns(3)
    assert provider.world.why_job(1).code == "blocked_create_credentials"
    assert provider.turns(4) == []
    assert 4 <= len(provider.turns(360, 10.0)) <= 16, "in an hour: each refusal is waited out for longer"
    provider.refuse.clear()
    provider.turns(12, 60.0)
    assert provider.standing("cloud") == 1


def test_a_permission_that_is_mended_at_once_is_noticed_soon() -> None:
    provider = Provider(a_world())
    for name in (CLOUD.name, GPU.name):
        provider.refuse[name] = CloudCallFailed("create", None, FailureKind.CREDENTIALS, "cannot patch")
    provider.world.job(whole_nodes(1))
    provider.turns(3)
    provider.refuse.clear()
    provider.turns(15)
    assert provider.standing("cloud") == 1, "within half a minute"


def test_18_a_request_that_can_never_work_is_not_sent_again_and_again() -> None:
    provider = Provider(a_world(CLOUD))
    provider.refuse[CLOUD.name] = CloudCallFailed("create", None, FailureKind.CONFIG, "InvalidAMIID")
    provider.world.job(*[whole_nodes(1)] * 3)
    assert len(provider.turns(60, 10.0)) <= 3, "those that were on their way, in ten minutes"
    assert provider.world.snapshot.nodes == {}, "no lease is leaked"
    assert provider.world.why_job(1).code == "blocked_create_config"


def test_creates_that_fail_together_are_one_refusal() -> None:
    """The provider is away for a moment. What was under way just then does not lengthen the wait."""
    world = a_world(CLOUD)
    for slot in ("cloud1", "cloud2", "cloud3"):
        world.node(slot, NodeState.REQUESTED, sent_s=1.0, call=a_call(CallKind.CREATE))
    for slot in ("cloud1", "cloud2", "cloud3"):
        world.see(CloudCallFailed("create", world.id(slot), FailureKind.TRANSIENT, "503"))
    world.job(whole_nodes(1)).wait(BLOCK_S[FailureKind.TRANSIENT] + 1.0).all_is_fresh()
    assert len(boots(world.plan())) == 1


# --- the breaker ------------------------------------------------------------------------------------------


def _with_boots_that_fail(world: World, how: str = "never joins", turns: int = 12) -> tuple[Provider, list[str]]:
    provider = Provider(world)
    provider.boots_fail = how
    return provider, provider.turns(turns, 10.0)


@pytest.mark.parametrize("how", ["dies", "never joins", "says that it cannot"])
def test_18_boots_that_fail_in_a_row_stop_the_buying_of_their_type_and_image(how: str) -> None:
    provider, sent = _with_boots_that_fail(a_world(CLOUD).job(whole_nodes(1)), how)
    assert len(sent) == 3
    why = provider.world.why_job(1)
    assert (why.code, why.figures["failures"]) == ("breaker_open", 3)
    (warning,) = provider.world.plan().warnings
    assert warning.code == "breaker_open", "it is an alarm"


def test_18_another_type_is_bought_instead() -> None:
    _, sent = _with_boots_that_fail(a_world(CLOUD, GPU_FOR_ALL).job(tasks(1)))
    assert sent[:3] == ["cloud"] * 3
    assert "gpu" in sent[3:]


def test_18_an_open_breaker_tries_one_node_at_a_time() -> None:
    provider, _ = _with_boots_that_fail(a_world(CLOUD).job(*[whole_nodes(1)] * 3))
    provider.boots_fail = ""
    provider.world.wait(901.0)
    assert len(provider.turns(3)) == 1, "one on trial, though three are short"
    assert provider.world.plan().types[CLOUD.name].code == "breaker_trying"


def test_18_a_trial_that_fails_is_waited_for_longer() -> None:
    provider, _ = _with_boots_that_fail(a_world(CLOUD).job(whole_nodes(1)))
    (streak,) = provider.world.snapshot.learned.streaks.values()
    assert streak.pause_s == 900.0
    provider.world.wait(901.0)
    assert len(provider.turns(4, 10.0)) == 1
    (streak,) = provider.world.snapshot.learned.streaks.values()
    assert (streak.failures, streak.pause_s) == (4, 1800.0)


def test_18_boots_that_were_under_way_when_the_type_was_closed_do_not_lengthen_its_pause() -> None:
    jobs = [whole_nodes(1)] * 5
    provider, sent = _with_boots_that_fail(a_world(a_type("cloud", slots=5)).job(*jobs), turns=3)
    assert len(sent) == 5
    (streak,) = provider.world.snapshot.learned.streaks.values()
    assert (streak.failures, streak.pause_s) == (5, 900.0)


def test_18_a_boot_that_succeeds_closes_the_breaker() -> None:
    provider, _ = _with_boots_that_fail(a_world(CLOUD).job(*[whole_nodes(1)] * 3))
    provider.boots_fail = ""
    provider.world.wait(901.0)
    provider.turns(3)
    (node,) = provider.world.snapshot.nodes.values()
    provider.world.wait(1.0).see_ranks(
        replace(provider.world.rank_now(node.launch.slot), online=True, schedulable=True, cores_free=CLOUD.cores)
    )
    assert provider.world.snapshot.learned.streaks == {}
    assert len(provider.turns(3)) == 2


def test_18_a_new_image_closes_the_breaker() -> None:
    provider, _ = _with_boots_that_fail(a_world(CLOUD).job(whole_nodes(1)))
    mended = replace(provider.world.policy, node_types=(replace(CLOUD, image="image-2"),))
    provider.world.policy = mended
    assert len(provider.turns(3)) == 1


def test_18_a_boot_that_fails_counts_against_the_image_that_it_was_made_from() -> None:
    """A reload switched to a new image while nodes of the old one were booting."""
    provider = Provider(a_world(CLOUD).job(*[whole_nodes(1)] * 3))
    assert len(provider.turns(3)) == 3
    provider.world.policy = replace(provider.world.policy, node_types=(replace(CLOUD, image="image-2"),))
    provider.boots_fail = "never joins"
    sent = provider.turn()
    provider.boots_fail = ""
    assert len(sent + provider.turns(3)) == 3


def test_18_after_a_restart_boots_that_were_ordered_before_say_nothing_of_the_image_and_new_ones_do() -> None:
    """After fixing an image, an administrator restarts the service and expects it to try again."""
    world = a_world(CLOUD).job(*[whole_nodes(1)] * 3)
    provider = Provider(world)
    launches = [a_launch(f"cloud{number}", world.policy) for number in (1, 2, 3)]
    world.but(claimed=False).see_claim(*launches)
    provider.made = {it.id: a_cloud_node(it, state=CloudState.PENDING) for it in launches}
    provider.turns(2)
    assert all(node.create.adopted for node in world.snapshot.nodes.values())
    provider.boots_fail = "never joins"
    provider.turn()
    assert world.snapshot.learned.streaks == {}
    assert len(provider.turns(6, 10.0)) >= 3
    assert world.why_job(1).code == "breaker_open", "for those that it ordered itself"


def test_18_a_node_that_a_provider_took_back_for_want_of_capacity_says_nothing_of_its_image() -> None:
    world = a_world(CLOUD).booting_node("cloud1")
    taken = replace(a_cloud_node(world["cloud1"].launch), state=CloudState.TERMINATED, died_of=FailureKind.CAPACITY)
    world.wait(1.0).see_cloud(taken)
    assert world.snapshot.learned.streaks == {}
