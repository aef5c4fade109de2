"""``check --online`` asks an account about its nodes: moto's, and that of a real Nova. It creates nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodemanager.cli import main

if TYPE_CHECKING:
    from tests.cloud.ec2.moto_front import MotoFront

SITE = """
[Site]
cluster = lab
{uuid}
state_dir = state
[Flux]
uri = local:///nowhere/local-0
head_address = 127.0.0.1
port = 9
join = directory
bootstrap_dir = bootstrap
[Cloud]
{cloud}
[Limits]
nodes_max = 3
price_per_hour_max = 20
[Node small]
size = {size}
cores = 2
memory = 1GiB
price_per_hour = 0.05
slots = small[1-4]
"""


def lines(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The first line of each subject, by its subject."""
    capsys.readouterr()
    assert main.main(["check", "--online", "--config", str(file)]) == 1, "there is no instance"
    found: dict[str, str] = {}
    for line in capsys.readouterr().out.splitlines():
        verdict, _, text = line.partition(" ")
        if verdict in {"ok", "warning", "fault"}:
            found.setdefault(text.strip().partition(": ")[0], f"{verdict} {text.partition(': ')[2]}")
    return found


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoFront]:
    pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")
    from tests.cloud.ec2.moto_front import SECRETS, MotoFront  # noqa: PLC0415

    [(key, secret)] = SECRETS.items()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    front = MotoFront()
    yield front
    front.close()


def on_ec2(moto: MotoFront, folder: Path, uuid: str = "", **changes: str) -> Path:
    from tests.cloud.ec2.moto_front import IMAGE, REGION  # noqa: PLC0415

    keys = {"provider": "ec2", "region": REGION, "endpoint": moto.url, "image": IMAGE, **changes}
    file = folder / "site.ini"
    cloud = "\n".join(f"{key} = {value}" for key, value in keys.items())
    file.write_text(SITE.format(cloud=cloud, size="c5.large", uuid=uuid), encoding="utf-8")
    return file


def test_a_sound_account_on_ec2_is_ok_in_every_line(
    moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(on_ec2(moto, tmp_path), capsys)
    assert found["clock"] == "ok it agrees with the provider's"
    assert found["account"].startswith("ok it answers")
    assert found["permissions"].startswith("ok to list nodes")
    assert found["nodes of small"].startswith("ok EC2 would create c5.large from ami-")
    assert found["termination"].startswith("ok not tried")
    assert found["quotas"].startswith("ok 6 cores may run at once")
    assert "Allow servicequotas:ListServiceQuotas" in found["quotas"]
    assert found["rank 0"].startswith("warning 127.0.0.1:9: ")
    assert found["instance"].startswith("fault ")
    assert moto.instances() == {}


STANDARD = "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"
OTHERS = {
    "Running On-Demand P instances": 0.0,
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests": 0.0,
}


@pytest.mark.parametrize(
    ("cpus", "told"),
    [
        (6.0, "ok they allow all nodes of nodes_max"),
        (5.0, f"warning 6 virtual CPUs may be needed, and 5 may run: {STANDARD}"),
    ],
)
def test_the_quotas_of_the_sizes_in_use_are_compared(
    moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpus: float, told: str
) -> None:
    moto.cpu_quotas = {**OTHERS, STANDARD: cpus}
    assert lines(on_ec2(moto, tmp_path), capsys)["quotas"].startswith(told)


def test_the_permission_to_terminate_is_tried_on_a_node_of_the_cluster(
    moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.ec2.moto_faults import Fault  # noqa: PLC0415
    from tests.contract.cloud_subjects import a_launch, a_type  # noqa: PLC0415
    from tests.contract.ec2_subject import a_cloud  # noqa: PLC0415

    a_cloud(moto, "lab").create(a_launch("one"), a_type("t3.micro"))
    (instance,) = moto.instances()
    assert found_again(moto, tmp_path, capsys) == f"ok EC2 would terminate {instance} (a dry run)"
    moto.faults.append(Fault("TerminateInstances", code="UnauthorizedOperation", status=403, times=9))
    assert found_again(moto, tmp_path, capsys).startswith("fault UnauthorizedOperation")
    assert [made.id for made in moto.standing()] == [instance], "it runs on"


def found_again(moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    uuid = "cluster_uuid = 11111111-1111-4111-8111-111111111111"
    return lines(on_ec2(moto, tmp_path, uuid), capsys)["termination"]


@pytest.mark.parametrize(
    ("action", "subject"),
    [
        ("DescribeVolumes", "permissions"),
        ("DescribeInstanceStatus", "permissions"),
        ("RunInstances", "nodes of small"),
        ("DescribeImages", "nodes of small"),
    ],
)
def test_a_missing_permission_is_a_fault_that_names_it(
    moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, subject: str
) -> None:
    from tests.cloud.ec2.moto_faults import Fault  # noqa: PLC0415

    moto.faults.append(Fault(action, code="UnauthorizedOperation", status=403, times=9))
    found = lines(on_ec2(moto, tmp_path), capsys)
    assert found[subject].startswith("fault UnauthorizedOperation: ")
    assert "privileges" in found[subject]


def test_an_image_or_subnet_that_is_not_there_is_a_fault(
    moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(on_ec2(moto, tmp_path, image="ami-0123456789abcdef0"), capsys)
    assert found["nodes of small"].startswith("fault ")
    assert "ami-0123456789abcdef0" in found["nodes of small"]


def test_a_lack_of_capacity_is_a_warning(
    moto: MotoFront, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.ec2.moto_faults import Fault  # noqa: PLC0415

    moto.faults.append(Fault("RunInstances", code="InsufficientInstanceCapacity", status=500))
    assert lines(on_ec2(moto, tmp_path), capsys)["nodes of small"].startswith("warning Insufficient")


def on_openstack(folder: Path, size: str, **changes: str) -> Path:
    from tests.cloud.openstack.nova.process import PASSWORD, shared_nova  # noqa: PLC0415

    keys = {"provider": "openstack", "auth_url": shared_nova().url, "region": "RegionOne", **changes}
    cloud = "\n".join(f"{key} = {value}" for key, value in {"network": "private", **keys}.items())
    cloud += f"\n[Cloud Credentials]\nusername = demo\npassword = {PASSWORD}\nproject = demo"
    file = folder / "site.ini"
    file.write_text(SITE.format(cloud=cloud, size=size, uuid=""), encoding="utf-8")
    file.chmod(0o600)
    return file


def test_a_project_on_openstack_is_asked_for_flavors_images_networks_and_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.openstack.nova.process import FLAVOR, shared_nova  # noqa: PLC0415

    nova = shared_nova()
    image = {"image": "ami-03cf127a"}
    try:
        found = lines(on_openstack(tmp_path, str(FLAVOR["name"]), **image), capsys)
        assert found["clock"].startswith("ok ")
        assert found["nodes of small"].startswith("ok flavor local.small")
        assert found["quotas"].startswith("ok there is room for 3 servers")
        nova.allow(2)
        found = lines(on_openstack(tmp_path, str(FLAVOR["name"]), **image), capsys)
        assert found["quotas"].startswith("warning 3 servers may be needed, and 2 of 2 are free")
        found = lines(on_openstack(tmp_path, "none", **image), capsys)
        assert found["nodes of small"].startswith('fault there is no flavor "none"')
        found = lines(on_openstack(tmp_path, str(FLAVOR["name"]), image="none"), capsys)
        assert 'there are 0 images named "none"' in found["nodes of small"]
    finally:
        nova.allow(-1)
    assert nova.administer("GET", "/servers?all_tenants=1")["servers"] == []
