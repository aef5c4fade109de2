"""Two local clouds in one site, live: while the cheap one is away the other serves, and nothing is lost."""

from __future__ import annotations

import json
from functools import partial

from nodemanager.cloud.local.port import LocalNodeDriver
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


PRICED = WEST.replace("provider = local\n", "provider = local\negress_price_per_gib = 0.09\n")


def test_nodes_are_bought_near_a_job_s_data_unless_its_egress_costs_less_than_that() -> None:
    """A day costs 9.60 more near the data, in the cloud west. 200 GiB cost 18.00 of egress, 1 GiB costs 0.09."""
    offers = [Offer("cpu", price="0.1", slots="cpu[1-2]")]
    with an_elastic_site(offers, policy=PRICED) as elastic:
        west = LocalNodeDriver(elastic.site.state_dir / "cloud-west")

        def nothing_is_left() -> bool:
            there = [node for node in west.list_nodes() if node.state in ("running", "pending")]
            return not (there or elastic.what_is_left() or elastic.launches())

        manager = elastic.start_manager()
        manager.until_said("started")
        cases: tuple[tuple[tuple[str, ...], str, str], ...] = (
            ((), "cpu1", "demand node_type=cpu job_count=1"),
            (("near=west",), "west1", "near=west"),
            (
                ("near=west", "data=200GiB"),
                "west1",
                "near=west cost=12.0 other_cost=2.4 egress=18.00 elsewhere=cpu",
            ),
            (
                ("near=west", "data=1GiB"),
                "cpu1",
                "away_from=west cost=2.4 other_cost=12.0 egress=0.09 at_home=west",
            ),
        )
        for wishes, slot, figures in cases:
            given = [f"--setattr=node-manager.{wish}" for wish in wishes]
            submitted = elastic.flux("submit", "-N1", "--exclusive", *given, "sleep", "2")
            job = int(elastic.flux("job", "id", "--to=dec", submitted))
            elastic.eventually(f"{wishes}: it ran", partial(elastic.result, job), within_s=80.0)
            assert (elastic.result(job), elastic.jobs()[job].slots) == ("COMPLETED", (slot,)), wishes
            why = manager.said("decided", order="BootNode")[-1]["because"]
            assert figures in why, (wishes, why)
            elastic.eventually(f"{wishes}: its node went", nothing_is_left, within_s=80.0)

        # What cannot be read refuses no job, and is shown. The job is held until that has been looked at.
        given = ["--setattr=node-manager.near=mars", "--setattr=node-manager.data=5 parsecs"]
        submitted = elastic.flux("submit", "-N1", "--exclusive", "--urgency=0", *given, "sleep", "2")
        job = int(elastic.flux("job", "id", "--to=dec", submitted))
        elastic.eventually("the manager knows it", lambda: str(job) in elastic.verb("jobs", "--json"))
        told = json.loads(elastic.verb("explain", "job", submitted, "--json"))["near"]
        units = "the unit must be one of B, KiB, MiB, GiB, TiB"
        assert (
            told == f'data: "5 parsecs", column 3: {units}; near: the site has no cloud mars; it has default, west'
        )
        elastic.flux("job", "urgency", submitted, "default")
        elastic.eventually("it ran", lambda: elastic.result(job) == "COMPLETED", within_s=80.0)
        assert elastic.jobs()[job].slots == ("cpu1",)
