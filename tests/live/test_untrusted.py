"""Jobs whose owners nest values deeper than Python reads: the manager decides on, by bindings and by a bridge."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.live.elastic import Elastic, an_elastic_site
from tests.live.six_jobs import OFFERS

MEMO_DEPTH = 1_900  # Flux takes 2,048
JOBSPEC_DEPTHS = (971, 982)
_HOLE = '"<deep>"'
_MEMO = """
import sys, flux
job, depth = int(sys.argv[1]), int(sys.argv[2])
text = '{"id": %d, "volatile": false, "memo": {"deep": %s}}' % (job, "[" * depth + "]" * depth)
flux.Flux().rpc("job-manager.memo", text).get()
"""


@pytest.fixture(params=["never", "always"])
def elastic(request: pytest.FixtureRequest) -> Iterator[Elastic]:
    """A site whose manager uses a bridge to Flux never, or always."""
    with an_elastic_site(OFFERS, flux=f"bridge = {request.param}") as elastic:
        yield elastic


def _submit_deep(elastic: Elastic, depth: int) -> int:
    """Submit a held job with objects so deep in ``attributes.user``."""
    jobspec = json.loads(elastic.flux("submit", "--dry-run", "-N1", "true"))
    jobspec["attributes"]["user"] = "<deep>"
    text = json.dumps(jobspec).replace(_HOLE, '{"a":' * depth + "1" + "}" * depth)
    return int(
        elastic.flux("job", "id", "--to=dec", elastic.flux("job", "submit", "--urgency=0", given=text).strip())
    )


def test_a_deep_jobspec_and_a_deep_memo_stop_nobody_elses_nodes(elastic: Elastic) -> None:
    deep = [_submit_deep(elastic, depth) for depth in JOBSPEC_DEPTHS]
    with_memo = elastic.submit("true", held=True)
    elastic.flux("python", "-c", _MEMO, str(with_memo), str(MEMO_DEPTH))
    manager = elastic.start_manager()
    manager.until_said("started")
    probe = elastic.submit("true")
    elastic.eventually("the probe has run", lambda: elastic.result(probe) == "COMPLETED")
    elastic.flux("python", "-c", _MEMO, str(with_memo), str(MEMO_DEPTH))  # while the manager watches
    deep.append(_submit_deep(elastic, JOBSPEC_DEPTHS[-1]))
    second = elastic.submit("true", requires={"properties": ["fast"]})
    elastic.eventually("the second has run", lambda: elastic.result(second) == "COMPLETED")
    assert all(elastic.jobs()[job].began_at is None for job in (*deep, with_memo))
    said = elastic.said()
    for job in deep:
        assert f'{{"job": "{job}", "why": "jobspec: it nests deeper than 64 levels"' in said
    assert "stream_failed" not in said
    for job in (*deep, with_memo):
        elastic.flux("cancel", str(job))
