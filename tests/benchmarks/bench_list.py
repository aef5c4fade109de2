"""How long it takes to know a fleet from EC2's list: to parse it, to pair it with the launches, to classify it.

    python -m tests.benchmarks.bench_list [NODES]

10,000 unless said otherwise, from one recorded reservation (``tests/data/ec2-reservation.xml``). Beside it, in the
same process, the functions by which AWS ParallelCluster does the like for Slurm, where they are installed:

    pip install --no-deps aws-parallelcluster-node && pip install retrying boto3

They parse the text of ``scontrol show nodes`` where we parse EC2's XML (theirs is parsed by boto3, and not counted
here), and pair by the id of the instance. Each figure is the median of five runs, of the CPU time that one thread
took: where nothing else runs, that is the time that passes. Only of the list over HTTP it is the time that passed.
"""

from __future__ import annotations

import gc
import importlib
import logging
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.ec2.credentials import Keys
from nodemanager.cloud.ec2.driver import Ec2Driver, endpoint_of
from nodemanager.cloud.ec2.port import Ec2Cloud
from nodemanager.cloud.ec2.replies import nodes_in, parse_xml, require_reply, set_in
from nodemanager.core.facts import CloudListed
from nodemanager.core.nodes import CloudNode, FluxRank, Launch, LaunchId, NodeState
from nodemanager.core.slots import DEFAULT_CLOUD, Billing, NodeType, Rank, SlotName, TypeName
from nodemanager.planner.observe import observe
from nodemanager.planner.observe_cloud import pair
from nodemanager.planner.plan import plan
from nodemanager.planner.policy import Limits, Policy
from nodemanager.planner.snapshot import Account, Create, Node, Seen, SlotSettings, Snapshot, Source, Sources
from tests.contract.cloud_subjects import SystemClock
from tests.paths import DATA

PAGE = 1_000
RUNS = 5
CLUSTER, CLUSTER_UUID = "ada", "11111111-1111-4111-8111-111111111111"
NOW_S, WALL_AT = 100_000.0, 1_800_000_000.0
RESERVATION = DATA / "ec2-reservation.xml"
HEAD = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b'<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet>'
)
TAIL = b"</reservationSet>%s</DescribeInstancesResponse>"


def pages(nodes: int) -> list[bytes]:
    """EC2's replies for so many instances, each with its own id, launch, slot and address."""
    recorded = RESERVATION.read_bytes().strip()
    made = []
    for start in range(0, nodes, PAGE):
        following = b"<nextToken>%d</nextToken>" % (start + PAGE) if start + PAGE < nodes else b""
        items = (_item(recorded, number) for number in range(start, min(start + PAGE, nodes)))
        made.append(HEAD + b"".join(items) + TAIL % following)
    return made


def _item(recorded: bytes, number: int) -> bytes:
    return (
        recorded.replace(b"i-3c35bf7d47514a05b", b"i-%017x" % number)
        .replace(b"launch-1", b"launch-%d" % number)
        .replace(b"node-1", b"node%d" % number)
        .replace(b"10.39.130.142", b"10.%d.%d.%d" % (number >> 16 & 255, number >> 8 & 255, number & 255))
    )


def parse(replies: Sequence[bytes]) -> tuple[CloudNode, ...]:
    return tuple(
        node
        for reply in replies
        for reservation in set_in(require_reply(parse_xml(reply), "DescribeInstances"), "reservationSet")
        for node in nodes_in(reservation)
    )


def a_fleet(nodes: int) -> tuple[Snapshot, Policy]:
    """So many nodes that were up for long, a half of them at work; what the provider shows is to be read anew."""
    slots = tuple(SlotName(f"node{number}") for number in range(nodes))
    small = NodeType(TypeName("small"), "c7i.xlarge", 4, 0, 2**33, Decimal("0.1"), Billing(3600.0), slots)
    policy = Policy(CLUSTER, CLUSTER_UUID, (small,), limits=Limits(nodes, Decimal(nodes)))
    known = [_node(number, slot) for number, slot in enumerate(slots)]
    fresh = Source(seen_s=NOW_S - 1)
    ranks = {node.rank.rank: node.rank for node in known if node.rank is not None}
    snapshot = Snapshot(
        now_s=NOW_S,
        wall_at=WALL_AT,
        sources=Sources(fresh, claimed=True, queue=fresh, flux=fresh),
        accounts={DEFAULT_CLOUD: Account(source=fresh)},
        ranks=ranks,
        slots=SlotSettings(rank_of_slot={rank.host: rank.rank for rank in ranks.values()}),
        nodes={node.id: node for node in known},
    )
    return snapshot, policy


def _node(number: int, slot: SlotName) -> Node:
    busy = number % 2 == 0
    rank = Rank(number + 1)
    launch = Launch(LaunchId(f"launch-{number}"), slot, rank, TypeName("small"), f"token-{number}", WALL_AT - 600)
    free = 0 if busy else 4
    seen = FluxRank(rank, slot, online=True, cores=4, cores_free=free, allocated=busy, schedulable=True)
    return Node(
        launch,
        NodeState.BUSY if busy else NodeState.IDLE,
        since_s=NOW_S - 300,
        create=Create(NOW_S - 600, recorded=True, sent_s=NOW_S - 600),
        rank=seen,
        seen=Seen(NOW_S - 1, 0 if busy else 2, None if busy else NOW_S - 300),
    )


# --- ours -------------------------------------------------------------------------------------------------


def ours(nodes: int) -> dict[str, float]:
    """Milliseconds by what is done."""
    replies = pages(nodes)
    listed = parse(replies)
    snapshot, policy = a_fleet(nodes)
    fact = CloudListed(NOW_S, listed)
    seen = observe(snapshot, fact, policy)
    assert sum(node.cloud is not None for node in seen.nodes.values()) == nodes
    with serving(replies) as cloud:
        listing_ms = median_ms(cloud.list_nodes, time.perf_counter)
    return {
        "list over loopback HTTP": listing_ms,
        "parse": median_ms(lambda: parse(replies)),
        "pair": median_ms(lambda: pair(snapshot.nodes, listed, CLUSTER, CLUSTER_UUID)),
        "pair and classify": median_ms(lambda: observe(snapshot, fact, policy)),
        "plan, with a reason for each": median_ms(lambda: plan(seen, policy)),
    }


@contextmanager
def serving(replies: Sequence[bytes]) -> Iterator[Ec2Cloud]:
    """The port, on a server that gives the stored pages."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            reply = replies[int(asked.get("NextToken", ["0"])[0]) // PAGE]
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = endpoint_of("us-east-1", f"http://127.0.0.1:{server.server_port}")
    driver = Ec2Driver(endpoint, lambda: Keys("key", "secret"))
    yield Ec2Cloud(driver, PortSettings(CLUSTER, CLUSTER_UUID, lambda *_: "", SystemClock()))
    server.shutdown()
    thread.join()
    server.server_close()


# --- ParallelCluster's ------------------------------------------------------------------------------------

RECORD = """NodeName=q1-dy-c7i-{0} CoresPerSocket=1
   NodeAddr=10.{1}.{2}.{3} NodeHostName=q1-dy-c7i-{0} Version=24.11
   RealMemory=7700 AllocMem=0 Sockets=4 Boards=1
   State=IDLE+CLOUD ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=q1
   BootTime=2026-01-26T09:56:30 SlurmdStartTime=2026-01-26T09:57:15
   LastBusyTime=2026-01-26T10:57:15
   InstanceId=i-{0:017x} InstanceType=c7i.xlarge
"""


def theirs(nodes: int) -> dict[str, float] | None:
    """The same by its own functions; None where they are not installed."""
    try:
        slurm: Any = importlib.import_module("common.schedulers.slurm_commands")
        manager: Any = importlib.import_module("slurm_plugin.clustermgtd").ClusterManager
        instance: Any = importlib.import_module("slurm_plugin.fleet_manager").EC2Instance
    except ImportError:
        return None
    logging.disable(logging.CRITICAL)  # it logs a line for each node that it finds wanting
    text = "\n\n".join(
        RECORD.format(number, number >> 16 & 255, number >> 8 & 255, number & 255) for number in range(nodes)
    )

    def parsed() -> list[Any]:
        records = slurm._extract_scontrol_records(text, slurm.SCONTROL_NODE_INFO_FIELD_REGEX)
        return list(slurm._parse_nodes_info(records))

    def paired(slurm_nodes: list[Any]) -> None:
        manager._update_slurm_nodes_with_ec2_info(slurm_nodes, instances)

    def classified(slurm_nodes: list[Any]) -> int:
        return sum(
            slurm_node.is_healthy(
                consider_drain_as_unhealthy=True,
                consider_down_as_unhealthy=True,
                ec2_instance_missing_max_count=0,
                nodes_without_backing_instance_count_map={},
                log_warn_if_unhealthy=False,
            )
            for slurm_node in slurm_nodes
        )

    def both(slurm_nodes: list[Any]) -> None:
        paired(slurm_nodes)
        classified(slurm_nodes)

    now = datetime.now(UTC)
    instances = [
        instance(f"i-{number:017x}", "10.0.0.1", f"h{number}", ["10.0.0.1"], now) for number in range(nodes)
    ]
    slurm_nodes = parsed()
    both(slurm_nodes)
    assert sum(slurm_node.instance is not None for slurm_node in slurm_nodes) == nodes
    return {
        "parse": median_ms(parsed),
        "pair": median_ms(lambda: paired(slurm_nodes)),
        "pair and classify": median_ms(lambda: both(slurm_nodes)),
    }


# --- the table --------------------------------------------------------------------------------------------


def median_ms(call: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    took_ms = []
    for _ in range(RUNS):
        gc.collect()
        began_s = clock()
        call()
        took_ms.append(1e3 * (clock() - began_s))
    return statistics.median(took_ms)


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    our_ms, their_ms = ours(nodes), theirs(nodes)
    size_bytes = sum(len(page) for page in pages(nodes))
    print(f"{nodes} nodes, {size_bytes / 1e6:.1f} MB of XML in pages of {PAGE}; median of {RUNS} runs, in ms")
    print(f"{'':30}{'ours':>10}{'ParallelCluster':>17}{'ratio':>8}")
    for name, ms in our_ms.items():
        other_ms = their_ms.get(name) if their_ms else None
        beside = f"{other_ms:17.1f}{other_ms / ms:8.1f}" if other_ms is not None else ""
        print(f"{name:30}{ms:10.1f}{beside}")
    if their_ms is None:
        print("ParallelCluster's functions are not installed: see the head of this file")


if __name__ == "__main__":
    main()
