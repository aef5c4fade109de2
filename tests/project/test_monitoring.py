"""The alert rules, as promtool runs them, and the board: they speak of metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

RULES = ROOT / "config" / "prometheus" / "flux-node-manager.rules.yaml"
BOARD = ROOT / "config" / "grafana" / "flux-node-manager.json"
METRICS = ROOT / "nodemanager" / "web" / "api" / "metrics.py"
NAME = re.compile(r"\bnode_manager_(\w+?)(?:_total|_bucket)?\b(?=[{\[) ,]|$)", re.MULTILINE)

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool; on Debian: apt-get install prometheus"
)


@needs_promtool
@pytest.mark.parametrize(
    "arguments", [["check", "rules", RULES.name], ["test", "rules", "flux-node-manager.test.yaml"]]
)
def test_the_rules_do_what_their_tests_say(arguments: list[str]) -> None:
    ran = subprocess.run(
        ["promtool", *arguments], cwd=RULES.parent, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def queries_of_the_board() -> list[str]:
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def queries_of_the_rules() -> list[str]:
    return re.findall(r"^ +expr: (.*)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("query", [*queries_of_the_board(), *queries_of_the_rules()])
def test_every_metric_that_is_asked_for_is_there(query: str) -> None:
    offered = set(re.findall(r'"(\w+)"', METRICS.read_text(encoding="utf-8")))
    asked = set(NAME.findall(query))
    assert asked or "up{" in query
    assert asked - offered == set()


def test_the_panels_stand_beside_each_other() -> None:
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)


@needs_promtool
def test_promtool_reads_every_query_of_the_board(tmp_path: Path) -> None:
    known = {"$job": ".*", "$__rate_interval": "5m"}
    rules = ["groups:", "- name: board", "  rules:"]
    for number, query in enumerate(queries_of_the_board()):
        for variable, value in known.items():
            query = query.replace(variable, value)  # noqa: PLW2901
        rules.append(f"  - {{record: 'board:{number}', expr: {json.dumps(query)}}}")
    file = tmp_path / "board.yaml"
    file.write_text("\n".join(rules))
    ran = subprocess.run(
        ["promtool", "check", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
