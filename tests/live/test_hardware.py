"""Nodes that have less than their slots declare, on a real Flux: they say so when they join."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import psutil
import pytest

from nodemanager.config.text.flux_toml import ConfigFile, read_promises
from nodemanager.core.ports import FluxError
from nodemanager.core.slots import Promise, TypeName
from tests.live.elastic import Elastic, Offer, an_elastic_site
from tests.live.manager_process import ManagerProcess

CLAIMED = 1000  # cores: no machine that runs this has as many
OFFERS = (Offer("small", "0.10", "s[1-2]", cores=1), Offer("huge", "1.00", "h[1-2]", cores=CLAIMED))


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Elastic]:
    misfit, _, join = request.param.partition(", ")
    with an_elastic_site(OFFERS, by_tickets=join == "service", policy=f"misfit = {misfit}") as elastic:
        if join == "service":
            elastic.start_join_service()
        yield elastic


def measured(site: Elastic, manager: ManagerProcess) -> int:
    site.eventually("a node says what it has", lambda: manager.said("node_measured"))
    return int(manager.said("node_measured")[0]["threads"])


def measured_nodes(manager: ManagerProcess) -> set[str]:
    """The nodes that were measured. One whose broker began twice is measured twice."""
    return {str(said["node"]) for said in manager.said("node_measured")}


@pytest.mark.parametrize("site", ["drain, service", "drain, directory"], indirect=True)
def test_one_that_has_less_is_drained_with_the_reason_goes_and_is_not_bought_again(site: Elastic) -> None:
    manager = site.start_manager()
    job = site.submit("sleep", "5", requires={"properties": ["huge"]})
    threads = measured(site, manager)
    assert threads == len(os.sched_getaffinity(0))

    site.eventually("it is drained", lambda: f"has {threads} of {CLAIMED} cores" in drains_of_the_day(site))
    site.eventually("it is gone", lambda: not site.launches(), within_s=60.0)
    site.eventually("nobody is living", lambda: not site.witness.living())
    assert len(measured_nodes(manager)) == 1
    # By ticket it says so before its broker begins. Asked by Flux, it is online already: what began runs on.
    assert site.result(job) in ("", "COMPLETED")
    # In queue order nothing starts behind a job that cannot; once that is gone, what is in order is served.
    small = site.submit("true", requires={"properties": ["small"]})
    site.flux("cancel", str(job), check=False)
    site.eventually("the other type's job has run", lambda: site.result(small) == "COMPLETED", within_s=60.0)
    # Flux is asked after the node is online, and by then the job may have ended.
    site.eventually("its node was measured", lambda: len(measured_nodes(manager)) > 1)
    assert len(measured_nodes(manager)) == 2


def drains_of_the_day(site: Elastic) -> str:
    """Every drain that the instance remembers."""
    return site.flux("kvs", "eventlog", "get", "resource.eventlog")


def promises(site: Elastic) -> Mapping[TypeName, Promise]:
    return read_promises(ConfigFile.find(site.site.flux.bootstrap_dir).read())


def declared_cores(site: Elastic, slot: str) -> int:
    """What a slot declares; 0 for the moment in which the instance has no scheduler."""
    try:
        return site.ranks()[slot].cores
    except FluxError:
        return 0


@pytest.mark.parametrize("site", ["retype, service"], indirect=True)
def test_a_type_is_declared_as_its_nodes_are_and_bought_as_such(site: Elastic) -> None:
    manager = site.start_manager()
    first = site.submit("true", requires={"properties": ["huge"]})
    threads = measured(site, manager)
    # Asked of the file: for a moment the instance has no scheduler to say it.
    site.eventually("the type is declared as it is", lambda: promises(site), within_s=60.0)
    promise = promises(site)[TypeName("huge")]
    assert 1 <= promise.cores <= threads
    site.eventually("the first job has run", lambda: site.result(first) == "COMPLETED", within_s=60.0)
    later = site.submit("true", nodes=2, requires={"properties": ["huge"]})
    site.eventually("a later one has run", lambda: site.result(later) == "COMPLETED", within_s=60.0)
    assert site.ranks()["s1"].cores == 1
    # It outlives both.
    site.end_managers()
    site.stop_head()
    site.start_head()
    assert site.ranks()["h1"].cores == promise.cores


@pytest.mark.parametrize("site", ["retype, service"], indirect=True)
def test_what_nodes_have_beyond_it_is_declared_and_used(site: Elastic) -> None:
    if (psutil.cpu_count(logical=False) or 1) < 2:
        pytest.skip("this machine has one core only")
    manager = site.start_manager()
    first = site.submit("true", requires={"properties": ["small"]})
    threads = measured(site, manager)
    site.eventually("the type is declared as it is", lambda: promises(site), within_s=60.0)
    cores = promises(site)[TypeName("small")].cores
    assert 2 <= cores <= threads
    assert site.result(first) == "COMPLETED"
    site.eventually("the slots declare it", lambda: declared_cores(site, "s2") == cores, within_s=60.0)
    # The site's own declaration, one core, could never hold this one.
    larger = site.submit("true", cores=cores, requires={"properties": ["small"]})
    site.eventually("it has run", lambda: site.result(larger) == "COMPLETED", within_s=60.0)
    assert site.ranks()["h1"].cores == CLAIMED


@pytest.mark.parametrize("site", ["accept, service"], indirect=True)
def test_where_it_is_accepted_it_works(site: Elastic) -> None:
    manager = site.start_manager()
    job = site.submit("true", requires={"properties": ["huge"]})
    assert measured(site, manager) < CLAIMED
    site.eventually("the job has run", lambda: site.result(job) == "COMPLETED", within_s=60.0)
