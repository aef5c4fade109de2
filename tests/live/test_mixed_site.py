"""A site of three node types: what is bought for a mixed queue, and where sched-simple or Fluxion runs the jobs.

``pytest -s`` shows the figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.live.elastic import Elastic, Offer, an_elastic_site

OFFERS = (
    Offer("small", "0.10", "small[1-6]", cores=2),
    Offer("mid", "0.19", "mid[1-4]", cores=4),
    Offer("big", "0.36", "big[1-3]", cores=8),
)
NODE = re.compile(r"(small|mid|big)[0-9]+")
CORES = (8, 1, 2, 4, 3, 1, 6, 2, 1, 4, 2, 1, 3, 2, 1, 1)


@pytest.fixture
def site() -> Iterator[Elastic]:
    policy = "queue_policy = backfill\nmisfit = accept"
    with an_elastic_site(OFFERS, settle="3s", policy=policy, billing="10m") as elastic:
        yield elastic


def test_a_mixed_queue_runs_on_what_was_bought_for_it(site: Elastic) -> None:
    site.flux("bulksubmit", "-n1", "-t1m", "-c{}", "sleep", "20", ":::", *map(str, CORES))
    ids = tuple(site.jobs())
    assert len(ids) == len(CORES)
    manager = site.start_manager()
    site.eventually("the manager has planned", lambda: manager.said("decided", order="BootNode"))
    planned: dict[int, str] = {}  # by the last memo of each job before it began

    def all_have_run() -> bool:
        for line in site.flux("jobs", "-f", "pending", "-no", "{id.dec} {user.nodes}").splitlines():
            job, _, memo = line.partition(" ")
            if (node := NODE.search(memo)) is not None:
                planned[int(job)] = node[0]
        return all(site.result(job) for job in ids)

    site.eventually("all jobs have run", all_have_run, within_s=240.0)
    bought = [order.removeprefix("BootNode ") for order in manager.orders() if order.startswith("BootNode ")]
    used = Counter(job.slots[0] for job in site.jobs().values())
    assert {job.result for job in site.jobs().values()} == {"COMPLETED"}
    began = [job.began_at - job.submitted_at for job in site.jobs().values() if job.began_at]
    scheduler = "Fluxion" if "sched-fluxion-qmanager" in site.flux("module", "list") else "sched-simple"
    assert {*used} <= {*bought}
    print(f"\n{scheduler}: bought {sorted(bought)}; unused {sorted({*bought} - {*used})}")
    print(f"jobs a node {dict(sorted(used.items()))}")
    ran = {id_: job.slots[0] for id_, job in site.jobs().items()}
    for id_, cores in zip(ids, CORES, strict=True):
        print(f"{cores} cores: planned {planned.get(id_, '-'):8} ran {ran[id_]}")
    print(f"as planned: {sum(planned.get(id_) == ran[id_] for id_ in ids)} of {len(ids)} jobs")
    print(f"waits: mean {sum(began) / len(began):.1f} s, longest {max(began):.1f} s")
