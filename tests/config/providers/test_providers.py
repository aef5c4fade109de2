"""The keys that each provider needs: all faults of a site are reported at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nodemanager.cloud.azure import port as azure_site
from nodemanager.cloud.azure.port import AzureCloud
from nodemanager.cloud.gce import port as gce_site
from nodemanager.cloud.gce.port import GceCloud
from nodemanager.cloud.openstack import port as openstack_site
from nodemanager.cloud.openstack.port import OpenStackCloud
from nodemanager.cloud.providers import cloud_factory
from nodemanager.config.load import load_site
from nodemanager.config.site import Mode, Site
from nodemanager.core.ports import BatchCloudPort
from nodemanager.core.slots import TypeName
from nodemanager.core.upkeep.rules import changed_parts
from nodemanager.service.assembly.policy import policy_of
from nodemanager.service.assembly.ports import SystemClock
from tests.config.test_site import ENVIRONMENT, faults_of
from tests.paths import CONFIG

HEAD = """[Site]
cluster = lab
state_dir = state
[Flux]
head_address = 10.0.0.1
[Limits]
nodes_max = 4
price_per_hour_max = 10
"""
NODE = """[Node cpu]
cores = 4
memory = 8GiB
price_per_hour = 0.25
slots = cpu[1-4]
"""
GOOD: Mapping[str, str] = {
    "openstack": """[Cloud]
provider = openstack
auth_url = https://cloud.example:5000/v3
image = flux
network = private
[Cloud Credentials]
username = robot
password = ${WORD}
project = lab
""",
    "gce": """[Cloud]
provider = gce
project = lab
image = global/images/flux
network = global/networks/default
zones = a, b
""",
    "azure": """[Cloud]
provider = azure
region = westeurope
resource_group = nodes
image = a:b:c:d
network = net/sub
ssh_public_key = ssh-ed25519 AAAA me
[Cloud Credentials]
tenant_id = t
subscription_id = s
client_id = c
client_secret = ${WORD}
""",
}
WORDS = {"WORD": "hush"}


def site_of(folder: Path, cloud: str, node: str = NODE) -> Site:
    (folder / "site.ini").write_text(HEAD + cloud + node, encoding="utf-8")
    return load_site(folder / "site.ini", WORDS)


def problems(folder: Path, cloud: str, node: str = NODE) -> list[tuple[str, str]]:
    return [(fault.section, fault.key) for fault in faults_of(folder, HEAD + cloud + node, WORDS)]


def without(provider: str, *keys: str) -> str:
    lines = GOOD[provider].splitlines(keepends=True)
    return "".join(line for line in lines if line.partition(" =")[0] not in keys)


@pytest.mark.parametrize("provider", GOOD)
def test_the_least_site_is_enough(tmp_path: Path, provider: str) -> None:
    assert site_of(tmp_path, GOOD[provider]).cloud.provider == provider


@pytest.mark.parametrize("provider", GOOD)
def test_all_missing_keys_are_reported_at_once(tmp_path: Path, provider: str) -> None:
    missing = {
        "openstack": {
            ("Cloud", "auth_url"),
            ("Node cpu", "image"),
            ("Node cpu", "network"),
            ("Cloud Credentials", "username"),
            ("Cloud Credentials", "password"),
            ("Cloud Credentials", "project"),
        },
        "gce": {("Cloud", "project"), ("Node cpu", "image"), ("Node cpu", "network"), ("Node cpu", "zones")},
        "azure": {
            ("Cloud", "region"),
            ("Cloud", "resource_group"),
            ("Cloud", "ssh_public_key"),
            ("Node cpu", "image"),
            ("Node cpu", "network"),
            ("Cloud Credentials", "tenant_id"),
            ("Cloud Credentials", "subscription_id"),
            ("Cloud Credentials", "client_id"),
            ("Cloud Credentials", "client_secret"),
        },
    }
    assert set(problems(tmp_path, f"[Cloud]\nprovider = {provider}\n")) == missing[provider]


@pytest.mark.parametrize("provider", GOOD)
def test_a_node_type_may_say_for_itself_what_the_cloud_does_not(tmp_path: Path, provider: str) -> None:
    own = {"openstack": "n", "gce": "global/networks/n", "azure": "net/n"}[provider]
    image = {"openstack": "i", "gce": "global/images/i", "azure": "a:b:c:i"}[provider]
    zones = "zones = z\n"
    node = NODE + f"image = {image}\nnetwork = {own}\n{zones}"
    site = site_of(tmp_path, without(provider, "image", "network", "zones"), node)
    assert site.node_types[0].image == image
    assert site.node_types[0].zones == ("z",)
    assert site.networks[TypeName("cpu")] == own


@pytest.mark.parametrize(
    ("provider", "key", "text"),
    [
        ("openstack", "microversion", "2.51"),
        ("openstack", "zones", "a, b"),
        ("openstack", "project", "lab"),
        ("openstack", "resource_group", "nodes"),
        ("openstack", "network", "private,"),
        ("openstack", "network", "private,,storage"),
        ("openstack", "network", "two words"),
        ("gce", "image", "debian-12"),
        ("gce", "network", "default"),
        ("gce", "region", "europe-west3"),
        ("gce", "security_groups", "default"),
        ("gce", "config_drive", "yes"),
        ("azure", "image", "debian-12"),
        ("azure", "network", "net"),
        ("azure", "network", "net/a, net/b"),
        ("azure", "zones", "1, 2"),
        ("azure", "auth_url", "https://x"),
    ],
)
def test_what_the_provider_cannot_do_is_a_fault_at_its_key(
    tmp_path: Path, provider: str, key: str, text: str
) -> None:
    cloud = without(provider, key).replace("[Cloud]\n", f"[Cloud]\n{key} = {text}\n")
    if key == "project" and provider == "openstack":
        cloud = cloud.replace("password =", "project = lab\npassword =")
    assert problems(tmp_path, cloud) == [("Cloud", key)]


@pytest.mark.parametrize("provider", ["openstack", "azure"])
def test_spot_where_there_is_none_is_a_fault(tmp_path: Path, provider: str) -> None:
    (fault,) = faults_of(tmp_path, HEAD + GOOD[provider] + NODE + "market = spot\n", WORDS)
    assert (fault.section, fault.key) == ("Node cpu", "market")
    assert "not supported" in fault.problem


@pytest.mark.parametrize("provider", GOOD)
def test_placement_groups_are_taken_where_there_are_some(tmp_path: Path, provider: str) -> None:
    assert site_of(tmp_path, GOOD[provider], NODE + "placement = cluster\n").needs_groups
    assert not site_of(tmp_path, GOOD[provider], NODE + "placement = anywhere\n").needs_groups


@pytest.mark.parametrize("cloud", ["provider = local", "provider = flux\nouter_uri = local:///run/flux/local"])
def test_placement_groups_where_there_are_none_are_a_fault(tmp_path: Path, cloud: str) -> None:
    site = HEAD + f"[Cloud]\n{cloud}\n" + NODE + "placement = cluster\n"
    (fault,) = faults_of(tmp_path, site, {})
    assert "[Node cpu] placement" in str(fault)
    assert "has no placement groups: remove the key, or write anywhere" in str(fault)


def test_another_placement_is_another_make_of_nodes_and_none_changes_no_digest(tmp_path: Path) -> None:
    plain, same, close = (
        site_of(tmp_path, GOOD["gce"], NODE + line).node_types[0].made_from
        for line in ("", "placement = anywhere\n", "placement = cluster\n")
    )
    assert plain == same
    assert changed_parts(plain, close) == ("network",)


def test_spot_on_gce_is_none(tmp_path: Path) -> None:
    # It must not raise.
    site_of(tmp_path, GOOD["gce"], NODE + "market = spot\n")


@pytest.mark.parametrize("provider", ["gce", "azure"])
def test_a_price_of_nothing_where_everything_costs_is_a_fault(tmp_path: Path, provider: str) -> None:
    assert problems(tmp_path, GOOD[provider], NODE.replace("0.25", "0")) == [("Node cpu", "price_per_hour")]


def test_ones_own_cloud_may_be_free(tmp_path: Path) -> None:
    # It must not raise.
    site_of(tmp_path, GOOD["openstack"], NODE.replace("0.25", "0"))


@pytest.mark.parametrize(
    ("provider", "secrets", "faulty"),
    [
        ("openstack", "username = robot\nproject = lab\n", ["password"]),
        ("openstack", "application_credential_id = x\n", ["application_credential_secret"]),
        ("openstack", "username = r\npasword = ${WORD}\nproject = lab\n", ["password", "pasword"]),
        ("gce", "service_account = r@x\n", [""]),
        ("gce", "key = ${WORD}\n", [""]),
        ("azure", "tenant_id = t\nclient_id = c\nclient_secret = ${WORD}\n", ["subscription_id"]),
    ],
)
def test_credentials_that_are_not_whole_are_a_fault(
    tmp_path: Path, provider: str, secrets: str, faulty: list[str]
) -> None:
    cloud = GOOD[provider].partition("[Cloud Credentials]")[0] + "[Cloud Credentials]\n" + secrets
    found = problems(tmp_path, cloud)
    assert sorted(key for _, key in found) == faulty
    assert {section for section, _ in found} == {"Cloud Credentials"}


def test_an_application_credential_needs_nothing_more(tmp_path: Path) -> None:
    cloud = GOOD["openstack"].partition("username")[0]
    cloud += "application_credential_id = id\napplication_credential_secret = ${WORD}\n"
    account = openstack_site.login_of(site_of(tmp_path, cloud))
    assert (account.application_credential, account.user, account.secret) == (True, "id", "hush")


@pytest.mark.parametrize("networks", ["n1,n2", "n1, n2"])
def test_openstack_gets_the_values_of_the_site(tmp_path: Path, networks: str) -> None:
    cloud = GOOD["openstack"].replace(
        "image =", "region = north\nmicroversion = 2.90\nconfig_drive = yes\nsecurity_groups = a, b\nimage ="
    )
    cloud += "user_domain = users\nproject_domain_id = projects\n"
    site = site_of(tmp_path, cloud, NODE + f"network = {networks}\nkey_name = mine\nsecurity_groups = c\n")
    account = openstack_site.login_of(site)
    assert (account.auth_url, account.region, account.microversion) == (
        "https://cloud.example:5000/v3",
        "north",
        "2.90",
    )
    assert (account.user, account.secret, account.project) == ("robot", "hush", "lab")
    assert (account.user_domain, account.project_domain_id) == ("users", "projects")
    (placement,) = openstack_site.placements_of(site).values()
    assert placement.networks == ("n1", "n2")
    assert (placement.security_groups, placement.key_name, placement.config_drive) == (("c",), "mine", True)


def test_gce_and_azure_get_the_values_of_the_site(tmp_path: Path) -> None:
    (gce,) = gce_site.placements_of(site_of(tmp_path, GOOD["gce"])).values()
    assert (gce.network, gce.zones) == ("global/networks/default", ("a", "b"))
    (azure,) = azure_site.placements_of(site_of(tmp_path, GOOD["azure"], NODE + "zones = 2\n")).values()
    assert (azure.network, azure.zone) == ("net/sub", "2")


@pytest.mark.parametrize(
    ("provider", "adapter"), [("openstack", OpenStackCloud), ("gce", GceCloud), ("azure", AzureCloud)]
)
def test_every_port_has_a_driver_of_its_own_and_calls_nobody_yet(
    tmp_path: Path, provider: str, adapter: type
) -> None:
    make = cloud_factory(site_of(tmp_path, GOOD[provider]), lambda *_: "#!/bin/sh\n", SystemClock())
    first, second = make(), make()
    assert type(first) is type(second) is adapter
    assert first.driver is not second.driver  # type: ignore[attr-defined]


@pytest.mark.parametrize("provider", GOOD)
def test_no_secret_is_in_what_is_printed(tmp_path: Path, provider: str) -> None:
    site = site_of(tmp_path, GOOD[provider])
    assert "hush" not in repr(site)
    if provider == "openstack":
        assert "hush" not in repr(openstack_site.login_of(site))


@pytest.mark.parametrize("provider", GOOD)
def test_the_example_only_observes(provider: str) -> None:
    site = load_site(CONFIG / f"{provider}.ini", ENVIRONMENT)
    assert (site.cloud.provider, site.mode) == (provider, Mode.OBSERVE)


# --- batches on Compute Engine ----------------------------------------------------------------------------

BY_TICKET = "[Join]\naddresses = 10.0.0.1:8443\n"
ACCOUNT = "nodes@lab.iam.gserviceaccount.com"


def a_google_site(folder: Path, account: str = ACCOUNT, *more: str) -> Site:
    text = HEAD.replace("[Flux]\n", "[Flux]\njoin = service\n") + BY_TICKET
    keys = [f"node_service_account = {account}"] if account else []
    text += GOOD["gce"] + "\n".join([*keys, *more]) + "\n" + NODE
    (folder / "site.ini").write_text(text, encoding="utf-8")
    return load_site(folder / "site.ini", WORDS)


@pytest.mark.parametrize(
    ("account", "more", "batches"),
    [(ACCOUNT, (), True), ("", (), False), (ACCOUNT, ("nodes_per_call = 1",), False)],
    ids=["with an account", "without", "one a call"],
)
def test_nodes_of_google_come_in_batches_if_they_have_an_account(
    tmp_path: Path, account: str, more: tuple[str, ...], batches: bool
) -> None:
    site = a_google_site(tmp_path, account, *more)
    calls = policy_of(site).calls
    assert site.batches is batches
    assert (calls.nodes_per_create, calls.nodes_per_destroy) == (500 if batches else 1, 1)
    assert (calls.creates_per_s, calls.creates_burst) == ((20.0, 1000) if batches else (5.0, 20))


def test_the_account_of_the_nodes_is_a_mail_address(tmp_path: Path) -> None:
    assert problems(tmp_path, GOOD["gce"] + "node_service_account = nodes\n") == [("Cloud", "node_service_account")]
    for other in ("openstack", "azure"):
        cloud = GOOD[other].replace("[Cloud]\n", f"[Cloud]\nnode_service_account = {ACCOUNT}\n")
        assert problems(tmp_path, cloud) == [("Cloud", "node_service_account")]


def test_nodes_with_another_account_are_made_from_something_else(tmp_path: Path) -> None:
    (without,), (with_one,), (other,) = (
        a_google_site(tmp_path, account).node_types for account in ("", ACCOUNT, "jobs@lab.iam.gserviceaccount.com")
    )
    assert len({without.made_from, with_one.made_from, other.made_from}) == 3
    assert changed_parts(with_one.made_from, other.made_from) == ("network",)


def test_the_port_of_a_google_site_creates_batches(tmp_path: Path) -> None:
    port = cloud_factory(a_google_site(tmp_path), lambda launch, _: launch.id, SystemClock())()
    assert isinstance(port, BatchCloudPort)
