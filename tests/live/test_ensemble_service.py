"""``[Ensemble NAME]``: the service runs ensembles, and a killed service goes on with them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.live.elastic import Elastic, an_elastic_site
from tests.live.ensemble_runs import ask_at
from tests.live.six_jobs import OFFERS

SECTIONS = """
[Ensemble work]
file = work.yaml
nodes_max = 2
[Ensemble closed]
file = closed.yaml
"""
WORK = """\
logging: {heartbeat: 0.5}
jobs:
  - {name: a, command: sleep 1, count: 3}
  - {name: b, command: "true"}
rules:
  - {trigger: start, action: {name: grow, value: 3}}
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: metric, name: count.a.success, when: 3, action: {name: submit, label: b}}
"""
CLOSED = """\
custom: |
  def f(**k): return {"name": "submit", "label": "a"}
jobs: [{name: a, command: "true"}]
rules:
  - {trigger: start, action: {name: custom, label: f}}
"""


@pytest.fixture
def elastic() -> Iterator[Elastic]:
    with an_elastic_site(OFFERS, policy=SECTIONS) as elastic:
        folder = elastic.site.path.parent
        (folder / "work.yaml").write_text(WORK)
        (folder / "closed.yaml").write_text(CLOSED)
        yield elastic


def test_the_service_runs_its_ensembles_once_and_goes_on_after_a_kill(elastic: Elastic) -> None:
    uri = elastic.site.flux.uri
    manager = elastic.start_manager()
    manager.until_said("ensemble_rule", ensemble="work")
    manager.until_said("ensemble_note", text="[Ensemble work] nodes_max = 2")
    manager.until_said("ensemble_note", text="allow_custom = no")
    manager.until_said("ensemble_ended", ensemble="closed")
    manager.kill()
    assert "work: waits for a process" in ask_at(uri, "list")
    second = elastic.start_manager()
    second.until_said("ensemble_resumed", ensemble="work")
    second.until_said("ensemble_ended", ensemble="work")
    second.until_said("ensemble_not_run", ensemble="closed")
    status = ask_at(uri, "status", "work")
    assert "nothing more can happen" in status
    jobs = elastic.flux("jobs", "-a", "-n", "-o", "{name}").split()
    assert sorted(jobs) == ["sleep", "sleep", "sleep", "true"]
    history = json.loads(elastic.verb("explain", "ensemble", "work", "--json"))["history"]
    shown = [(line["what"], line["detail"]) for line in history[-3:]]
    assert [what for what, _ in shown] == ["resumed", "rule", "ended"]
    assert "count.a.success == 3 -> submit b" in shown[1][1]
    assert "nothing more can happen; a: 3 finished, 3 success; b: 1 finished, 1 success" in shown[2][1]
    events = elastic.verb("events")
    assert "ensemble work" in events
    assert "3 success" not in events, "everybody may see these"
    assert second.terminate(5.0) == 0


def test_check_shows_the_faults_of_the_files(elastic: Elastic) -> None:
    (elastic.site.path.parent / "work.yaml").write_text(WORK.replace("label: b", "label: c"))
    assert 'no group is called "c"' in elastic.verb("check", status=78)
