"""How fast nodes join by ticket: ``python -m tests.benchmarks.bench_join [NODES [OVER_S]]``.

The service is a process of its own, behind TLS, with its ledger on disk. Each node has its own ticket and address.
It sends the requests of flux-node-join: it redeems its ticket, and then reports its hardware and its broker. All
nodes arrive at once, or evenly over ``OVER_S`` seconds. Meanwhile the roster is replaced each second, as a manager
does.

Prints how long it took until all tickets were redeemed, the time from a node's arrival to its answer, and the
service's CPU time and memory. The nodes share this machine's processors with the service.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.nodes import LaunchId, RosterEntry
from nodemanager.join.exchange import ExchangePaths, FileExchange
from nodemanager.join.flux_node_join import RETRY_FIRST_S, JoinRefused, PinnedConnection, post_over
from nodemanager.join.key_material import MaterialPaths, fingerprint, make_material
from nodemanager.join.tickets import read_site_key

CLIENTS = 4  # processes
GIVE_UP_S = 60.0
HARDWARE = json.dumps({"cores": 8, "threads": 16, "gpus": 0, "memory_bytes": 2**34})
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
[Node cloud]
cores = 1
memory = 1GiB
price_per_hour = 1
slots = cloud[1-{nodes}]
"""


@dataclass(frozen=True)
class Arrival:
    """A node, and how long after the first one it arrives."""

    launch: LaunchId
    ticket: str
    address: str
    after_s: float


@dataclass(frozen=True)
class Joined:
    """How long a node waited for its start data, and when it had them on the clock that all processes share."""

    wait_s: float
    at_s: float


def main(nodes: int = 1000, over_s: float = 0.0) -> None:
    with tempfile.TemporaryDirectory(prefix="fnm-") as directory:
        site = _site(Path(directory), nodes)
        until_at = time.time() + 3600
        roster = tuple(
            RosterEntry(
                LaunchId(f"{slot}-1"), slot, until_at, may_start=True, online=False, addresses=(_address(n),)
            )
            for n, slot in enumerate(site.slots)
        )
        exchange = FileExchange(ExchangePaths(site.join.material_dir))
        exchange.post(roster, time.time())
        with _service(site) as service:
            before_bytes, cpu_before_s = service.memory_info().rss, sum(service.cpu_times()[:2])
            with _replaced_each_second(exchange, roster):
                joined = _join_all(site, roster, over_s)
            after_bytes, cpu_s = service.memory_info().rss, sum(service.cpu_times()[:2]) - cpu_before_s
    waits_s = sorted(it.wait_s for it in joined)
    took_s = max(it.at_s for it in joined) - min(it.at_s - it.wait_s for it in joined)
    clients = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{nodes} nodes over {over_s:g} s, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"all redeemed after {took_s:8.2f} s")
    for share in (0.5, 0.99, 1.0):
        print(f"wait p{100 * share:<4g}         {waits_s[int(share * (len(waits_s) - 1))]:8.3f} s")
    print(f"service's CPU      {cpu_s:8.2f} s for {4 * nodes} requests; all of the service's and the nodes'")
    print(f"                   {clients.ru_utime + clients.ru_stime:8.2f} s, start of the processes included")
    print(f"service's memory   {before_bytes / 2**20:8.1f} MiB before, {after_bytes / 2**20:.1f} MiB after")


def _address(number: int) -> str:
    """An address of the loopback network. Every one of them is this machine."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _site(folder: Path, nodes: int) -> Site:
    (folder / "site.ini").write_text(SITE.format(nodes=nodes), encoding="utf-8")
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


@contextmanager
def _replaced_each_second(exchange: FileExchange, roster: tuple[RosterEntry, ...]) -> Iterator[None]:
    """Replace the roster each second; more nodes are online each time, as in reality."""
    ended = threading.Event()

    def replace_it() -> None:
        online = 0
        while not ended.wait(1.0):
            online = min(len(roster), online + 100)
            exchange.post(tuple(replace(it, online=n < online) for n, it in enumerate(roster)), time.time())

    thread = threading.Thread(target=replace_it)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _join_all(site: Site, roster: tuple[RosterEntry, ...], over_s: float) -> list[Joined]:
    paths = MaterialPaths(site.join.material_dir)
    key, pin = read_site_key(paths.site_key), fingerprint(paths.tls_certificate)
    arrivals = [
        Arrival(entry.launch, key.ticket(entry.launch), entry.addresses[0], over_s * n / len(roster))
        for n, entry in enumerate(roster)
    ]
    context = multiprocessing.get_context("spawn")
    pipes, clients = [], []
    for number in range(CLIENTS):
        ours, theirs = context.Pipe()
        client = context.Process(target=_join_some, args=(theirs, site.join.listen, pin, arrivals[number::CLIENTS]))
        client.start()
        pipes.append(ours)
        clients.append(client)
    for pipe in pipes:
        pipe.recv()  # it is ready
    for pipe in pipes:
        pipe.send(time.monotonic())
    joined = [one for pipe in pipes for one in pipe.recv()]
    for client in clients:
        client.join()
    if len(joined) < len(roster):
        raise SystemExit(f"only {len(joined)} of {len(roster)} tickets were redeemed")
    return joined


def _join_some(pipe: Connection, listen: str, pin: str, arrivals: list[Arrival]) -> None:
    """Be some of the nodes, each a thread. They begin when a time comes through the pipe."""
    joined: list[Joined] = []
    begin = threading.Event()
    begin_s = 0.0

    def join(arrival: Arrival) -> None:
        begin.wait()
        time.sleep(max(0.0, begin_s + arrival.after_s - time.monotonic()))
        arrived_s = time.monotonic()
        while time.monotonic() - arrived_s < GIVE_UP_S:
            connection = PinnedConnection(listen, pin)
            connection.source_address = (arrival.address, 0)  # type: ignore[attr-defined]
            with suppress(OSError, ValueError, HTTPException, JoinRefused), closing(connection):
                at_s = _join(connection, arrival)
                joined.append(Joined(at_s - arrived_s, at_s))
                return
            time.sleep(random.uniform(0.5, 1.0) * RETRY_FIRST_S)

    threads = [threading.Thread(target=join, args=[arrival]) for arrival in arrivals]
    for thread in threads:
        thread.start()
    pipe.send("ready")
    begin_s = pipe.recv()
    begin.set()
    for thread in threads:
        thread.join()
    pipe.send(joined)


def _join(connection: PinnedConnection, arrival: Arrival) -> float:
    """Send the requests that a node sends when it joins. Return when it had its start data."""
    word = {"launch": arrival.launch, "instance": "cd" * 16}
    answer = post_over(connection, "/v1/redeem", {**word, "ticket": arrival.ticket, "nonce": "ab" * 32})
    at_s = time.monotonic()
    key = {**word, "key": answer["lease_key"]}
    post_over(connection, "/v1/report", {**key, "phase": "measured", "detail": HARDWARE})
    post_over(connection, "/v1/renew", {**key, "hosts_digest": answer["hosts_digest"]})
    post_over(connection, "/v1/report", {**key, "phase": "started", "detail": "as a rank"})
    return at_s


if __name__ == "__main__":
    main(*(kind(argument) for kind, argument in zip((int, float), sys.argv[1:], strict=False)))
