"""Two local clouds in one site, live: while the cheap one is away the other serves, and nothing is lost."""

from __future__ import annotations

import json

from nodemanager.cloud.local.driver import LocalNodeDriver
from tests.live.elastic import NODE_TYPE, Offer, an_elastic_site

WEST = "\n[Cloud west]\nprovider = local\nnodes_max = 2\n" + NODE_TYPE.format(
    name="west", cores=2, gpus=0, price="0.5", slots="west[1-3]", billing="4s"
).replace("cores =", "cloud = west\ncores =")


def test_a_cloud_that_is_away_stops_nothing_of_the_other() -> None:
    offers = [Offer("cpu", price="0.1", slots="cpu[1-2]")]
    with an_elastic_site(offers, policy=WEST, timing="safe_mode_max = 20s") as elastic:
        west = LocalNodeDriver(elastic.site.state_dir / "cloud-west")

        def living() -> tuple[int, int]:
            """The nodes of the first cloud and of the second, which keeps its dead on the list for a minute."""
            there = [node for node in west.list_nodes() if node.state in ("running", "pending")]
            return len(elastic.witness.living()), len(there)

        elastic.start_manager().until_said("started")
        first = elastic.submit("sleep", "1")
        elastic.eventually("the cheap cloud served", lambda: elastic.result(first) == "COMPLETED")
        assert elastic.jobs()[first].slots == ("cpu1",)
        elastic.eventually("its node went", lambda: not elastic.what_is_left())

        # A job runs there when the cloud goes away: its lists fail from now on.
        long = elastic.submit("sleep", "45")
        elastic.eventually("a job runs on the cheap cloud", lambda: elastic.jobs()[long].began_at)
        faults = elastic.site.state_dir / "cloud" / "faults.json"
        faults.write_text(json.dumps({"out_of_order": 1}))
        pair = [elastic.submit("sleep", "1") for _ in range(2)]
        elastic.eventually(
            "the other cloud served",
            lambda: all(elastic.result(job) == "COMPLETED" for job in pair),
            within_s=80.0,
        )
        assert {slot for job in pair for slot in elastic.jobs()[job].slots} <= {"west1", "west2"}
        status = json.loads(elastic.verb("status", "--json"))
        assert status["sources"]["cloud default"]["failure"]
        assert not status["sources"]["cloud west"]["stale"]
        elastic.eventually("its own nodes went", lambda: living()[1] == 0)

        elastic.eventually("the job ran to its end", lambda: elastic.result(long) == "COMPLETED", within_s=80.0)
        faults.unlink()
        elastic.eventually("the cloud is back, and nothing is left", lambda: not elastic.what_is_left())
        launches = {launch.cloud for launch in elastic.launches()}
        assert (living(), launches) == ((0, 0), set())
