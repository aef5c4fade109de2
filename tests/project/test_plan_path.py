"""How much somebody must read to follow one plan: the files it enters, and the moves between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nodemanager.core.orders import BootNode, DrainNode
from nodemanager.planner.plan import Plan, plan
from tests.builders import a_world, whole_nodes
from tests.paths import ROOT

SOURCES = str(ROOT / "nodemanager") + "/"


def _files_and_moves(work: Callable[[], object]) -> tuple[set[str], int]:
    """The source files of which a call runs at least one line, and how often one of them is left for another."""
    files: set[str] = set()
    last, moves = "", 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last, moves
        name = frame.f_code.co_filename
        if not name.startswith(SOURCES):
            return None
        if name != last:
            last, moves = name, moves + 1
        if event == "line":
            files.add(name.removeprefix(SOURCES))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return files, moves


BUYS = a_world().job(whole_nodes(1))
RETIRES = a_world().idle_node(hour_ends_in_s=50.0)


@pytest.mark.parametrize(
    ("world", "order", "files_max", "moves_max"), [(BUYS, BootNode, 39, 703), (RETIRES, DrainNode, 26, 272)]
)
def test_a_plan_is_followed_in_few_files(world: Any, order: type, files_max: int, moves_max: int) -> None:
    made: list[Plan] = []
    snapshot, policy = world.snapshot, world.policy
    files, moves = _files_and_moves(lambda: made.append(plan(snapshot, policy)))
    assert [type(it) for it in made[0].actions] == [order]
    assert len(files) <= files_max, f"lower the bound, never raise it without a decision: {sorted(files)}"
    assert moves <= moves_max
