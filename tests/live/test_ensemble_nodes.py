"""An ensemble beside a node manager: grow and shrink move a floor of nodes."""

from __future__ import annotations

from tests.live.elastic import Elastic
from tests.live.ensemble_runs import EnsembleProcess

GROWS = """\
logging: {heartbeat: 0.5}
jobs:
  - {name: s, command: sleep 1, count: 2}
  - {name: last, command: sleep 1}
rules:
  - {trigger: start, action: {name: grow, value: 3}}
  - {trigger: start, action: {name: grow, value: 90}}
  - {trigger: start, action: {name: submit, label: s}}
  - {trigger: metric, name: count.s.success, when: 2, action: {name: shrink, value: 2}}
  - {trigger: metric, name: count.s.success, when: 2, action: {name: submit, label: last}}
"""


def test_grow_keeps_nodes_and_shrink_and_the_end_let_them_go(elastic: Elastic) -> None:
    manager = elastic.start_manager()
    elastic.eventually("the manager acts", elastic.owner)
    file = elastic.site.path.parent / "grows.yaml"
    file.write_text(GROWS)
    run = EnsembleProcess(elastic.site.flux.uri, file.parent, file)
    elastic.eventually("three nodes", lambda: len(elastic.launches()) >= 3)
    elastic.eventually("the jobs have run", lambda: (4, 1) in run.fired())
    notes = [event["text"] for event in run.events if event["event"] == "note"]
    assert notes == ["resize was not carried out: it asks for 93 nodes, and [Limits] nodes_max = 24"]
    elastic.eventually("one node is kept", lambda: len(elastic.launches()) == 1)
    assert run.process.poll() is None
    run.stop("grows")
    elastic.eventually("no node is kept", lambda: not elastic.launches())
    assert manager.process.poll() is None
