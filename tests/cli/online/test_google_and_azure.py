"""``check --online`` on Google and Azure, over HTTP to replies that libcloud recorded or documentation shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodemanager.cloud.azure.driver import AzureDriver
from nodemanager.cloud.gce.driver import GceDriver
from tests.cli.online.test_accounts import SITE, lines
from tests.cloud.azure.test_port import LOGIN, a_token
from tests.cloud.recorded import Reply, Service, a_service, of_libcloud, said
from tests.join.google_tokens import jwks


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with a_service(Service) as running:
        for provider in ("gce.provider.Gce", "azure.provider.Azure"):
            monkeypatch.setattr(f"nodemanager.cloud.{provider}.clock_url", lambda *_: running.url)
        yield running


def write(folder: Path, keys: dict[str, str], size: str, more: str = "") -> Path:
    file = folder / "site.ini"
    cloud = "\n".join(f"{key} = {value}" for key, value in keys.items())
    file.write_text(SITE.format(uuid="", cloud=cloud, size=size) + more, encoding="utf-8")
    file.chmod(0o600)
    return file


def only_looked(service: Service) -> bool:
    return {call.method for call in service.calls} <= {"GET", "HEAD"}


# --- Google -----------------------------------------------------------------------------------------------

GCE = "/compute/v1/projects/lab"
COREOS = "projects/coreos-cloud/global/images/family/coreos-stable"
SUBNETWORK = "regions/us-central1/subnetworks/cf-972cf02e6ad49112"
MACHINE = f"{GCE}/zones/us-central1-{{}}/machineTypes/{{}}"


@pytest.fixture
def google(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setenv("GCE_METADATA_HOST", service.url.removeprefix("http://"))
    monkeypatch.setattr("nodemanager.cloud.gce.port.GceDriver", partial(GceDriver, endpoint=service.url))
    token = "/computeMetadata/v1/instance/service-accounts/default/token"
    service.says("GET", token, said({"access_token": "t", "expires_in": 3600, "token_type": "Bearer"}))
    service.says("GET", f"{GCE}/aggregated/instances", said({"id": "list", "items": {}}))
    image = of_libcloud("gce/projects_coreos-cloud_global_images_family_coreos_stable")
    service.says("GET", f"/compute/v1/{COREOS}", said(image))
    network = of_libcloud("gce/projects_other_name_regions_us-central1_subnetworks_cf_972cf02e6ad49114")
    service.says("GET", f"{GCE}/{SUBNETWORK}", said(network))
    service.says("GET", f"{GCE}/global/networks/cf", said(of_libcloud("gce/global_networks_cf")))
    for zone in "ab":
        machine = of_libcloud("gce/zones_us-central1-a_machineTypes_n1-standard-1")
        service.says("GET", MACHINE.format(zone, "n1-standard-1"), said(machine))
    for region in of_libcloud("gce/regions")["items"]:
        service.says("GET", f"{GCE}/regions/{region['name']}", said(region))
    service.says("GET", GCE, said(of_libcloud("gce/project")))
    return service


def on_google(folder: Path, size: str = "n1-standard-1", more: str = "", **changes: str) -> Path:
    zones = "us-central1-a, us-central1-b"
    keys = {"provider": "gce", "project": "lab", "image": COREOS, "network": SUBNETWORK, "zones": zones}
    return write(folder, keys | changes, size, more)


def test_a_sound_project_on_google_is_ok_in_every_line(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(on_google(tmp_path), capsys)
    assert found["clock"].startswith("ok ")
    assert found["account"] == "ok it answers; 0 instances of this cluster listed"
    assert found["nodes of small"].startswith("ok us-central1-a, us-central1-b has n1-standard-1; image projects/")
    assert found["quotas"] == "ok there is room for 3 nodes: CPUS in us-central1"
    assert only_looked(google)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"image": "global/images/none"}, "there is no image global/images/none"),
        ({"network": "global/networks/none"}, "there is no network global/networks/none"),
        ({"size": "n1-standard-96"}, "zone us-central1-a has no machine type n1-standard-96; zone us-central1-b"),
        ({"zones": "europe-west1-a"}, f"{SUBNETWORK} is in us-central1, and the nodes in europe-west1-a"),
    ],
)
def test_what_google_does_not_have_is_a_fault(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], told: str
) -> None:
    found = lines(on_google(tmp_path, **changes), capsys)["nodes of small"]
    assert found.startswith("fault ")
    assert told in found
    assert "Correct it in [Cloud]" in found
    assert only_looked(google)


def test_an_image_that_google_would_refuse_is_a_fault(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image: dict[str, Any] = of_libcloud("gce/projects_coreos-cloud_global_images_family_coreos_stable")
    google.says("GET", f"/compute/v1/{COREOS}", said(image | {"deprecated": {"state": "OBSOLETE"}}))
    assert "is obsolete" in lines(on_google(tmp_path), capsys)["nodes of small"]
    google.says("GET", f"/compute/v1/{COREOS}", said(image | {"deprecated": {"state": "DEPRECATED"}}))
    assert lines(on_google(tmp_path), capsys)["nodes of small"].startswith("ok ")
    google.says("GET", f"/compute/v1/{COREOS}", said(image | {"status": "PENDING"}))
    assert "is pending" in lines(on_google(tmp_path), capsys)["nodes of small"]
    google.says("GET", f"/compute/v1/{COREOS}", said(image | {"architecture": "ARM64"}))
    machine: dict[str, Any] = of_libcloud("gce/zones_us-central1-a_machineTypes_n1-standard-1")
    google.says("GET", MACHINE.format("a", "n1-standard-1"), said(machine | {"architecture": "X86_64"}))
    assert "n1-standard-1 is X86_64, and image" in lines(on_google(tmp_path), capsys)["nodes of small"]


def test_a_network_of_google_with_subnetworks_of_its_own_needs_one_named(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = on_google(tmp_path, network="global/networks/cf")
    assert lines(file, capsys)["nodes of small"].startswith("ok ")
    network = of_libcloud("gce/global_networks_cf") | {"autoCreateSubnetworks": False}
    google.says("GET", f"{GCE}/global/networks/cf", said(network))
    assert "give regions/REGION/subnetworks/NAME" in lines(file, capsys)["nodes of small"]


KEYS = ("GET", "/oauth2/v3/certs")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (said(jwks("google", "next")), "ok Google publishes 2, by which"),
        (said({}), "warning Google's keys: no list"),
        (said({"error": {"code": 404, "message": "no"}}, 404), "fault"),
    ],
    ids=["published", "something else", "not there"],
)
def test_the_keys_by_which_nodes_of_one_call_prove_themselves_are_looked_up(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], reply: Reply, told: str
) -> None:
    google.says(*KEYS, reply)
    file = on_google(tmp_path, more="\n[Join]\naddresses = 10.0.0.1:8443\n", node_service_account="nodes@lab.iam.x")
    text = file.read_text(encoding="utf-8")
    assert "identity keys" not in lines(on_google(tmp_path), capsys), "nodes do not join by ticket"
    file.write_text(text.replace("join = directory", "join = service"), encoding="utf-8")
    assert lines(file, capsys)["identity keys"].startswith(told)
    assert only_looked(google)


SPOT = """
[Node spot]
size = n2-standard-8
market = spot
cores = 4
memory = 32GiB
price_per_hour = 0.05
properties = spot
slots = spot[1-2]
"""


@pytest.mark.parametrize(
    ("quotas", "told"),
    [
        # 8 + 8 + 1: nodes_max of the largest nodes
        ({"N2_CPUS": (8, 0)}, "warning 16 may be needed, and 8 are free: N2_CPUS in us-central1"),
        (
            {"N2_CPUS": (8, 0), "PREEMPTIBLE_CPUS": (16, 0)},
            "ok there is room for 3 nodes: CPUS in us-central1",
        ),
        ({"N2_CPUS": (8, 0), "PREEMPTIBLE_CPUS": (0, 0)}, "warning 16 may be needed, and 8 are free: N2_CPUS"),
        ({"N2_CPUS": (16, 1)}, "warning 16 may be needed, and 15 are free: N2_CPUS"),
        ({"CPUS": (24, 23), "N2_CPUS": (16, 0)}, "warning 3 may be needed, and 1 are free: CPUS in us-central1"),
    ],
)
def test_google_quotas_are_compared_by_family_and_market(
    google: Service,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    quotas: dict[str, tuple[int, int]],
    told: str,
) -> None:
    listed = [{"metric": name, "limit": limit, "usage": used} for name, (limit, used) in quotas.items()]
    if "CPUS" not in quotas:
        listed.append({"metric": "CPUS", "limit": 24.0, "usage": 3.0})
    google.says("GET", f"{GCE}/regions/us-central1", said({"name": "us-central1", "quotas": listed}))
    for zone in "ab":
        google.says("GET", MACHINE.format(zone, "n2-standard-8"), said({"name": "n2-standard-8", "guestCpus": 8}))
    assert lines(on_google(tmp_path, more=SPOT), capsys)["quotas"].startswith(told)


def test_the_quota_of_all_regions_counts_too(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    google.says("GET", GCE, said({"quotas": [{"metric": "CPUS_ALL_REGIONS", "limit": 2.0, "usage": 0.0}]}))
    told = "warning 3 may be needed, and 2 are free: CPUS_ALL_REGIONS"
    assert lines(on_google(tmp_path), capsys)["quotas"].startswith(told)


def test_a_privilege_that_only_the_check_needs_is_a_warning(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "Required 'compute.images.get' permission for 'projects/coreos-cloud/global/images/family/coreos'"
    error = {"error": {"code": 403, "message": message, "errors": [{"reason": "forbidden", "message": message}]}}
    google.says("GET", f"/compute/v1/{COREOS}", said(error, 403))
    found = lines(on_google(tmp_path), capsys)["nodes of small"]
    assert found.startswith("warning it cannot be looked up: forbidden: Required 'compute.images.get'")
    assert "roles/compute.viewer" in found
    found = lines(on_google(tmp_path, size="n1-standard-96"), capsys)["nodes of small"]
    assert found.startswith("fault zone us-central1-a has no machine type n1-standard-96"), "the rest is looked up"


def test_without_credentials_google_is_a_fault_and_nothing_more_is_asked(
    google: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"error": {"code": 403, "message": "no", "errors": [{"reason": "forbidden", "message": "no"}]}}
    google.says("GET", f"{GCE}/aggregated/instances", said(error, 403))
    found = lines(on_google(tmp_path), capsys)
    assert found["account"].startswith("fault forbidden: no. Correct [Cloud Credentials]")
    assert "nodes of small" not in found


# --- Azure ------------------------------------------------------------------------------------------------

SUBSCRIPTION = "/subscriptions/99999999"
GROUP = f"{SUBSCRIPTION}/resourceGroups/nodes/providers"
COMPUTE = f"{SUBSCRIPTION}/providers/Microsoft.Compute"
IMAGE = f"{SUBSCRIPTION}/resourceGroups/images/providers/Microsoft.Compute/images/flux"
GALLERY = f"{SUBSCRIPTION}/resourceGroups/images/providers/Microsoft.Compute/galleries/lab/images/flux"
NETWORK = f"{GROUP}/Microsoft.Network/virtualNetworks/flux"
SKUS = f"{COMPUTE}/skus"
USAGES = f"{COMPUTE}/locations/westeurope/usages"
DEBIAN = f"{COMPUTE}/locations/westeurope/publishers/debian/artifacttypes/vmimage/offers/debian-12/skus/12/versions"


def a_sku(name: str, family: str, cpus: int, *restrictions: dict[str, Any]) -> dict[str, Any]:
    """As https://learn.microsoft.com/rest/api/compute/resource-skus/list shows them."""
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "family": family,
        "locations": ["westeurope"],
        "locationInfo": [{"location": "westeurope", "zones": ["1", "2"]}],
        "capabilities": [{"name": "vCPUs", "value": str(cpus)}, {"name": "MemoryGB", "value": "16"}],
        "restrictions": list(restrictions),
    }


def a_usage(name: str, used: int, limit: int) -> dict[str, Any]:
    """As https://learn.microsoft.com/rest/api/compute/usage/list shows them."""
    named = {"value": name, "localizedValue": name}
    return {"limit": limit, "unit": "Count", "currentValue": used, "name": named}


NOT_HERE = {"type": "Location", "values": ["westeurope"], "reasonCode": "NotAvailableForSubscription"}
NOT_IN_2 = {"type": "Zone", "restrictionInfo": {"zones": ["2"]}, "reasonCode": "NotAvailableForSubscription"}


@pytest.fixture
def azure(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr("nodemanager.cloud.azure.port.AzureDriver", partial(AzureDriver, endpoint=service.url))
    service.says(*LOGIN, a_token())
    for kind in ("Microsoft.Compute/virtualMachines", "Microsoft.Network/networkInterfaces"):
        service.says("GET", f"{GROUP}/{kind}", said({"value": []}))
    service.says("GET", IMAGE, said({"id": IMAGE, "name": "flux", "location": "westeurope"}))
    service.says("GET", GALLERY, said({"id": GALLERY, "name": "flux", "location": "northeurope"}))
    service.says("GET", NETWORK, said({"id": NETWORK, "name": "flux", "location": "westeurope"}))
    service.says("GET", f"{NETWORK}/subnets/nodes", said({"name": "nodes", "properties": {}}))
    service.says("GET", DEBIAN, said([{"name": "0.20260101.1", "location": "westeurope"}]))
    skus = [
        a_sku("Standard_D4s_v5", "standardDSv5Family", 4),
        a_sku("Standard_D8s_v5", "standardDSv5Family", 8, NOT_HERE),
        a_sku("Standard_D16s_v5", "standardDSv5Family", 16, NOT_IN_2),
        {"resourceType": "disks", "name": "Premium_LRS"},
    ]
    service.says("GET", SKUS, said({"value": skus}))
    usages = [a_usage("cores", 2, 100), a_usage("virtualMachines", 0, 25_000), a_usage("StandardDSv5Family", 0, 12)]
    service.says("GET", USAGES, said({"value": usages}))
    return service


def on_azure(folder: Path, size: str = "Standard_D4s_v5", **changes: str) -> Path:
    keys = {
        "provider": "azure",
        "region": "westeurope",
        "resource_group": "nodes",
        "image": IMAGE,
        "network": "flux/nodes",
        "ssh_public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample admin",
    }
    # Sections may come in any order.
    credentials = "[Cloud Credentials]\n" + "\n".join(
        f"{key} = {value}"
        for key, value in (
            ("tenant_id", "tenant"),
            ("subscription_id", "99999999"),
            ("client_id", "client"),
            ("client_secret", "SECRET"),
        )
    )
    return write(folder, keys | changes, size, credentials)


def test_a_sound_subscription_on_azure_is_ok_in_every_line(
    azure: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(on_azure(tmp_path), capsys)
    assert found["account"] == "ok it answers; 0 instances of this cluster listed"
    assert found["nodes of small"].startswith("ok westeurope has Standard_D4s_v5; image /subscriptions/")
    assert found["quotas"] == "ok there is room for 3 nodes: cores, standardDSv5Family, virtualMachines"
    assert all(call.method in {"GET", "HEAD"} for call in azure.calls if "oauth2" not in call.path)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"image": GALLERY}, ""),
        ({"image": "debian:debian-12:12:latest"}, ""),
        (
            {"image": "debian:debian-12:12:0.1"},
            "the marketplace has no image debian:debian-12:12:0.1 in west",
        ),
        ({"image": "none:none:1:latest"}, "the marketplace has no image none:none:1:latest"),
        ({"image": f"{IMAGE}-none"}, f"there is no image {IMAGE}-none"),
        ({"network": "flux/none"}, "there is no subnet flux/none"),
        ({"size": "Standard_Z1"}, "westeurope has no size Standard_Z1"),
        ({"size": "Standard_D8s_v5"}, "may not use Standard_D8s_v5 in westeurope (NotAvailableForSubscription)"),
        ({"size": "Standard_D16s_v5", "zones": "1"}, ""),
        ({"size": "Standard_D16s_v5", "zones": "2"}, "zone 2 of westeurope has no size Standard_D16s_v5"),
        ({"zones": "3"}, "zone 3 of westeurope has no size Standard_D4s_v5"),
    ],
)
def test_what_azure_does_not_have_is_a_fault(
    azure: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], told: str
) -> None:
    found = lines(on_azure(tmp_path, **changes), capsys)["nodes of small"]
    assert found.startswith("fault " if told else "ok ")
    assert told in found
    assert ("Correct it in [Cloud]" in found) is bool(told)
    assert all(call.method in {"GET", "HEAD"} for call in azure.calls if "oauth2" not in call.path)


@pytest.mark.parametrize(("path", "told"), [(IMAGE, "image /sub"), (NETWORK, "subnet flux/nodes")])
def test_an_image_or_network_in_another_region_of_azure_is_a_fault(
    azure: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, told: str
) -> None:
    azure.says("GET", path, said({"id": path, "name": "flux", "location": "East US"}))
    found = lines(on_azure(tmp_path), capsys)["nodes of small"]
    assert found.startswith(f"fault {told}")
    assert "is in East US, and the nodes in westeurope" in found


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (("cores", 89, 100), "warning 12 may be needed, and 11 are free: cores"),
        (("standardDSv5Family", 1, 12), "warning 12 may be needed, and 11 are free: standardDSv5Family"),
        (("virtualMachines", 24_998, 25_000), "warning 3 may be needed, and 2 are free: virtualMachines"),
        (("standardESv5Family", 5, 5), "ok "),
    ],
)
def test_azure_quotas_are_compared_by_region_and_family(
    azure: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], usage: tuple[str, int, int], told: str
) -> None:
    usages = {name: a_usage(name, 0, 30_000) for name in ("cores", "virtualMachines", "standardDSv5Family")}
    azure.says("GET", USAGES, said({"value": [*(usages | {usage[0]: a_usage(*usage)}).values()]}))
    assert lines(on_azure(tmp_path), capsys)["quotas"].startswith(told)


def test_a_role_that_may_not_list_sizes_is_a_warning(
    azure: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"error": {"code": "AuthorizationFailed", "message": "no action Microsoft.Compute/skus/read"}}
    azure.says("GET", SKUS, said(error, 403))
    found = lines(on_azure(tmp_path), capsys)["nodes"]
    assert found.startswith("warning it cannot be looked up: AuthorizationFailed: no action Microsoft.Compute/skus")
    assert "Reader" in found
