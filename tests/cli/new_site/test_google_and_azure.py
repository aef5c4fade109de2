"""``init --provider gce`` and ``azure``, over HTTP to replies that libcloud recorded, or of the documented form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from nodemanager.cli import main
from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_USAGE
from nodemanager.config.load import load_site
from tests.cloud.azure.test_port import LOGIN, a_token
from tests.cloud.recorded import Service, a_service, of_libcloud, said

GCE = "/compute/v1/projects/lab"
REGION = "us-central1"
AZURE = "/subscriptions/99999999"
SUBNET = f"{AZURE}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/flux/subnets/nodes"


@pytest.fixture
def service() -> Iterator[Service]:
    with a_service(Service) as running:
        yield running


def init(file: Path, service: Service, *options: str) -> int:
    begin = ("init", "--output", str(file), "--endpoint", service.url, "--head-address", "10.0.0.10")
    return main.main([*begin, *options])


# --- Google -----------------------------------------------------------------------------------------------


def a_machine_type(name: str, cpus: int, gib: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "guestCpus": cpus, "memoryMb": gib * 1024, "isSharedCpu": False, **more}


@pytest.fixture
def google(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A project with libcloud's regions, subnetworks, images and machine types, and some later machine types."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", service.url.removeprefix("http://"))
    token = "/computeMetadata/v1/instance/service-accounts/default/token"
    service.says("GET", token, said({"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}))
    service.says("GET", f"{GCE}/regions", said(of_libcloud("gce/regions")))
    subnetworks = f"regions_{REGION}_subnetworks"
    service.says("GET", f"{GCE}/regions/{REGION}/subnetworks", said(of_libcloud(f"gce/{subnetworks}")))
    service.says("GET", f"{GCE}/global/images", said(of_libcloud("gce/global_images")))
    zones = of_libcloud("gce/zones")
    service.says("GET", f"{GCE}/zones", said(zones))
    later = [
        a_machine_type("n2-standard-4", 4, 16, architecture="X86_64"),
        a_machine_type("n2-standard-32", 32, 128),
        a_machine_type("t2d-standard-4", 4, 16),
        a_machine_type("c4a-standard-8", 8, 32),
        a_machine_type("e2-micro", 2, 1, isSharedCpu=True),
        a_machine_type(
            "a2-highgpu-1g", 12, 85, accelerators=[{"guestAcceleratorType": "a100", "guestAcceleratorCount": 1}]
        ),
    ]
    recorded = of_libcloud("gce/zones_us-central1-a_machineTypes")
    for zone in zones["items"]:
        if zone["region"].endswith(REGION):
            first = zone["name"].endswith("-a")
            types = [*recorded["items"], *later, *([a_machine_type("only-here-4", 4, 16)] if first else [])]
            service.says("GET", f"{GCE}/zones/{zone['name']}/machineTypes", said({**recorded, "items": types}))
    return service


def test_a_project_on_google_gets_a_site_that_passes_check(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.ini"
    sizes = ("n2-standard-4", "n2-standard-32")
    options = ("--provider", "gce", "--project", "lab", "--region", REGION, "--size", *sizes)
    assert init(file, google, *options) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert "gcloud compute firewall-rules create flux-lab --project lab --network cf" in told
    assert "--allow tcp:8050,tcp:8443 --source-ranges 10.128.0.0/20" in told
    site = load_site(file)
    assert (site.cloud.provider, site.cloud.project) == ("gce", "lab")
    assert site.cloud.image == "projects/lab/global/images/custom-image"
    assert site.cloud.network == f"regions/{REGION}/subnetworks/cf-972cf02e6ad49112"
    assert set(site.cloud.zones) >= {f"{REGION}-a", f"{REGION}-b"}
    small, large = site.node_types
    assert (small.cores, large.cores) == (2, 16), "Flux counts cores, and Google hardware threads"
    assert Decimal("0.1") < small.price_per_hour < Decimal("0.4")
    text = file.read_text(encoding="utf-8")
    assert "# The account's regions: europe-west1, us-central1, us-central2" in text
    assert "e2-micro" not in text, "its cores are shared"
    assert "only-here" not in text, "it is not in every zone"
    rows = {
        line.split()[1]: line.split()[2:4] for line in text.splitlines() if line.startswith("# ") and "GiB" in line
    }
    assert rows["t2d-standard-4"] == ["4", "0"]
    assert rows["c4a-standard-8"] == ["8", "0"]
    assert rows["a2-highgpu-1g"] == ["6", "1"]
    assert main.main(["check", "--config", str(file)]) == 0
    assert {call.method for call in google.calls} == {"GET"}, "nothing is created"


def test_a_key_of_google_is_named_in_the_site_and_not_copied(
    google: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    options = ("--provider", "gce", "--region", REGION)
    assert init(tmp_path / "site.ini", google, *options) == EXIT_USAGE
    assert "cannot be read" in capsys.readouterr().err
    key.write_text(json.dumps({"type": "authorized_user"}), encoding="utf-8")
    assert init(tmp_path / "site.ini", google, *options) == EXIT_USAGE
    assert "is not the JSON key of a service account" in capsys.readouterr().err
    told = {"client_email": "robot@lab.example", "private_key": "SECRET", "project_id": "lab"}
    key.write_text(json.dumps(told), encoding="utf-8")
    monkeypatch.setattr("nodemanager.cloud.gce.port.key_token_fetcher", lambda *_, **__: lambda: ("t", 3600.0))
    assert init(tmp_path / "site.ini", google, *options) == 0
    text = (tmp_path / "site.ini").read_text(encoding="utf-8")
    assert f"key_file = {key}" in text
    assert "service_account = robot@lab.example" in text
    assert "SECRET" not in text


def test_without_a_key_google_says_what_to_set(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("GCE_METADATA_HOST", service.url.removeprefix("http://"))
    options = ("--provider", "gce", "--project", "lab", "--region", REGION)
    assert init(tmp_path / "site.ini", service, *options) == EXIT_FAILED
    assert "Set GOOGLE_APPLICATION_CREDENTIALS to the JSON key" in capsys.readouterr().err


# --- Azure ------------------------------------------------------------------------------------------------


def a_sku(name: str, cpus: int, gib: int, *restrictions: str, **more: str) -> dict[str, Any]:
    """As https://learn.microsoft.com/rest/api/compute/resource-skus/list shows them."""
    has = {"vCPUs": str(cpus), "MemoryGB": str(gib), "vCPUsPerCore": "2", "CpuArchitectureType": "x64", **more}
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "locations": ["westeurope"],
        "capabilities": [{"name": key, "value": value} for key, value in has.items()],
        "restrictions": [{"type": kind, "reasonCode": "NotAvailableForSubscription"} for kind in restrictions],
    }


@pytest.fixture
def azure(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    for name, value in (
        ("TENANT_ID", "tenant"),
        ("SUBSCRIPTION_ID", "99999999"),
        ("CLIENT_ID", "client"),
        ("CLIENT_SECRET", "SECRET"),
    ):
        monkeypatch.setenv(f"AZURE_{name}", value)
    monkeypatch.delenv("AZURE_RESOURCE_GROUP", raising=False)
    service.says(*LOGIN, a_token())
    service.says("GET", f"{AZURE}/locations", said({"value": [{"name": "westeurope"}, {"name": "eastus"}]}))
    image = f"{AZURE}/resourceGroups/images/providers/Microsoft.Compute/images/flux-088"
    images = [
        {"id": image, "name": "flux-088", "location": "West Europe"},
        {"id": "x", "name": "x", "location": "eastus"},
    ]
    service.says("GET", f"{AZURE}/providers/Microsoft.Compute/images", said({"value": images}))
    subnets = [
        {"id": f"{SUBNET[:-5]}GatewaySubnet", "name": "GatewaySubnet", "properties": {}},
        {"id": SUBNET, "name": "nodes", "properties": {"addressPrefix": "10.1.0.0/24"}},
    ]
    network = {"id": "n", "name": "flux", "location": "westeurope", "properties": {"subnets": subnets}}
    service.says("GET", f"{AZURE}/providers/Microsoft.Network/virtualNetworks", said({"value": [network]}))
    skus = [
        a_sku("Standard_D4s_v3", 4, 16),
        a_sku("Standard_D32s_v3", 32, 128),
        a_sku("Standard_NC24ads_A100_v4", 24, 220, GPUs="1"),
        a_sku("Standard_D8ps_v5", 8, 32, vCPUsPerCore="1", CpuArchitectureType="Arm64"),
        a_sku("Standard_B2s", 2, 4),
        a_sku("Standard_D64s_v3", 64, 256, "Location"),
        {"resourceType": "disks", "name": "Premium_LRS"},
    ]
    service.says("GET", f"{AZURE}/providers/Microsoft.Compute/skus", said({"value": skus}))
    return service


@pytest.fixture
def ssh_key(tmp_path: Path) -> Path:
    file = tmp_path / "id.pub"
    file.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample admin\n", encoding="utf-8")
    return file


def test_a_subscription_on_azure_gets_a_site_that_passes_check(
    azure: Service, ssh_key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.ini"
    options = (
        "--provider",
        "azure",
        "--region",
        "westeurope",
        "--resource-group",
        "nodes",
        "--ssh-key",
        str(ssh_key),
    )
    assert init(file, azure, *options) == 0, capsys.readouterr().err
    assert "az network nsg rule create --resource-group nodes --nsg-name flux-lab" in capsys.readouterr().out
    site = load_site(file)
    assert (site.cloud.provider, site.cloud.region) == ("azure", "westeurope")
    assert (site.cloud.resource_group, site.cloud.network) == ("nodes", SUBNET)
    assert site.cloud.image.endswith("/images/flux-088")
    assert site.secrets["client_secret"] == "SECRET"
    assert [(it.size, it.cores, it.price_per_hour) for it in site.node_types] == [
        ("Standard_D4s_v3", 2, Decimal("0.24")),
        ("Standard_D32s_v3", 16, Decimal("1.92")),
    ]
    text = file.read_text(encoding="utf-8")
    assert "client_secret = ${AZURE_CLIENT_SECRET}" in text
    assert "SECRET\n" not in text
    assert "Standard_D64s_v3" not in text, "the subscription may not use it there"
    assert "Standard_B2s" not in text, "its processor is not full-time"
    rows = {it.split()[1]: it.split()[2:4] for it in text.splitlines() if it.startswith("# Standard_")}
    assert rows["Standard_NC24ads_A100_v4"] == ["12", "1"]
    assert rows["Standard_D8ps_v5"] == ["8", "0"]
    assert main.main(["check", "--config", str(file)]) == 0
    asked = azure.asked("GET", f"{AZURE}/providers/Microsoft.Compute/skus")
    assert [call.query["$filter"] for call in asked] == ["location eq 'westeurope'"]
    assert {(call.method, call.path) for call in azure.calls if call.method != "GET"} == {LOGIN}, (
        "nothing is created"
    )


def test_what_azure_needs_is_named(
    azure: Service,
    ssh_key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--provider", "azure", "--region", "westeurope")
    assert init(tmp_path / "site.ini", azure, *options) == EXIT_USAGE
    assert "give --resource-group" in capsys.readouterr().err
    monkeypatch.setenv("AZURE_RESOURCE_GROUP", "nodes")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert init(tmp_path / "site.ini", azure, *options) == EXIT_USAGE
    assert "give --ssh-key FILE" in capsys.readouterr().err
    ssh_key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----", encoding="utf-8")
    assert init(tmp_path / "site.ini", azure, *options, "--ssh-key", str(ssh_key)) == EXIT_USAGE
    assert "not one public key" in capsys.readouterr().err
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    assert init(tmp_path / "site.ini", azure, *options) == EXIT_USAGE
    assert "AZURE_CLIENT_SECRET must be set" in capsys.readouterr().err
