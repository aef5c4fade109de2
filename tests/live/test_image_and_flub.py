"""Nodes that have what they need from their image; and, on a Flux that has it, nodes that join by FLUB."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from nodemanager.core.nodes import FluxRank
from nodemanager.core.slots import SlotName
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.setup.node_script import user_data
from tests.contract.flux_subjects import MonotonicClock
from tests.live.elastic import RPC_WITHIN_S, Elastic, Offer, an_elastic_site
from tests.live.processes import without_flux

# What an image does by its host name, done by a broker's own setting: here all nodes share one machine.
START = (
    "run=$(mktemp -d -t flux-slot.XXXXXX); exec %s broker --config-path={folder}/state/flux/conf.d"
    ' -Sbroker.boot-method=config -Shostname="$SLOT" -Srundir="$run"'
)


def test_a_node_starts_what_its_image_has_under_the_name_of_its_slot() -> None:
    settings = f"join = image\nimage_start = {START % shutil.which('flux')}"
    with an_elastic_site((Offer("small", "0.10", "s[1-2]"),), flux=settings) as site:
        site.start_manager()
        pair = site.submit("true", nodes=2)
        site.eventually("the job has run", lambda: site.result(pair) == "COMPLETED", within_s=60.0)
        site.eventually("its nodes have gone", lambda: not site.what_is_left(), within_s=60.0)


# --- FLUB -------------------------------------------------------------------------------------------------


@pytest.fixture
def flub() -> Iterator[Elastic]:
    if not os.environ.get("FLUX_HAS_FLUB"):
        pytest.skip("the flux on PATH is not said (FLUX_HAS_FLUB=1) to have pull request 5184")
    with an_elastic_site((Offer("small", "0.10", "s[1-3]"),), flux="join = flub") as site:
        yield site


@contextmanager
def a_node(site: Elastic, slot: str) -> Iterator[subprocess.Popen[bytes]]:
    """What a node of the slot runs at boot."""
    script = user_data(site.site, SlotName(slot))
    node = subprocess.Popen(["/bin/sh", "-c", script], env=without_flux(), start_new_session=True)
    try:
        yield node
    finally:
        node.send_signal(signal.SIGTERM)
        node.wait(20)


def test_a_slot_is_a_name_that_goes_to_whichever_rank_is_given_to_its_node(flub: Elastic) -> None:
    site = flub
    flux = RealFlux(site.site.flux.uri, "", MonotonicClock(), timeout_s=RPC_WITHIN_S, flub=True)
    with closing(flux.port()) as port, ExitStack() as nodes:

        def slots() -> dict[str, FluxRank]:
            return {rank.host: rank for rank in port.ranks()}

        first = ExitStack()
        nodes.enter_context(first)
        first.enter_context(a_node(site, "s2"))
        site.eventually("it is online", lambda: slots()["s2"].online)
        assert slots()["s2"].rank == 1, "the least rank, whatever the slot's place in R"
        nodes.enter_context(a_node(site, "s1"))
        site.eventually("so is the next", lambda: slots()["s1"].online)
        assert slots()["s1"].rank == 2
        assert not slots()["s3"].online
        # Neither drained itself, though no name is its rank's placeholder.
        assert {rank.drain_reason for rank in port.ranks()} == {None}
        said = site.flux("run", "-N2", "-n2", "flux", "getattr", "hostname")
        assert sorted(said.split()) == ["s1", "s2"]

        first.close()
        site.eventually("it has left", lambda: not slots()["s2"].online)
        nodes.enter_context(a_node(site, "s3"))
        site.eventually("another is given its rank", lambda: slots()["s3"].online)
        assert {name: rank.rank for name, rank in slots().items()} == {"s3": 1, "s1": 2, "s2": 3}
