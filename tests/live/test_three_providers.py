"""EC2 (moto), OpenStack (a real Nova) and a local cloud in one site, live: if one fails, another does the work.

The instances and servers of the first two have no machine behind them, so they never join.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront
from tests.cloud.openstack.nova.process import FLAVOR, PASSWORD, Nova, nova_python
from tests.live.elastic import NODE_TYPE, Elastic, Offer, an_elastic_site
from tests.live.instance import why_no_flux

WITHIN_S = 240.0
KEY = "AKIAEXAMPLE"
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


def a_type_in(cloud: str, size: str, price: str) -> str:
    text = NODE_TYPE.format(name=cloud, cores=2, gpus=0, price=price, slots=f"{cloud}[1-2]", billing="4s")
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


def source_failures(elastic: Elastic) -> dict[str, str]:
    sources = json.loads(elastic.verb("status", "--json"))["sources"]
    return {name: source["failure"] for name, source in sources.items() if source["failure"]}


def test_nodes_that_never_join_end_in_both_clouds_and_a_cloud_that_dies_stops_no_other(
    tmp_path: Path, front: MotoFront, nova: Nova
) -> None:
    for name, secret in (("key", KEY), ("secret", SECRETS[KEY]), ("password", PASSWORD)):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    clouds = CLOUDS.format(region=REGION, east=front.url, lab=nova.url, image=IMAGE, folder=tmp_path)
    types = a_type_in("east", "t3.large", "0.1") + a_type_in("lab", str(FLAVOR["name"]), "0.2")
    offers = [Offer("cpu", price="0.9", slots="cpu[1-2]")]
    with an_elastic_site(offers, policy=clouds + types) as elastic:
        manager = elastic.start_manager()
        manager.until_said("started")
        assert not source_failures(elastic)
        job = elastic.submit("sleep", "1")
        elastic.eventually("the cheapest cloud has an instance", front.standing, WITHIN_S)
        elastic.eventually("the next one has a server", lambda: servers(nova), WITHIN_S)
        elastic.eventually("the local cloud served", lambda: elastic.result(job) == "COMPLETED", WITHIN_S)
        assert elastic.jobs()[job].slots == ("cpu1",)
        elastic.eventually(
            "nothing is left in any cloud",
            lambda: not (front.standing() or servers(nova) or elastic.what_is_left()),
            WITHIN_S,
        )
        nova.stop()
        elastic.eventually(
            "its cloud is known to be away", lambda: "cloud lab" in source_failures(elastic), WITHIN_S
        )
        second = elastic.submit("sleep", "1")
        elastic.eventually("the others serve", lambda: elastic.result(second) == "COMPLETED", WITHIN_S)
        assert set(source_failures(elastic)) == {"cloud lab"}
