"""Sites on which nodes once stayed for ever, or were bought and ended again and again."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nodemanager.config.load import load_site
from nodemanager.core.jobs import Shape
from nodemanager.service.assembly.policy import policy_of
from nodemanager.whatif.replay.invariants import fits_empty_fleet
from nodemanager.whatif.replay.result import Outcome
from nodemanager.whatif.study.study import Runner, run_setup
from nodemanager.whatif.workload.workload import TraceJob
from tests.whatif.sites import a_job, a_workload, unseen

HEAD = """
[Site]
cluster = small
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud]
provider = simulated
"""
HOUR_S = 3600.0


def _replay(
    folder: Path, text: str, jobs: Sequence[TraceJob], head: str = HEAD
) -> tuple[Outcome, float, list[dict[str, Any]]]:
    """The outcome, the cost of the idle-timeout baseline, and the events."""
    path = folder / "small.ini"
    path.write_text(head + text)
    site, sink = load_site(path, {}), io.StringIO()
    runner = Runner(a_workload(jobs), unseen)
    outcome = runner.run_production("small", site, sink)
    assert not outcome.broken
    baseline, _ = runner.run_baseline("idle-timeout", site)
    return outcome, baseline.cost, [json.loads(line) for line in sink.getvalue().splitlines()]


def _count(events: Sequence[dict[str, Any]], what: str) -> int:
    return sum(event["what"] == what for event in events)


STOPS = """
[Limits]
nodes_max = 6
price_per_hour_max = 20
[Policy]
idle_timeout = 0s
{policy}
[Simulation]
stop_delay = {stop_delay}
[Node thin]
cores = 2
memory = 4GiB
price_per_hour = 1
billing = {billing}
slots = thin[1-6]
"""


@pytest.mark.parametrize(
    ("policy", "stop_delay", "billing"),
    [("", "20s", "per-second"), ("stop_lead = 10m", "80s", "per-minute"), ("", "90s", "20s")],
)
def test_no_node_waits_for_a_window_that_is_shorter_than_its_stop(
    tmp_path: Path, policy: str, stop_delay: str, billing: str
) -> None:
    site = STOPS.format(policy=policy, stop_delay=stop_delay, billing=billing)
    jobs = [a_job(hours * HOUR_S, run_s=30.0) for hours in (0, 6, 12)]
    outcome, baseline, _ = _replay(tmp_path, site, jobs)
    assert outcome.jobs_served == 3
    assert outcome.cost <= baseline
    assert outcome.plans < 100


SPARES = """
[Limits]
nodes_max = 3
price_per_hour_max = 20
{limits}
[Policy]
queue_policy = {queue_policy}
[Node big]
cores = 4
memory = 4GiB
price_per_hour = 0.2
slots = big[1-2]
[Node small]
cores = 2
memory = 4GiB
price_per_hour = 0.1
billing = hourly
{spares}
slots = small[1-4]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
@pytest.mark.parametrize(("limits", "spares"), [("", "spares = 2"), ("nodes_min = 2", ""), ("nodes_min = 3", "")])
def test_nodes_that_no_job_needs_give_way_to_a_job_that_waits_for_a_limit(
    tmp_path: Path, queue_policy: str, limits: str, spares: str
) -> None:
    """They were bought again at once, or kept for ever, and the job got no room."""
    site = SPARES.format(queue_policy=queue_policy, limits=limits, spares=spares)
    jobs = [TraceJob("wide", 600.0, 300.0, 0.0, Shape(slots=2, cores_per_slot=4))]
    outcome, _, events = _replay(tmp_path, site, jobs)
    assert outcome.jobs_served == 1
    assert outcome.wait_mean_s < 300.0
    assert _count(events, "created") <= 8  # three or fewer before it, two for it, three or fewer after it


SHARE = """
[Limits]
nodes_max = 2
price_per_hour_max = 20
{limits}
[Policy]
queue_policy = {queue_policy}
spot_share_max = 0.3
[Node small]
cores = 1
memory = 4GiB
price_per_hour = 0.2
{spares}
slots = small[1-2]
[Node big]
cores = 4
memory = 4GiB
price_per_hour = 0.1
market = spot
slots = big[1-4]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
@pytest.mark.parametrize(("limits", "spares"), [("", "spares = 2"), ("nodes_min = 2", "")])
def test_no_node_gives_way_to_a_job_that_the_spot_share_keeps_from_its_nodes(
    tmp_path: Path, queue_policy: str, limits: str, spares: str
) -> None:
    """They gave way, the share then kept the job waiting, and they were bought again, without end."""
    site = SHARE.format(queue_policy=queue_policy, limits=limits, spares=spares)
    wide = TraceJob("wide", 600.0, 300.0, 0.0, Shape(slots=1, cores_per_slot=4))
    outcome, _, events = _replay(tmp_path, site, [wide])
    assert outcome.jobs_unserved == {"spot_share_max": 1}
    assert _count(events, "created") == 2


FULL = """
[Site]
cluster = small
state_dir = state
mode = act
[Flux]
uri = simulated
{cloud}
[Limits]
nodes_max = 9
price_per_hour_max = 20
{limits}
[Policy]
queue_policy = {queue_policy}
[Simulation]
{simulation}
[Node small]
cores = 1
memory = 4GiB
price_per_hour = 0.1
{spares}
slots = small[1-2]
[Node big]
cores = 4
memory = 4GiB
price_per_hour = 0.2
slots = big[1-4]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
@pytest.mark.parametrize(("limits", "spares"), [("", "spares = 2"), ("nodes_min = 2", "")])
@pytest.mark.parametrize(
    ("cloud", "simulation"),
    [
        ("[Cloud]\nprovider = simulated", "capacity = 2"),
        ("[Cloud one]\nprovider = simulated\nnodes_max = 2", ""),
    ],
)
def test_nodes_that_no_job_needs_give_way_to_a_job_for_which_the_provider_is_full(
    tmp_path: Path, cloud: str, simulation: str, queue_policy: str, limits: str, spares: str
) -> None:
    """They were kept, and the job waited for ever."""
    site = FULL.format(cloud=cloud, limits=limits, queue_policy=queue_policy, simulation=simulation, spares=spares)
    wide = TraceJob("wide", 600.0, 300.0, 0.0, Shape(slots=1, cores_per_slot=4))
    outcome, _, events = _replay(tmp_path, site, [wide], head="")
    assert outcome.jobs_served == 1
    assert outcome.wait_mean_s < 600.0
    assert _count(events, "created") <= 6


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
@pytest.mark.parametrize(
    ("limits", "spares"), [("", "spares = 2"), ("nodes_min = 2", ""), ("", "spares = 2\nmarket = spot")]
)
def test_nodes_that_no_job_needs_give_way_to_a_gang_that_was_put_off(
    tmp_path: Path, queue_policy: str, limits: str, spares: str
) -> None:
    """They held two of the provider's five nodes. The job was never served: 50 nodes were bought in a day."""
    cloud = "[Cloud]\nprovider = simulated"
    site = FULL.format(
        cloud=cloud, limits=limits, queue_policy=queue_policy, simulation="capacity = 5", spares=spares
    )
    gang = TraceJob("gang", 600.0, 300.0, 0.0, Shape(slots=4, cores_per_slot=4))
    outcome, _, events = _replay(tmp_path, site, [gang], head="")
    assert outcome.jobs_served == 1
    assert outcome.wait_mean_s < 300.0
    assert _count(events, "created") <= 8  # two before it, three and one for it, two after it


def test_spares_stay_if_the_gang_would_lack_nodes_without_them_too(tmp_path: Path) -> None:
    site = FULL.format(
        cloud="[Cloud]\nprovider = simulated",
        limits="",
        queue_policy="fifo",
        simulation="capacity = 3",
        spares="spares = 1",
    )
    gang = TraceJob("gang", 600.0, 300.0, 0.0, Shape(slots=4, cores_per_slot=4))
    later = a_job(8 * HOUR_S, run_s=60.0)
    _, _, events = _replay(tmp_path, site, [gang, later], head="")
    before = [it for it in events if it.get("at", 0.0) < 8 * HOUR_S]
    spare = [it for it in before if it["what"] == "created" and it["type"] == "small"]
    assert (len(spare), _count(before, "gone")) == (1, _count(before, "created") - 1)


SPOT_SPARES = """
[Limits]
nodes_max = 12
price_per_hour_max = 20
[Policy]
queue_policy = {queue_policy}
spot_share_max = 0.5
[Node small]
cores = 1
memory = 4GiB
price_per_hour = 0.1
market = spot
spares = 2
slots = small[1-4]
[Node base]
cores = 2
memory = 4GiB
price_per_hour = 0.2
slots = base[1-2]
[Node big]
cores = 4
memory = 4GiB
price_per_hour = 0.2
market = spot
slots = big[1-8]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_spot_spares_give_way_to_a_job_that_the_spot_share_keeps_from_its_nodes(
    tmp_path: Path, queue_policy: str
) -> None:
    """Two nodes on demand allow two spot nodes, which were both spares for as long as the long job ran."""
    long = TraceJob("long", 0.0, 20 * HOUR_S, 0.0, Shape(slots=2, cores_per_slot=2))
    wide = TraceJob("wide", HOUR_S, 300.0, 0.0, Shape(slots=1, cores_per_slot=4))
    outcome, _, events = _replay(tmp_path, SPOT_SPARES.format(queue_policy=queue_policy), [long, wide])
    assert outcome.jobs_served == 2
    assert outcome.wait_p99_s < 300.0
    assert _count(events, "created") <= 6  # two, two spares, one for it, and its spare again


def test_a_gang_is_tried_less_and_less_often_while_a_long_job_holds_one_of_its_nodes(tmp_path: Path) -> None:
    """It was tried every two minutes, and its other node booted and ended every hour, as if the job ended soon."""
    site = FULL.format(
        cloud="[Cloud]\nprovider = simulated",
        limits="",
        queue_policy="backfill",
        simulation="capacity = 2",
        spares="spares = 1",
    )
    long = TraceJob("long", 600.0, 86_400.0, 0.0, Shape(slots=1, cores_per_slot=4))
    one = TraceJob("one", 1200.0, 300.0, 0.0, Shape(slots=2, cores_per_slot=2))
    wide = TraceJob("wide", 1200.0, 300.0, 0.0, Shape(slots=2, cores_per_slot=4))
    outcome, _, events = _replay(tmp_path, site, [long, one, wide], head="")
    assert outcome.jobs_served >= 2  # the long job ends after a day
    assert _count(events, "created") < 20


GANG = """
[Limits]
nodes_max = 10
price_per_hour_max = 20
[Policy]
queue_policy = {queue_policy}
[Simulation]
capacity = 7
[Node thin]
cores = 4
memory = 4GiB
price_per_hour = 1
billing = {billing}
slots = thin[1-10]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
@pytest.mark.parametrize(("billing", "most"), [("per-second", 7 * 12), ("hourly", 7 * 5)])
def test_a_gang_that_the_provider_cannot_fill_is_tried_less_and_less_often(
    tmp_path: Path, queue_policy: str, billing: str, most: int
) -> None:
    """Eight whole nodes, of which the provider has seven. Jobs behind it run, in queue order too.

    It is tried once an hour. With hourly billing only every second try buys its nodes: 35, otherwise 56.
    """
    gang = TraceJob("gang", 0.0, 300.0, 0.0, Shape(nodes=8, slots=1, cores_per_slot=4, exclusive=True))
    behind = [a_job(60.0, run_s=300.0), a_job(8 * HOUR_S)]
    outcome, _, events = _replay(tmp_path, GANG.format(queue_policy=queue_policy, billing=billing), [gang, *behind])
    assert outcome.jobs_served == 2
    assert outcome.wait_p99_s < HOUR_S
    assert 7 < _count([event for event in events if event.get("at", 0.0) < 8 * HOUR_S], "created") <= most


DEAR = """
[Limits]
nodes_max = 8
price_per_hour_max = 0.5
[Node dear]
cores = 8
memory = 4GiB
price_per_hour = 0.9
slots = dear[1-5]
[Node gpu]
cores = 8
gpus = 1
memory = 4GiB
price_per_hour = 0.1
slots = gpu[1-6]
"""


def test_nodes_with_gpus_serve_all_jobs_if_the_limits_never_pay_for_another_node(tmp_path: Path) -> None:
    """A quarter of a node was thought to be affordable, so the job waited for ever."""
    job = TraceJob("small", 0.0, 30.0, 0.0, Shape(slots=1, cores_per_slot=2))
    outcome, _, _ = _replay(tmp_path, DEAR, [job])
    assert outcome.jobs_served == 1


OTHERS = {
    "reserved": "[Node gpu]\ngpus = 1\n",
    "too dear": "[Node tiny]\n",
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_type_that_is_never_bought_for_the_gang_changes_nothing(tmp_path: Path, other: str) -> None:
    """With the GPU type, 740 nodes were bought instead of 119."""
    site = GANG.format(queue_policy="backfill", billing="per-second").replace("_max = 20", "_max = 8")
    shape = Shape(nodes=8, slots=1, cores_per_slot=4, exclusive=True)
    jobs = [TraceJob("gang", 0.0, 300.0, 0.0, shape), a_job(8 * HOUR_S)]
    rest = "cores = 8\nmemory = 4GiB\nprice_per_hour = 3\nslots = other[1-10]\n"
    alone, _, _ = _replay(tmp_path, site, jobs)
    with_other, _, _ = _replay(tmp_path, site + OTHERS[other] + rest, jobs)
    assert with_other.cost == alone.cost


def test_busy_nodes_do_not_fill_a_gang(tmp_path: Path) -> None:
    """Nine nodes exist, of which three are busy all day. The six others were bought again and again."""
    site = GANG.format(queue_policy="backfill", billing="per-second").replace("= 7", "= 9")
    site = site.replace("nodes_max = 10", "nodes_max = 12").replace("[1-10]", "[1-12]")
    shape = Shape(nodes=8, slots=1, cores_per_slot=4, exclusive=True)
    long = [a_job(0.0, run_s=8 * HOUR_S, slots=4) for _ in range(3)]
    outcome, _, events = _replay(tmp_path, site, [*long, TraceJob("gang", 600.0, 300.0, 0.0, shape)])
    assert outcome.jobs_served == 4
    assert outcome.wait_p99_s < 8 * HOUR_S + 300.0, "it need not wait for the end of an hour"
    assert _count(events, "created") <= 3 + 6 * 13 + 8


STAGES = """
[Limits]
nodes_max = 7
price_per_hour_max = 50
[Policy]
queue_policy = fifo
[Node dear]
cores = 8
memory = 4GiB
price_per_hour = 0.9
billing = per-second
slots = dear[1-2]
[Node mid]
cores = 4
memory = 4GiB
price_per_hour = 0.05
billing = per-second
slots = mid[1-3]
[Node small]
cores = 2
memory = 4GiB
price_per_hour = 0.06
billing = 10m
slots = small[1-2]
"""


@pytest.mark.parametrize("one_zone", [False, True])
def test_nodes_bought_for_short_jobs_are_not_given_to_longer_ones_or_gangs(tmp_path: Path, one_zone: bool) -> None:
    """They were, as these are packed first, and dear nodes were bought for the short job."""
    short = TraceJob("short", 0.0, 1.0, 3.0, Shape(slots=1, cores_per_slot=4, nodes=3, exclusive=True))
    shape = Shape(slots=1, cores_per_slot=2, nodes=2, one_zone=one_zone)
    long = TraceJob("long", 60.0, 1800.0, 1800.0, shape)
    outcome, _, events = _replay(tmp_path, STAGES, [short, long])
    assert outcome.jobs_served == 2
    bought = [it["type"] for it in events if it["what"] == "created"]
    assert bought == ["mid", "mid", "mid", "small", "small"]


UNBILLED = """
[Limits]
nodes_max = 7
price_per_hour_max = 1
[Node own]
cores = 4
memory = 4GiB
price_per_hour = 0.9
billing = free
slots = own[1-3]
[Node bought]
cores = 4
memory = 4GiB
price_per_hour = 0.1
slots = bought[1-3]
"""


def test_nodes_that_are_not_billed_come_first_and_no_limit_of_the_price_counts_them(tmp_path: Path) -> None:
    jobs = [TraceJob("wide", 0.0, 300.0, 0.0, Shape(slots=3, cores_per_slot=4))]
    outcome, _, events = _replay(tmp_path, UNBILLED, jobs)
    assert (outcome.jobs_served, outcome.cost) == (1, 0.0)
    assert [it["type"] for it in events if it["what"] == "created"] == ["own", "own", "own"]


ENOUGH_LEAVE = """
[Limits]
nodes_max = 2
price_per_hour_max = 20
[Policy]
queue_policy = fifo
idle_timeout = 30m
[Simulation]
stop_delay = 80s
[Node small]
cores = 2
memory = 4GiB
price_per_hour = 0.1
billing = per-second
slots = small[1]
[Node big]
cores = 4
memory = 4GiB
price_per_hour = 0.3
billing = per-second
slots = big[1-3]
"""


def test_a_node_that_the_job_uses_stays_while_enough_others_leave(tmp_path: Path) -> None:
    """It was ended too, one plan after the others, and then bought again."""
    one = TraceJob("one", 0.0, 60.0, 0.0, Shape(slots=1, cores_per_slot=4))
    two = TraceJob("two", 0.0, 60.0, 0.0, Shape(slots=1, cores_per_slot=2))
    wide = TraceJob("wide", 600.0, 60.0, 0.0, Shape(slots=2, cores_per_slot=4))
    outcome, _, events = _replay(tmp_path, ENOUGH_LEAVE, [one, two, wide])
    assert outcome.jobs_served == 3
    assert [it["type"] for it in events if it["what"] == "created"] == ["big", "small", "big"]


FILLED = """
[Limits]
nodes_max = 20
price_per_hour_max = 1
[Policy]
queue_policy = {queue_policy}
[Node cheap]
cores = 4
memory = 4GiB
price_per_hour = 0.1
slots = cheap[1]
[Node other]
cores = 4
memory = 4GiB
price_per_hour = 0.5
slots = other[1]
[Node kept]
cores = 1
memory = 4GiB
price_per_hour = 0.3
spares = 2
slots = kept[1-2]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_spares_give_way_if_they_keep_a_type_from_making_up_for_a_cheaper_one(
    tmp_path: Path, queue_policy: str
) -> None:
    """The job waited for the slot of the cheaper type as long as the other job ran."""
    long = TraceJob("long", 0.0, 12 * HOUR_S, 0.0, Shape(slots=1, cores_per_slot=4))
    next_ = TraceJob("next", HOUR_S, 300.0, 0.0, Shape(slots=1, cores_per_slot=4))
    outcome, _, _ = _replay(tmp_path, FILLED.format(queue_policy=queue_policy), [long, next_])
    assert outcome.jobs_served == 2
    assert outcome.wait_p99_s < 600.0


ONLY_SPOT = """
[Limits]
nodes_max = 5
price_per_hour_max = 5
[Policy]
spot_share_max = 0.3
[Node spot]
cores = 8
memory = 4GiB
price_per_hour = 0.1
market = spot
slots = spot[1-6]
[Node gpu]
cores = 2
gpus = 1
memory = 4GiB
price_per_hour = 0.2
slots = gpu[1-4]
"""


def test_nodes_with_gpus_serve_all_jobs_if_the_others_are_spot_nodes_beyond_their_share(tmp_path: Path) -> None:
    """Without a node on demand no spot node may be bought, so the job waited for ever."""
    job = TraceJob("pair", 0.0, 30.0, 0.0, Shape(slots=1, cores_per_slot=2, nodes=2))
    outcome, _, events = _replay(tmp_path, ONLY_SPOT, [job])
    assert outcome.jobs_served == 1
    assert [it["type"] for it in events if it["what"] == "created"] == ["gpu", "gpu"]


SHARED_ROOM = """
[Limits]
nodes_max = 8
price_per_hour_max = 3
[Policy]
queue_policy = {queue_policy}
spot_share_max = 0.5
[Node big]
cores = 2
memory = 4GiB
price_per_hour = 1
billing = per-second
market = spot
slots = big[1-5]
[Node small]
cores = 1
memory = 4GiB
price_per_hour = 0.05
billing = per-second
spares = 3
slots = small[1-3]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_no_node_gives_way_if_its_end_makes_too_many_of_the_others_spot_nodes(
    tmp_path: Path, queue_policy: str
) -> None:
    """They gave way to the limit of the price, the share then kept the job waiting, and they were bought again."""
    wide = TraceJob("wide", 600.0, 300.0, 0.0, Shape(slots=1, cores_per_slot=2, nodes=3))
    outcome, _, events = _replay(tmp_path, SHARED_ROOM.format(queue_policy=queue_policy), [wide])
    assert outcome.jobs_served == 0
    assert _count(events, "created") == 3


MIXED = """
[Limits]
nodes_max = 2
price_per_hour_max = 50
[Policy]
queue_policy = {queue_policy}
spot_share_max = 0.5
[Node kept]
cores = 4
memory = 4GiB
price_per_hour = 0.2
billing = per-second
spares = 2
slots = kept[1-4]
[Node spot]
cores = 8
memory = 4GiB
price_per_hour = 1
billing = per-second
market = spot
slots = spot[1-3]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_nodes_give_way_to_as_many_spot_nodes_as_their_share_allows_and_others(
    tmp_path: Path, queue_policy: str
) -> None:
    wide = TraceJob("wide", 600.0, 10.0, 30.0, Shape(slots=3, cores_per_slot=4))
    outcome, _, _ = _replay(tmp_path, MIXED.format(queue_policy=queue_policy), [wide])
    assert outcome.jobs_served == 1


DEAR_SPARE = """
[Site]
cluster = small
state_dir = state
mode = act
[Flux]
uri = simulated
[Cloud one]
provider = simulated
priority = 1
[Cloud two]
provider = simulated
[Limits]
nodes_max = 9
price_per_hour_max = 1
[Policy]
queue_policy = {queue_policy}
[Node dear]
cores = 2
memory = 4GiB
price_per_hour = 1
cloud = one
spares = 1
slots = dear[1-5]
[Node cheap]
cores = 1
memory = 4GiB
price_per_hour = 0.05
cloud = two
prepaid = 1
slots = cheap[1-3]
"""


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_a_dear_spare_gives_way_to_cheap_nodes_of_a_cloud_with_a_lower_priority(
    tmp_path: Path, queue_policy: str
) -> None:
    """Only a fleet of dear nodes was looked for, which the limit of the price does not allow."""
    one = TraceJob("one", 600.0, 300.0, 0.0, Shape(slots=1, cores_per_slot=1, nodes=2, exclusive=True))
    three = TraceJob("three", 3000.0, 60.0, 0.0, Shape(slots=1, cores_per_slot=1, nodes=3, exclusive=True))
    outcome, _, events = _replay(tmp_path, DEAR_SPARE.format(queue_policy=queue_policy), [one, three], head="")
    assert outcome.jobs_served == 2
    assert outcome.wait_p99_s < 600.0
    assert _count(events, "created") <= 5


SPENT = """
[Limits]
nodes_max = 10
price_per_hour_max = 50
[Budget]
per_month = 1
[Node thin]
cores = 4
memory = 4GiB
price_per_hour = 0.9
billing = 20s
spares = 2
slots = thin[1-8]
"""


def test_a_job_that_wants_one_zone_names_the_budget_that_keeps_it_from_every_zone(tmp_path: Path) -> None:
    shape = Shape(slots=2, cores_per_slot=4, one_zone=True)
    jobs = [a_job(1800.0, run_s=1800.0), a_job(1800.0, run_s=1800.0, slots=4)]
    outcome, _, _ = _replay(tmp_path, SPENT, [*jobs, TraceJob("near", 2405.0, 60.0, 0.0, shape)])
    assert outcome.jobs_unserved == {"budget_spent": 1}


REFUSED_MIX = """
[Limits]
nodes_max = 7
price_per_hour_max = 5
[Policy]
idle_timeout = 1s
spot_share_max = 0.5
[Simulation]
capacity = 2
stop_delay = 5s
[Node thin]
cores = 1
memory = 4GiB
price_per_hour = 0.1
billing = per-minute
slots = thin[1-5]
[Node spot]
cores = 4
memory = 4GiB
price_per_hour = 0.9
billing = per-second
market = spot
slots = spot[1-2]
"""


def test_a_gang_is_put_off_if_only_spot_nodes_beyond_their_share_could_fill_it(tmp_path: Path) -> None:
    """These counted as if they could be bought, so it was tried every two minutes."""
    gang = TraceJob("gang", 0.0, 300.0, 5400.0, Shape(slots=8, cores_per_slot=1))
    _, _, events = _replay(tmp_path, REFUSED_MIX, [gang, a_job(6 * HOUR_S)])
    assert _count([it for it in events if it.get("at", 0.0) < 6 * HOUR_S], "created") <= 2 * 12


RATES = """
[Limits]
nodes_max = 8
price_per_hour_max = 1
[Budget]
user_per_month = 2
[Node gpu]
cores = 2
gpus = 1
memory = 4GiB
price_per_hour = 1
billing = free
slots = gpu[1-8]
[Node small]
cores = 2
memory = 4GiB
price_per_hour = 0.2
slots = small[1-3]
[Node big]
cores = 8
memory = 4GiB
price_per_hour = 0.9
billing = per-minute
slots = big[1]
"""


def test_no_node_gives_way_to_a_job_beyond_the_budget_of_its_user(tmp_path: Path) -> None:
    """Its cost was that of GPU nodes, which are not bought for it. Only its own nodes were beyond the budget."""
    shape = Shape(slots=1, cores_per_slot=2, nodes=3, exclusive=True)
    beyond = TraceJob("beyond", 0.0, 30.0, 86_400.0, shape, userid=2)
    other = TraceJob("other", 60.0, 1800.0, 5400.0, Shape(slots=1, cores_per_slot=4), userid=1)
    outcome, _, events = _replay(tmp_path, RATES, [beyond, other])
    assert outcome.jobs_unserved == {"budget_of_account": 1}
    assert _count(events, "created") == 1


# --- the rules of a replay --------------------------------------------------------------------------------


def _broken(folder: Path, text: str, jobs: Sequence[TraceJob]) -> set[str]:
    path = folder / "small.ini"
    path.write_text(HEAD + text)
    outcome = Runner(a_workload(jobs), unseen).run_production("small", load_site(path, {}))
    return {rule.split(":")[0] for rule in outcome.broken}


NO_LEAD = STOPS.format(policy="stop_lead = 0s", stop_delay="0s", billing="10m")


def test_a_node_without_a_lead_leaves_before_its_window_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan comes a moment after the time it waits for. Without a lead it then finds the next window paid for."""
    jobs = [a_job(0.0, run_s=30.0), a_job(12 * HOUR_S, run_s=30.0)]
    assert _broken(tmp_path, NO_LEAD, jobs) == set()
    monkeypatch.setattr("nodemanager.planner.timings.LEAD_S_MIN", 0.0)
    assert _broken(tmp_path, NO_LEAD, jobs) == {"idle"}


def test_nodes_that_boot_and_end_without_a_job_break_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before the gang was put off."""
    site = GANG.format(queue_policy="fifo", billing="per-second")
    gang = TraceJob("gang", 0.0, 300.0, 0.0, Shape(nodes=8, slots=1, cores_per_slot=4, exclusive=True))
    monkeypatch.setattr("nodemanager.planner.observe_cloud.note_refused_node", lambda snapshot, *_: snapshot)
    assert "unused" in _broken(tmp_path, site, [gang])


AT_ONCE = """
[Limits]
nodes_max = 1
price_per_hour_max = 20
[Simulation]
stop_delay = 0s
[Node thin]
cores = 2
memory = 4GiB
price_per_hour = 1
billing = per-second
max_age = 1h
slots = thin[1]
"""


def test_a_slot_whose_node_ends_before_the_destroy_is_answered_gets_a_new_node(tmp_path: Path) -> None:
    """The replay stopped planning, and the job that waited was given up."""
    outcome, _, _ = _replay(tmp_path, AT_ONCE, [a_job(0.0, run_s=4000.0, slots=2), a_job(60.0)])
    assert outcome.jobs_served == 2


@pytest.mark.parametrize("queue_policy", ["fifo", "backfill"])
def test_a_job_that_could_run_and_waits_for_ever_breaks_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_policy: str
) -> None:
    site = GANG.format(queue_policy=queue_policy, billing="per-second")
    seven = TraceJob("seven", 0.0, 300.0, 0.0, Shape(nodes=7, slots=1, cores_per_slot=4, exclusive=True))
    eight = TraceJob("eight", 9000.0, 300.0, 0.0, Shape(nodes=8, slots=1, cores_per_slot=4, exclusive=True))
    assert _broken(tmp_path, site, [seven, eight]) == set(), "the provider has no eight"
    monkeypatch.setattr("nodemanager.planner.plan.boot_orders", lambda *_: [])
    assert "unserved" in _broken(tmp_path, site, [seven])


LIMITED = """
[Limits]
nodes_max = {nodes_max}
price_per_hour_max = {price}
[Simulation]
capacity = {capacity}
boot_delay = {boot_delay}
[Node thin]
cores = 4
memory = 4GiB
price_per_hour = 1
slots = thin[1-3]
[Node gpu]
cores = 8
gpus = 1
memory = 4GiB
price_per_hour = 3
{only_for}
slots = gpu[1-2]
"""


@pytest.mark.parametrize(
    ("limits", "shape", "fits"),
    [
        ({}, Shape(slots=3, cores_per_slot=4), True),
        ({}, Shape(slots=5, cores_per_slot=4), True),  # two nodes with GPUs, as no other fleet holds it
        ({}, Shape(slots=8, cores_per_slot=4), False),
        ({"only_for": "only_for = gpu"}, Shape(slots=5, cores_per_slot=4), False),
        ({"only_for": "only_for = gpu"}, Shape(slots=2, cores_per_slot=4, gpus_per_slot=1), True),
        ({"nodes_max": 2}, Shape(slots=3, cores_per_slot=4, nodes=3), False),
        ({"capacity": 2}, Shape(slots=1, cores_per_slot=4, nodes=3), False),
        ({"price": 2}, Shape(slots=1, cores_per_slot=4, nodes=3), False),
        ({"price": 3}, Shape(slots=1, cores_per_slot=4, nodes=3), True),
        ({}, Shape(slots=2, cores_per_slot=1, one_zone=True), True),
        ({"nodes_max": 3}, Shape(slots=1, cores_per_slot=8, nodes=3), False),
        ({"boot_delay": "5m"}, Shape(slots=3, cores_per_slot=4), True),
        ({"boot_delay": "30m"}, Shape(slots=3, cores_per_slot=4), False),  # longer than the site waits for a boot
    ],
)
def test_which_jobs_an_empty_fleet_could_hold(
    tmp_path: Path, limits: dict[str, object], shape: Shape, fits: bool
) -> None:
    path = tmp_path / "small.ini"
    path.write_text(
        HEAD
        + LIMITED.format(
            **{"nodes_max": 5, "price": 20, "capacity": 5, "only_for": "", "boot_delay": "90s"} | limits
        )
    )
    site = load_site(path, {})
    conditions = run_setup(site, a_workload([]), None).conditions
    assert fits_empty_fleet(shape, policy_of(site), conditions) == fits
