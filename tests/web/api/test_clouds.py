"""The clouds of a site that has several: in the status, in ``top`` and on the command line."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from starlette.testclient import TestClient

from nodemanager.actors.manager import Publication
from nodemanager.cli import tables
from nodemanager.cli.top import command
from nodemanager.cli.top.screen import Screen
from nodemanager.core.facts import CloudCallFailed, CloudListed
from nodemanager.core.nodes import FailureKind, NodeState
from nodemanager.core.orders import BootNode
from nodemanager.core.slots import CloudName
from nodemanager.planner.node_index import with_nodes as with_nodes_of
from nodemanager.planner.policy import CloudRules
from nodemanager.planner.snapshot import FailureStreak, Source
from nodemanager.planner.spending import periods
from tests.builders import NOW_S, WALL_AT, World, whole_nodes
from tests.planner.test_clouds import EAST, WEST, a_stray, in_cloud, two_clouds
from tests.web.fleets import HOST, a_fleet, a_stand, published

RULES = {EAST: CloudRules(nodes_max=20, price_per_hour_max=Decimal(32)), WEST: CloudRules()}


def status_of(publication: Publication) -> Any:
    stand = a_stand(by_socket=True)
    stand.post(publication)
    with TestClient(stand.application, base_url=f"http://{HOST}") as client:
        return client.get("/status").json()


def clouds_of(world: World) -> dict[str, Any]:
    return {it["name"]: it for it in status_of(published(world.policy, world.snapshot))["clouds"]}


def with_nodes(**settings: Any) -> World:
    world = two_clouds(rules_of=RULES, **settings)
    for slot, cloud in (("east1", EAST), ("east2", EAST), ("west1", WEST)):
        world = in_cloud(world.busy_node(slot) if slot != "east2" else world.idle_node(slot), slot, cloud)
    return world


def test_each_cloud_is_shown_with_its_nodes_price_and_budgets() -> None:
    world = with_nodes(budgets={("cloud east", "day"): Decimal(60), ("cloud east", "month"): Decimal(600)})
    day, month = periods(WALL_AT)
    world.but(
        amounts={
            (day.name, day.begins_at, "cloud east"): Decimal("1.00"),
            (month.name, month.begins_at, "cloud east"): Decimal("7.00"),
        }
    )
    clouds = clouds_of(world)
    east, west = clouds["east"], clouds["west"]
    assert (east["state"], east["nodes"], east["by_state"]) == ("open", 2, {"busy": 1, "idle": 1})
    assert (east["nodes_max"], east["price_per_hour"], east["price_per_hour_max"]) == (20, 0.2, 32.0)
    # An hour of two nodes has been billed since.
    assert [(it["period"], it["budget"], it["spent"], it["left"]) for it in east["budgets"]] == [
        ("day", 60.0, 1.2, 58.8),
        ("month", 600.0, 7.2, 592.8),
    ]
    assert (west["nodes"], west["nodes_max"], west["price_per_hour"], west["budgets"]) == (1, None, 0.4, [])
    assert west["troubles"] == []


def test_a_node_that_no_launch_owns_counts_and_one_that_is_gone_does_not() -> None:
    """As with the limits and the price, which stand next to the number."""
    world = with_nodes()
    world.see(CloudListed(NOW_S, (a_stray("i-9", "east3", "east"),), EAST))
    gone = {id_: replace(it, state=NodeState.GONE) for id_, it in world.snapshot.nodes.items()}
    world = World(world.policy, with_nodes_of(world.snapshot, gone))
    east = clouds_of(world)["east"]
    assert (east["nodes"], east["price_per_hour"], east["by_state"]) == (1, 0.1, {"gone": 2})


def test_a_site_with_one_cloud_shows_none() -> None:
    document = status_of(a_fleet(12))
    assert document["clouds"] == []
    console = Console(width=100)
    with console.capture() as capture:
        console.print(tables.status(document))
    assert "cloud " not in capture.get().replace("cloud 1s", "").replace("cloud 0s", "")


def test_a_cloud_that_does_not_answer_says_since_when() -> None:
    world = with_nodes()
    age_s = world.policy.timing.stale_after_s + 300.0
    account = replace(world.snapshot.account_of(EAST), source=Source(seen_s=NOW_S - age_s, failure="no route"))
    world.but(accounts={**world.snapshot.accounts, EAST: account})
    east = clouds_of(world)["east"]
    (trouble,) = east["troubles"]
    assert (east["state"], trouble["since_at"]) == ("stale", WALL_AT - 300.0)
    assert trouble["reason"]["text"] == "nothing is done in the cloud east: it has not answered for too long"
    never = replace(account, source=Source())
    east = clouds_of(world.but(accounts={**world.snapshot.accounts, EAST: never}))["east"]
    assert (east["state"], east["troubles"][0]["since_at"]) == ("stale", None)


def test_a_throttled_cloud_counts_from_the_first_refusal() -> None:
    world = with_nodes().job(whole_nodes(2))
    boot = world.decide().actions[0]
    assert isinstance(boot, BootNode)
    refused = CloudCallFailed("create", boot.launch.id, FailureKind.THROTTLED, "slow down", cloud=EAST)
    world.see(refused)
    east = clouds_of(world)["east"]
    assert (east["state"], east["troubles"][0]["since_at"]) == ("throttled", WALL_AT)
    assert east["troubles"][0]["until_at"] > WALL_AT
    assert clouds_of(world)["west"]["state"] == "open"
    blocks = world.snapshot.learned.blocks
    (scope, block), wall_at = next(iter(blocks.items())), world.snapshot.wall_at
    world.but(learned=replace(world.snapshot.learned, blocks={scope: replace(block, since_s=NOW_S - 60.0)}))
    assert clouds_of(world)["east"]["troubles"][0]["since_at"] == wall_at - 60.0


def test_an_open_breaker_names_its_type() -> None:
    world = with_nodes()
    streak = FailureStreak(3, NOW_S + 900.0, 900.0, "never_joined", NOW_S - 120.0)
    image = world.policy.node_types[0].image
    learned = replace(world.snapshot.learned, streaks={(world.policy.node_types[0].name, image): streak})
    east = clouds_of(world.but(learned=learned))["east"]
    (trouble,) = east["troubles"]
    assert (east["state"], trouble["node_type"], trouble["since_at"]) == ("breaker open", "east", WALL_AT - 120.0)


def test_a_cloud_that_has_spent_its_budget_and_one_that_the_site_has_lost_are_named() -> None:
    world = with_nodes(budgets={("cloud west", "day"): Decimal("0.10")})
    world = in_cloud(world.busy_node("west2"), "west2", CloudName("gone"))
    clouds = clouds_of(world)
    assert {name: it["state"] for name, it in clouds.items()} == {
        "east": "open",
        "west": "budget spent",
        "gone": "not in the site",
    }
    assert clouds["gone"]["nodes"] == 1


def shown_status(width: int, world: World) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(tables.status(status_of(published(world.policy, world.snapshot))))
    return capture.get()


def test_the_status_has_a_table_of_clouds() -> None:
    world = with_nodes(budgets={("cloud east", "day"): Decimal(1_234_567)})
    account = replace(world.snapshot.account_of(WEST), source=Source(seen_s=NOW_S - 480.0))
    text = shown_status(120, world.but(accounts={**world.snapshot.accounts, WEST: account}))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "east 2 of 20 0.20 of 32.00 0.20 of 1234567.00 a day open" in rows
    assert "west 1 0.40 - stale for 5m00s" in rows


def test_top_shows_the_clouds_within_the_width_of_the_terminal() -> None:
    world = with_nodes(budgets={("cloud east", "day"): Decimal(60), ("cloud east", "month"): Decimal(600)})
    screen = replace(Screen(), status=status_of(published(world.policy, world.snapshot)))
    for width in (60, 80, 120):
        lines = [it.plain for it in command.draw(screen, width, 24)]
        assert all(cell_len(line) <= width for line in lines)
        east = next(line for line in lines if line.startswith("east") and "of 20" in line)
        assert "0.20 of 32.00" in east
    one_cloud = replace(Screen(), status=status_of(a_fleet(5)))
    assert not any(it.plain.startswith("cloud ") for it in command.draw(one_cloud, 80, 24))
