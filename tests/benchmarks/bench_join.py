"""How fast tickets are redeemed: ``python -m tests.benchmarks.bench_join [TICKETS [CLIENTS]]``.

The service as a process of its own, behind TLS, its ledger on disk; clients that make a connection for each
request, as flux-node-join does. Prints throughput, latencies, and the service's memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

from nodemanager.config.site import Site, load_site
from nodemanager.core.nodes import LaunchId, RosterEntry
from nodemanager.join.exchange import ExchangePaths, FileExchange
from nodemanager.join.flux_node_join import post_json
from nodemanager.join.key_material import MaterialPaths, fingerprint, make_material
from nodemanager.join.tickets import read_site_key

SITE = """
[Site]
cluster = bench
state_dir = state
[Flux]
head_address = 127.0.0.1
join = service
[Cloud]
provider = local
[Limits]
nodes_max = 1
price_per_hour_max = 1
[Join]
listen = 127.0.0.1:18443
addresses = 127.0.0.1:18443
flux_version = 0.0.0
requests_per_s = 1000000
requests_burst = 1000000
[Node cloud]
cores = 1
memory = 1GiB
price_per_hour = 1
slots = cloud[1-{tickets}]
"""


def main(tickets: int = 1000, clients: int = 50) -> None:
    with tempfile.TemporaryDirectory(prefix="fnm-") as directory:
        site = _site(Path(directory), tickets)
        launches = [LaunchId(f"{slot}-1") for slot in site.slots]
        until_at = time.time() + 3600
        roster = tuple(
            RosterEntry(launch, slot, until_at, may_start=True, online=False, addresses=(_address(number),))
            for number, (launch, slot) in enumerate(zip(launches, site.slots, strict=True))
        )
        FileExchange(ExchangePaths(site.join.material_dir)).post(roster, time.time())
        with _service(site) as service:
            before_bytes = service.memory_info().rss
            took_s, latencies_s = _redeem(site, launches, clients)
            after_bytes = service.memory_info().rss
            cpu_s = sum(service.cpu_times()[:2])
    latencies_s.sort()
    print(f"{tickets} tickets, {clients} clients, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"throughput  {tickets / took_s:8.0f} tickets/s")
    print(f"latency p50 {1000 * latencies_s[len(latencies_s) // 2]:8.1f} ms")
    print(f"latency p99 {1000 * latencies_s[int(0.99 * len(latencies_s))]:8.1f} ms")
    print(f"memory      {before_bytes / 2**20:8.1f} MiB before, {after_bytes / 2**20:.1f} MiB after")
    print(f"CPU         {cpu_s:8.1f} s of the service's, start included")


def _address(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def _site(folder: Path, tickets: int) -> Site:
    (folder / "site.ini").write_text(SITE.format(tickets=tickets), encoding="utf-8")
    conf = folder / "state" / "flux" / "conf.d"
    conf.mkdir(parents=True)
    (conf / "flux.toml").write_text('[bootstrap]\nhosts = [{host = "head"}]\n', encoding="utf-8")
    (conf.parent / "curve.cert").write_text("#" * 500, encoding="utf-8")
    site = load_site(folder / "site.ini")
    make_material(site, conf.parent)
    return site


@contextmanager
def _service(site: Site) -> Iterator[psutil.Popen]:
    command = [sys.executable, "-m", "nodemanager", "join-service", "--config", str(site.path)]
    service = psutil.Popen(command, stderr=subprocess.PIPE)
    try:
        assert service.stderr is not None
        for line in service.stderr:
            if b"join_service_started" in line:
                break
        threading.Thread(target=service.stderr.read, daemon=True).start()
        yield service
    finally:
        service.terminate()
        service.wait(10)


def _redeem(site: Site, launches: list[LaunchId], clients: int) -> tuple[float, list[float]]:
    """Redeem all; how long that took, and how long each."""
    paths = MaterialPaths(site.join.material_dir)
    key, pin = read_site_key(paths.site_key), fingerprint(paths.tls_certificate)
    waiting: SimpleQueue[LaunchId] = SimpleQueue()
    for launch in launches:
        waiting.put(launch)
    latencies_s: list[float] = []

    def client() -> None:
        while True:
            try:
                launch = waiting.get_nowait()
            except Empty:
                return
            began_s = time.monotonic()
            post_json(
                site.join.listen,
                pin,
                "/v1/redeem",
                {"launch": launch, "ticket": key.ticket(launch), "nonce": "ab" * 32},
            )
            latencies_s.append(time.monotonic() - began_s)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(latencies_s) < len(launches):
        raise SystemExit(f"only {len(latencies_s)} of {len(launches)} tickets were redeemed")
    return time.monotonic() - began_s, latencies_s


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
