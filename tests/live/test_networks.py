"""The elastic loop between hosts with addresses of their own, while the network between them fails.

Each test prints one line: what failed, what the manager did about it, and when. doc/joining.md has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.networks import Network, a_network, why_no_networks
from tests.live.six_jobs import OFFERS, run_to_the_end, submit_six_jobs
from tests.live.witness import slot_of

WITHIN_S = 150.0
SHORT_CUT_PACKETS = 10  # lost in both directions, which takes some seconds; Flux gives a broker up after 20 s
SILENCE_MAX = "manager_silence_max = 10s"
CPU = (Offer("cpu", price="0.1", slots="cpu[1-3]"),)


@pytest.fixture(scope="module", autouse=True)
def allowed() -> None:
    if why_not := why_no_networks():
        pytest.skip(why_not)


class Fleet:
    """A site in a network, with its join service and its manager running."""

    def __init__(self, site: Elastic, network: Network) -> None:
        self.site = site
        self.network = network
        self.service = site.start_join_service()
        self.manager = site.start_manager()
        self.manager.until_said("started")

    @property
    def head(self) -> str:
        assert self.site.head_host is not None
        return self.site.head_host.address

    @property
    def join(self) -> str:
        assert self.site.join_host is not None
        return self.site.join_host.address

    def run_on_a_node(self, *command: str) -> tuple[int, str]:
        """Submit a job; its id, and the address of its node once it runs there."""
        job = self.site.submit(*command)
        self.eventually("the job runs", lambda: self.site.jobs()[job].began_at)
        (slot,) = self.site.jobs()[job].slots
        (node,) = (node for node in self.site.witness.living() if slot_of(node) == slot)
        return job, self.network.address_of(node)

    def orders(self, verb: str) -> list[str]:
        return [order for order in self.manager.orders() if order.startswith(verb)]

    def ordered_at(self, verb: str, of: str) -> list[float]:
        """When the manager gave such orders for a node."""
        lines = self.manager.said("decided", order=verb)
        return [_at(line["timestamp"]) for line in lines if of in line["order"]]

    def until_over(self) -> None:
        """Wait until nothing is left. Nothing may have been doubled, and no node ended before its job did."""
        self.eventually("nothing is left", lambda: not self.site.what_is_left())
        assert self.site.witness.doubles() == []
        assert self.early_ends() == []

    def early_ends(self) -> list[str]:
        """Nodes whose end was ordered while Flux still had a job there."""
        return [
            f"{node.id} was ended during job {job_id}"
            for job_id, job in self.site.jobs().items()
            for node in self.site.witness.look().values()
            if slot_of(node) in job.slots and job.began_at and job.ended_at
            for ordered_at in self.ordered_at("DestroyNode", node.id)
            if job.began_at <= ordered_at < job.ended_at
        ]

    def eventually(self, what: str, holds: Callable[[], object]) -> None:
        self.site.eventually(what, holds, WITHIN_S)


@contextmanager
def a_fleet(
    offers: tuple[Offer, ...] = CPU, *, join: str = "", timing: str = "", version: int = 4
) -> Iterator[Fleet]:
    with (
        a_network(version) as network,
        an_elastic_site(offers, by_tickets=True, join=join, timing=timing, network=network) as site,
    ):
        yield Fleet(site, network)


def _at(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def tell(what: str, **figures: float | str) -> None:
    """Print a row of the table in doc/joining.md."""
    shown = (f"{name} {it:.1f} s" if isinstance(it, float) else f"{name} {it}" for name, it in figures.items())
    print(f"\nnetworks: {what}: {', '.join(shown)}")


@pytest.mark.parametrize("version", [4, 6])
def test_six_jobs_run_on_nodes_with_addresses_of_their_own(version: int) -> None:
    """The join service accepts each ticket only from the address that the provider tells."""
    with a_fleet(OFFERS, join="check_source = yes", version=version) as fleet:
        jobs = submit_six_jobs(fleet.site)
        run_to_the_end(fleet.site, jobs)
        fleet.until_over()
        seen = {line["source"] for line in fleet.service.said("granted", what="/v1/redeem")}
        assert seen == {fleet.network.address_of(node) for node in fleet.site.witness.look().values()}
