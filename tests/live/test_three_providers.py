"""EC2 (moto), OpenStack (a real Nova) and a local cloud in one site, live: if one fails, another does the work.

Behind the instances and servers of the first two there are no machines, unless ``Machines`` boots some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront
from tests.cloud.openstack.nova.process import FLAVOR, PASSWORD, Nova, nova_python
from tests.live.elastic import NODE_TYPE, Elastic, Offer, an_elastic_site
from tests.live.instance import why_no_flux
from tests.live.machines import Machines

WITHIN_S = 400.0
KEY = "AKIAEXAMPLE"
ALL = {"default", "east", "lab"}
CLOUDS = """
[Cloud east]
provider = ec2
region = {region}
endpoint = {east}
image = {image}
[Cloud east Credentials]
access_key_id_file = {folder}/key
secret_access_key_file = {folder}/secret
[Cloud lab]
provider = openstack
auth_url = {lab}
region = RegionOne
image = {image}
network = private
[Cloud lab Credentials]
username = demo
password_file = {folder}/password
project = demo
"""


# A machine here is a folder: a node has its files and its hosts file there.
IN_FOLDERS = 'node_dir = join\nhosts_file = hosts\nsystemd = no\npoweroff = kill -KILL "$FLUX_NODE_JOIN_PARENT"\n'
OFFERS = (Offer("cpu", price="0.9", slots="cpu[1-2]"),)


def two_clouds(folder: Path, front: MotoFront, nova: Nova, slots: int) -> str:
    """The sections of a cheap cloud and of a dearer one, each with so many slots."""
    for name, secret in (("key", KEY), ("secret", SECRETS[KEY]), ("password", PASSWORD)):
        (folder / name).write_text(secret)
        (folder / name).chmod(0o600)
    clouds = CLOUDS.format(region=REGION, east=front.url, lab=nova.url, image=IMAGE, folder=folder)
    return (
        clouds + a_type_in("east", "t3.large", "0.1", slots) + a_type_in("lab", str(FLAVOR["name"]), "0.2", slots)
    )


def a_type_in(cloud: str, size: str, price: str, slots: int) -> str:
    text = NODE_TYPE.format(name=cloud, cores=2, gpus=0, price=price, slots=f"{cloud}[1-{slots}]", billing="4s")
    return text.replace("cores =", f"cloud = {cloud}\nsize = {size}\ncores =")


@pytest.fixture
def front() -> Iterator[MotoFront]:
    front = MotoFront()
    yield front
    front.close()


@pytest.fixture
def nova() -> Iterator[Nova]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    nova = Nova(nova_python())
    yield nova
    nova.stop()


def servers(nova: Nova) -> int:
    return len(nova.administer("GET", "/servers?all_tenants=1")["servers"])


def was_asked_for_server(nova: Nova) -> bool:
    """Whether the manager has asked for a server since the last call of this function."""
    return any(method == "POST" and path.endswith("/servers") for method, path, _ in nova.calls())


def failing_clouds(elastic: Elastic) -> set[str]:
    """The clouds whose last list failed."""
    return {name for name, source in clouds_of(elastic).items() if source["failure"]}


def clouds_of(elastic: Elastic) -> dict[str, dict[str, Any]]:
    sources = json.loads(elastic.verb("status", "--json"))["sources"]
    return {name.removeprefix("cloud "): source for name, source in sources.items() if name.startswith("cloud ")}


def start_manager(elastic: Elastic) -> None:
    """Start a manager and wait until it has listed every cloud: before that it buys in none of them."""
    elastic.start_manager().until_said("started")
    elastic.eventually(
        "all clouds are listed",
        lambda: {name for name, source in clouds_of(elastic).items() if not source["stale"]} == ALL,
        WITHIN_S,
    )


@pytest.mark.timeout(3 * WITHIN_S)  # each cloud has more than one chance of half a minute
def test_nodes_that_never_join_end_in_both_clouds_and_a_cloud_that_dies_stops_no_other(
    tmp_path: Path, front: MotoFront, nova: Nova
) -> None:
    with an_elastic_site(OFFERS, policy=two_clouds(tmp_path, front, nova, slots=1)) as elastic:
        start_manager(elastic)
        job = elastic.submit("sleep", "1")
        elastic.eventually("the cheapest cloud made an instance", front.instances, WITHIN_S)
        elastic.eventually("the next one was asked for a server", lambda: was_asked_for_server(nova), WITHIN_S)
        elastic.eventually("the local cloud served", lambda: elastic.result(job) == "COMPLETED", WITHIN_S)
        assert set(elastic.jobs()[job].slots) <= {"cpu1", "cpu2"}
        elastic.eventually(
            "nothing is left in any cloud",
            lambda: not (front.standing() or servers(nova) or elastic.what_is_left()),
            WITHIN_S,
        )
        nova.stop()
        elastic.eventually("its cloud is known to be away", lambda: "lab" in failing_clouds(elastic), WITHIN_S)
        second = elastic.submit("sleep", "1")
        elastic.eventually("the others serve", lambda: elastic.result(second) == "COMPLETED", WITHIN_S)
        assert failing_clouds(elastic) == {"lab"}


@pytest.mark.timeout(3 * WITHIN_S)
def test_a_node_of_each_cloud_joins_by_its_ticket_and_they_run_one_job_together(
    tmp_path: Path, front: MotoFront, nova: Nova
) -> None:
    policy = two_clouds(tmp_path, front, nova, slots=1)
    patient = {"boot_timeout = 30s": "boot_timeout = 4m"}
    with an_elastic_site(OFFERS, policy=policy, by_tickets=True, join=IN_FOLDERS, changes=patient) as elastic:
        machines = Machines(elastic.site.state_dir.parent / "machines", front, nova)
        with machines.following():
            elastic.start_join_service()
            start_manager(elastic)
            job = elastic.submit("hostname", nodes=2)
            elastic.eventually("both clouds serve", lambda: elastic.result(job) == "COMPLETED", WITHIN_S)
            assert set(elastic.jobs()[job].slots) == {"east1", "lab1"}, elastic.said()
            elastic.eventually(
                "nothing is left in any cloud",
                lambda: not (front.standing() or servers(nova) or elastic.what_is_left()),
                WITHIN_S,
            )
