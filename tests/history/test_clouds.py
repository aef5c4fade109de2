"""Costs and boots by cloud: in the history and in the report."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from nodemanager.cli import tables
from nodemanager.core.facts import CloudCallFailed
from nodemanager.core.nodes import FailureKind, LaunchId
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName
from nodemanager.history.cost_ledger import HOUR_S, NOBODY, CostKey, CostSum
from nodemanager.history.follower import HistoryUpdate
from nodemanager.history.node_lives import NodeLife
from nodemanager.history.store import schema
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.web.api import panels
from tests.builders import NOW_S, WALL_AT, a_node
from tests.history.publications import a_moment, told
from tests.planner.test_clouds import EAST, WEST, in_cloud, two_clouds

HOUR = int(WALL_AT // HOUR_S)
UNTIL_AT = WALL_AT + HOUR_S


def a_cost(cloud: str, cost: float, use: str = "job") -> tuple[CostKey, CostSum]:
    return CostKey(HOUR, "cpu", NOBODY, "", use, CloudName(cloud)), CostSum(cost, HOUR_S)


def a_life(number: int, cloud: str, outcome: str) -> NodeLife:
    return NodeLife(LaunchId(f"cpu1-{number}"), "cpu1", "cpu", WALL_AT + number, outcome=outcome, cloud=cloud)


COSTS = dict([a_cost("east", 2.0), a_cost("east", 1.0, "idle"), a_cost("west", 5.0)])
LIVES = (
    a_life(1, "east", "joined"),
    a_life(2, "east", "never_joined"),
    a_life(3, "east", "create_capacity"),  # refused: no boot
    a_life(4, "west", "joined"),
    a_life(5, "west", "joined"),
    a_life(6, "west", ""),  # it still boots
    a_life(7, "south", "never_appeared"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / schema.HISTORY_FILE


def write(path: Path, costs: dict[CostKey, CostSum], *lives: NodeLife) -> HistoryReader:
    writer = HistoryWriter(path)
    changes = tuple((None, life) for life in lives)
    writer.write([HistoryUpdate(a_moment(), (), (), (), changes, costs)])
    writer.close()
    return HistoryReader(path)


def by_cloud(reader: HistoryReader) -> list[tuple[object, ...]]:
    rows = reader.report(WALL_AT, UNTIL_AT)["by_cloud"]
    return [tuple(row[key] for key in ("cloud", "cost", "node_hours", "booted", "boots_failed")) for row in rows]


def shown(document: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(tables.report(document))
    return capture.get()


def test_the_report_sums_costs_and_boots_by_cloud_the_dearest_first(path: Path) -> None:
    reader = write(path, COSTS, *LIVES)
    assert by_cloud(reader) == [("west", 5.0, 1.0, 2, 0), ("east", 3.0, 2.0, 1, 1), ("south", 0.0, 0.0, 0, 1)]
    text = shown(reader.report(WALL_AT, UNTIL_AT))
    (line,) = (it for it in text.splitlines() if it.strip().startswith("east "))
    assert line.split() == ["east", "3.00", "2.00", "1", "1"]


def test_a_site_with_one_cloud_has_no_table_of_clouds(path: Path) -> None:
    reader = write(path, dict([a_cost(DEFAULT_CLOUD, 2.0)]), a_life(1, DEFAULT_CLOUD, "joined"))
    assert by_cloud(reader) == [("default", 2.0, 1.0, 1, 0)]
    assert "by cloud" not in shown(reader.report(WALL_AT, UNTIL_AT))


def as_before(path: Path) -> None:
    """Make the file one of the last version that kept no clouds."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "ALTER TABLE lives DROP COLUMN cloud; ALTER TABLE spend RENAME TO newer;"
            " CREATE TABLE spend (hour INTEGER NOT NULL, node_type TEXT NOT NULL, userid INTEGER NOT NULL,"
            " queue TEXT NOT NULL, use TEXT NOT NULL, cost REAL NOT NULL, node_s REAL NOT NULL,"
            " PRIMARY KEY (hour, node_type, userid, queue, use)) WITHOUT ROWID;"
            " INSERT INTO spend SELECT hour, node_type, userid, queue, use, SUM(cost), SUM(node_s) FROM newer"
            " GROUP BY hour, node_type, userid, queue, use; DROP TABLE newer; DROP TABLE charged;"
            " DROP TABLE fleet; PRAGMA user_version = 7;"
        )


def test_a_file_that_an_older_version_still_writes_is_read(path: Path) -> None:
    reader = write(path, COSTS, *LIVES)
    as_before(path)
    report = reader.report(WALL_AT, UNTIL_AT)
    assert (report["cost"], report["by_cloud"]) == (8.0, [])
    assert "by cloud" not in shown(report)
    assert len(list(reader.lives(1e9))) == len(LIVES)
    (day,) = panels.costs(reader.cost_by_day(WALL_AT), with_users=False)["days"]
    assert (day["cost"], day["by_cloud"]) == (8.0, {"": 8.0})


def test_its_records_stay_beside_those_that_follow(path: Path) -> None:
    write(path, COSTS, *LIVES)
    as_before(path)
    reader = write(path, dict([a_cost("east", 1.0), a_cost("west", 4.0)]), a_life(8, "east", "joined"))
    assert by_cloud(reader) == [("", 8.0, 3.0, 3, 2), ("west", 4.0, 1.0, 0, 0), ("east", 1.0, 1.0, 1, 0)]
    assert "(not recorded)" in shown(reader.report(WALL_AT, UNTIL_AT))
    assert not list(path.parent.glob("*.unusable-*"))


def test_the_days_are_summed_by_cloud_too(path: Path) -> None:
    (day,) = panels.costs(write(path, COSTS).cost_by_day(WALL_AT), with_users=False)["days"]
    assert day["by_cloud"] == {"east": 3.0, "west": 5.0}


def test_costs_and_lives_are_told_with_the_cloud_of_their_node() -> None:
    world = two_clouds()
    for slot, cloud in (("east1", EAST), ("west1", WEST)):
        world = in_cloud(world.busy_node(slot, billed_from_s=NOW_S), slot, cloud)
    nodes = list(world.snapshot.nodes.values())
    first, later = (a_moment(after_s, nodes=nodes, policy=world.policy) for after_s in (0.0, 600.0))
    begun, happened = told(first, later)
    assert {key.cloud: round(it.cost, 6) for key, it in happened.costs.items()} == {
        EAST: round(0.10 / 6, 6),
        WEST: round(0.40 / 6, 6),
    }
    assert {now.slot: now.cloud for _, now in begun.life_changes} == {"east1": "east", "west1": "west"}


def test_what_an_ended_node_had_paid_for_is_charged_to_its_cloud() -> None:
    world = in_cloud(two_clouds().idle_node("east1"), "east1", EAST)
    (node,) = world.snapshot.nodes.values()
    node = replace(node, listing=replace(node.listing, billed_from_s=NOW_S))
    *_, happened = told(a_moment(nodes=[node], policy=world.policy), a_moment(60.0, policy=world.policy))
    assert {(key.use, key.cloud) for key in happened.costs} == {("idle", "east"), ("unused", "east")}


def test_the_only_cloud_is_called_as_the_site_calls_it() -> None:
    (happened,) = told(a_moment(nodes=[a_node("cloud1")]))
    assert [now.cloud for _, now in happened.life_changes] == [DEFAULT_CLOUD]


def test_a_failed_call_says_in_which_cloud_it_failed() -> None:
    failed = CloudCallFailed("list", None, FailureKind.TRANSIENT, "no route")
    for cloud, expected in ((DEFAULT_CLOUD, None), (EAST, "east")):
        (happened,) = told(a_moment(facts=[replace(failed, cloud=cloud)]))
        (event,) = (it for it in happened.events if it.kind == "failed")
        assert event.figures.get("cloud") == expected
