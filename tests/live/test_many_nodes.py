"""Many real brokers on this machine: they join by ticket, run one job over all of them, and go.

``FNM_MANY_NODES=200 pytest -s tests/live/test_many_nodes.py`` for the whole of it: it takes some ten minutes on two
cores, and 8 GB. It prints times and memory. doc/measurements/flux.md has its figures.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.live.elastic import Offer, an_elastic_site
from tests.live.instance import LiveInstance, eventually, why_no_flux
from tests.live.witness import slot_of

NODES = int(os.environ.get("FNM_MANY_NODES", "6"))
FAN_OUT = 16 if NODES > 16 else 2
WITHIN_S = 120.0 + 6.0 * NODES
# A node boots in seconds, but 200 on two cores take minutes.
PATIENT = {
    "nodes_max = 24": f"nodes_max = {NODES}",
    "boot_timeout = 30s": "boot_timeout = 1h",
    "rejoin_timeout = 20s": "rejoin_timeout = 30m",
    "orphan_grace = 5s": "orphan_grace = 30m",
    "stale_after = 30s": "stale_after = 10m",
    "probe = 1s": "probe = 5s",
    "relist = 3s": "relist = 10s",
    "renew = 500ms": "renew = 20s",
    "calls_in_flight_max = 4": "calls_in_flight_max = 4\ncall_timeout = 5m\ncreates_per_s = 2",
}


@pytest.mark.timeout(3 * WITHIN_S)
def test_many_nodes_join_by_ticket_run_one_job_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offers = (Offer("cloud", "0.1", f"cloud[1-{NODES}]", cores=1),)
    with an_elastic_site(offers, by_tickets=True, billing="1s", changes=PATIENT) as elastic:
        service, manager = elastic.start_join_service(), elastic.start_manager()
        manager.until_said("started")
        goes_on = tmp_path / "goes-on"
        submitted_at = time.time()
        job = elastic.submit("sh", "-c", f"until [ -e {goes_on} ]; do sleep 2; done", nodes=NODES)
        elastic.eventually("the job runs", lambda: elastic.jobs()[job].began_at, WITHIN_S)
        of_nodes = descendants_of([node.init.pid for node in elastic.witness.living() if node.init is not None])
        memory = {
            "nodes": mebibytes(of_nodes),
            "rank 0": mebibytes([elastic.head, *elastic.head.children(recursive=True)]),
            "manager": mebibytes([manager.process]),
            "join service": mebibytes([service.process]),
        }
        goes_on.touch()
        elastic.eventually("the job has run", lambda: elastic.result(job), WITHIN_S)
        elastic.eventually("nothing is left", lambda: not elastic.what_is_left(), WITHIN_S)
        gone_at = time.time()

        seen = elastic.jobs()[job]
        assert (seen.result, len(set(seen.slots))) == ("COMPLETED", NODES), elastic.flux(
            "job", "eventlog", str(job)
        )
        assert sorted(map(slot_of, elastic.witness.look().values())) == sorted(seen.slots)
        assert elastic.witness.doubles() == []
        assert seen.began_at is not None
        assert seen.ended_at is not None
        with capsys.disabled():
            print(f"\n{NODES} nodes joined by ticket; load {os.getloadavg()[0]:.0f}")
            print(f"from the submission until the job began {seen.began_at - submitted_at:.0f} s")
            print(f"from its end until all nodes were gone {gone_at - seen.ended_at:.0f} s")
            print("memory, MiB:", ", ".join(f"{name} {of:.0f}" for name, of in memory.items()))
            print(f"processes of the nodes: {len(of_nodes)}")


@pytest.mark.timeout(3 * WITHIN_S)
@pytest.mark.parametrize("fan_out", [0, FAN_OUT], ids=["flat", f"fan-out {FAN_OUT}"])
def test_what_is_lost_with_the_node_of_rank_1(fan_out: int, capsys: pytest.CaptureFixture[str]) -> None:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        live = LiveInstance(Path(folder), NODES, fan_out)
        try:
            live.start_head()
            began_s = time.monotonic()
            for rank in range(1, NODES + 1):
                live.begin_slot(rank)
            everyone = frozenset(range(NODES + 1))
            eventually("all ranks are online", lambda: live.online() == everyone, WITHIN_S)
            online_s = time.monotonic()
            job = live.run("submit", f"-N{NODES}", "true")
            done = f"COMPLETED {NODES}"
            eventually("a job has run", lambda: live.run("jobs", "-no", "{status} {nnodes}", job) == done, WITHIN_S)
            ran_s = time.monotonic()
            memory = {name: mebibytes([live.broker(name)]) for name in ("head", "slot1")}
            live.kill_slot(1)
            below = frozenset(rank for rank in everyone if rank and 1 in ancestors_of(rank, fan_out))
            eventually(
                "rank 1 is offline, and all below it", lambda: live.online() == everyone - below - {1}, WITHIN_S
            )
        finally:
            live.reap()
    with capsys.disabled():
        print(f"\n{NODES} brokers, fan-out {fan_out}; load {os.getloadavg()[0]:.0f}")
        print(f"all online after {online_s - began_s:.0f} s, a job ran on all of them in {ran_s - online_s:.1f} s")
        print("memory, MiB:", ", ".join(f"{name} {size:.0f}" for name, size in memory.items()))
        print(f"with rank 1, {len(below)} other ranks were lost")


def ancestors_of(rank: int, fan_out: int) -> list[int]:
    """The ranks between a rank and rank 0, in a complete tree."""
    found = []
    while fan_out and rank and (rank := (rank - 1) // fan_out):
        found.append(rank)
    return found


def descendants_of(pids: Sequence[int]) -> list[psutil.Process]:
    """These processes and all that they have started, found in one pass over all processes."""
    children: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process)
    found = [psutil.Process(pid) for pid in pids]
    for process in found:
        found += children.get(process.pid, [])
    return found


def mebibytes(processes: Iterable[psutil.Process]) -> float:
    """The memory of processes, what several of them share divided among them."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 2**20
