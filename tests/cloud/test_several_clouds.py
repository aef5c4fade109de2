"""Two accounts of one provider, and another provider, in one site and one process: each port sees its own nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.cloud.providers import cloud_factory
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudState, ProviderId, RosterEntry, launch_id
from nodemanager.core.ports import BatchCloudPort, CloudPort
from nodemanager.core.slots import CloudName, Rank
from nodemanager.join.identity.ec2 import InstanceIdentities
from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront
from tests.cloud.openstack.nova.process import FLAVOR, PASSWORD, Nova, nova_python
from tests.contract.cloud_subjects import SystemClock, a_launch
from tests.join.admission import KEY, AdmissionRig, entry, granted
from tests.join.identities import signer

EC2 = """
[Cloud {name}]
provider = ec2
region = {region}
endpoint = {url}
image = {image}
[Cloud {name} Credentials]
access_key_id = AK-{name}
secret_access_key = not-a-secret-of-{name}
[Node {name}]
cloud = {name}
size = t3.large
cores = 1
memory = 4GiB
price_per_hour = 0.1
slots = {name}[1-2]
"""
OPENSTACK = """
[Cloud lab]
provider = openstack
auth_url = {url}
region = RegionOne
image = ami-03cf127a
network = private
[Cloud lab Credentials]
username = demo
password = {password}
project = demo
[Node lab]
cloud = lab
size = {size}
cores = 1
memory = 1GiB
price_per_hour = 0.2
slots = lab[1-2]
"""
HEAD = """
[Site]
cluster = ada
cluster_uuid = 11111111-1111-4111-8111-111111111111
state_dir = state
[Flux]
uri = local:///nowhere/local-0
head_address = 10.0.0.1
join = directory
[Limits]
nodes_max = 6
price_per_hour_max = 5
"""


@pytest.fixture
def fronts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MotoFront, MotoFront]]:
    for name in ("east", "west"):
        monkeypatch.setitem(SECRETS, f"AK-{name}", f"not-a-secret-of-{name}")
    with ExitStack() as stack:
        made = MotoFront(), MotoFront()
        for front in made:
            stack.callback(front.close)
        yield made


def load(folder: Path, *sections: str) -> Site:
    file = folder / "site.ini"
    file.write_text(HEAD + "".join(sections))
    file.chmod(0o600)
    return load_site(file, {})


def ports_of(site: Site) -> dict[CloudName, CloudPort]:
    clock = SystemClock()
    return {
        name: cloud_factory(part, lambda *_: "#!/bin/sh\nexec sleep 60\n", clock)()
        for name, part in site.by_cloud.items()
    }


def create_one_each(site: Site, ports: dict[CloudName, CloudPort]) -> dict[CloudName, ProviderId]:
    created = {}
    for node_type in site.node_types:
        launch = replace(a_launch(node_type.name, node_type.slots[0], node_type.name), cloud=node_type.cloud)
        created[node_type.cloud] = ports[node_type.cloud].create(launch, node_type).provider_id
    return created


def alive(port: CloudPort) -> list[ProviderId]:
    return [it.provider_id for it in port.list_nodes() if it.state is not CloudState.TERMINATED]


def ec2(name: str, front: MotoFront) -> str:
    return EC2.format(name=name, region=REGION, url=front.url, image=IMAGE)


def test_two_accounts_of_ec2(
    tmp_path: Path, fronts: tuple[MotoFront, MotoFront], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Keys in the environment belong to neither.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    before = dict(os.environ)
    site = load(tmp_path, ec2("east", fronts[0]), ec2("west", fronts[1]))
    ports = ports_of(site)
    created = create_one_each(site, ports)
    for name, front in zip(("east", "west"), fronts, strict=True):
        assert alive(ports[CloudName(name)]) == [created[CloudName(name)]]
        assert [made.id for made in front.standing()] == [created[CloudName(name)]]
        assert all(f"AK-{name}/" in str(it) for it in front.received), "each signs with its own key"
    assert dict(os.environ) == before
    ports[CloudName("east")].destroy(created[CloudName("east")])
    assert alive(ports[CloudName("east")]) == []
    assert len(alive(ports[CloudName("west")])) == 1


def test_one_call_creates_all_nodes_of_each_account_and_each_joins_as_its_own_slot(
    tmp_path: Path, fronts: tuple[MotoFront, MotoFront]
) -> None:
    site = load(tmp_path, ec2("east", fronts[0]), ec2("west", fronts[1]))
    signers = {CloudName("east"): signer(), CloudName("west"): signer("west")}
    stamp, clock = "19ab4c2f3d1", SystemClock()
    roster: list[RosterEntry] = []
    for name, part in site.by_cloud.items():
        port = cloud_factory(part, lambda *_: "", clock, batch_script=lambda batch: f"#!/bin/sh\n# {batch}\n")()
        (node_type,) = part.node_types
        launches = [
            replace(a_launch(slot, slot, node_type.name), id=launch_id(slot, stamp), rank=Rank(rank), cloud=name)
            for rank, slot in enumerate(node_type.slots, 1)
        ]
        assert isinstance(port, BatchCloudPort)
        port.create_many(launches, node_type)
        for node in port.list_nodes():
            assert node.identity is not None
            slot, launch = node.identity.slot, node.identity.launch
            roster.append(entry(launch, slot, provider_id=node.provider_id, cloud=name))
    assert [sum("RunInstances" in str(it) for it in front.received) for front in fronts] == [1, 1]

    rig = AdmissionRig(roster=tuple(roster))
    rig.instance_in = InstanceIdentities({name: it.pem for name, it in signers.items()}).instance_in
    rig.restart()
    for known in roster:
        document = signers[known.cloud].document(str(known.provider_id))
        answer = rig.admission.redeem_batch(
            stamp, KEY.batch_ticket(stamp), known.launch.encode().hex(), document, ""
        )
        assert granted(answer)["slot"] == known.slot
    assert {it.slot for it in roster} == set(site.slots)


def test_moto_and_a_real_nova_in_one_site(tmp_path: Path, fronts: tuple[MotoFront, MotoFront]) -> None:
    nova = Nova(nova_python())
    lab = OPENSTACK.format(url=nova.url, password=PASSWORD, size=FLAVOR["name"])
    site = load(tmp_path, ec2("east", fronts[0]), lab)
    ports = ports_of(site)
    created = create_one_each(site, ports)
    try:
        for name, port in ports.items():
            assert alive(port) == [created[name]]
    finally:
        for name, port in ports.items():
            port.destroy(created[name])
