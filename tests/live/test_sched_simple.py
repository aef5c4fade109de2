"""flux-core's own pool, which sched-simple uses, gives the ranks of our oracle. It needs no instance."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from nodemanager.core.jobs import Shape
from nodemanager.core.notation import format_idset
from nodemanager.simulation.flux.jobspec import write_jobspec
from tests.live.instance import why_no_flux
from tests.sched_simple_oracle import OracleRank, granted

CASES = 2000
# It reads cases (R and jobspecs) line by line, and writes for each job the cores and GPUs of each rank.
ALLOCATE = """
import json, sys
from flux.resource.ResourcePoolImplementation import InfeasibleRequest, InsufficientResources
from flux.resource.Rv1Pool import Rv1Pool

for line in sys.stdin:
    case, given = json.loads(line), []
    pool = Rv1Pool(case["R"])
    for number, jobspec in enumerate(case["jobspecs"]):
        try:
            got = pool.alloc(number, pool.parse_resource_request(jobspec))
        except (InfeasibleRequest, InsufficientResources):
            given.append(None)
        else:
            given.append({rank: (len(it["cores"]), len(it["gpus"])) for rank, it in got._ranks.items()})
    print(json.dumps(given))
"""


def a_shape(draw: Random) -> Shape:
    return Shape(
        slots=draw.randint(1, 4),
        cores_per_slot=draw.randint(1, 4),
        gpus_per_slot=draw.choice([0, 0, 1, 2]),
        nodes=draw.choice([None, 1, 2, 3]),
        exclusive=draw.random() < 0.3,
    )


def a_case(draw: Random) -> tuple[list[OracleRank], list[Mapping[str, Any]]]:
    sizes = [(draw.randint(1, 8), draw.choice([0, 0, 2, 4])) for _ in range(draw.randint(1, 6))]
    ranks = [OracleRank(number, cores, gpus, cores, gpus) for number, (cores, gpus) in enumerate(sizes, 1)]
    return ranks, [write_jobspec(a_shape(draw)) for _ in range(8)]


def to_R(ranks: list[OracleRank]) -> dict[str, Any]:  # noqa: N802 - R is the name of the format
    children = [(str(it.rank), _ids("core", it.cores) | _ids("gpu", it.gpus)) for it in ranks]
    lite = [{"rank": rank, "children": resources} for rank, resources in children]
    hosts = [f"n{it.rank}" for it in ranks]
    return {"version": 1, "execution": {"R_lite": lite, "starttime": 0, "expiration": 0, "nodelist": hosts}}


def _ids(kind: str, count: int) -> dict[str, str]:
    return {kind: format_idset(range(count))} if count else {}


def test_flux_gives_each_job_the_ranks_that_the_oracle_gives() -> None:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    draw = Random(17)
    cases = [a_case(draw) for _ in range(CASES)]
    told = "".join(json.dumps({"R": to_R(ranks), "jobspecs": jobspecs}) + "\n" for ranks, jobspecs in cases)
    answer = subprocess.run(
        ["flux", "python", "-c", ALLOCATE], input=told, capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len(lines) == CASES
    for (ranks, jobspecs), by_flux in zip(cases, lines, strict=True):
        for jobspec, given in zip(jobspecs, by_flux, strict=True):
            expected = granted(jobspec, ranks)
            assert given == ({str(rank): list(held) for rank, held in expected.items()} if expected else None)
            for it in ranks:
                cores, gpus = (expected or {}).get(it.rank, (0, 0))
                it.free_cores, it.free_gpus = it.free_cores - cores, it.free_gpus - gpus
