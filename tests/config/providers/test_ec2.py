"""A site on EC2: the keys it needs, contradictions, and the values read from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.cloud.ec2.port import Ec2Cloud, placements_of
from nodemanager.cloud.ec2.provider import identity_certificate
from nodemanager.cloud.ec2.run_instances import Ec2Placement
from nodemanager.cloud.providers import cloud_factory, provider_warnings
from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError, JoinMethod, Mode, Site
from nodemanager.core.slots import TypeName
from nodemanager.service.assembly.policy import policy_of
from tests.contract.cloud_subjects import SystemClock, a_script
from tests.join.identities import signer
from tests.paths import CONFIG

EXAMPLE = CONFIG / "ec2.ini"
UUID = "33333333-3333-4333-8333-333333333333"

LEAST: Mapping[str, Mapping[str, str]] = {
    "Site": {"cluster": "lab", "state_dir": "state", "cluster_uuid": UUID},
    "Flux": {"head_address": "10.0.0.1"},
    "Cloud": {"provider": "ec2", "region": "us-east-1", "image": "ami-0abc"},
    "Limits": {"nodes_max": "4", "price_per_hour_max": "10"},
    "Node c7i.large": {"cores": "2", "memory": "4GiB", "price_per_hour": "0.09", "slots": "cpu[1-4]"},
}
SMALL = TypeName("c7i.large")


def text_of(*changes: tuple[str, str, str | None]) -> str:
    sections = {name: dict(keys) for name, keys in LEAST.items()}
    for section, key, text in changes:
        sections.setdefault(section, {}).pop(key, None)
        if text is not None:
            sections[section][key] = text
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {text}\n" for key, text in keys.items())
        for name, keys in sections.items()
    )


def site_of(folder: Path, *changes: tuple[str, str, str | None]) -> Site:
    (folder / "site.ini").write_text(text_of(*changes), encoding="utf-8")
    (folder / "site.ini").chmod(0o600)
    return load_site(folder / "site.ini", {})


def faults_of(folder: Path, *changes: tuple[str, str, str | None]) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        site_of(folder, *changes)
    return [str(fault).removeprefix(f"{folder / 'site.ini'}:").partition(": ")[2] for fault in refused.value.faults]


# --- what is read -----------------------------------------------------------------------------------------


def test_the_least_site_leaves_all_else_to_the_account(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    assert (site.cloud.provider, site.cloud.region, site.cloud.endpoint) == ("ec2", "us-east-1", "")
    assert (site.node_types[0].size, site.node_types[0].image, site.node_types[0].zones) == (
        "c7i.large", "ami-0abc", (),
    )  # fmt: skip
    assert placements_of(site) == {SMALL: Ec2Placement()}


def test_subnets_say_the_zones_and_their_order(tmp_path: Path) -> None:
    site = site_of(tmp_path, ("Cloud", "subnets", "us-east-1b:subnet-2, us-east-1a:subnet-1"))
    assert site.node_types[0].zones == ("us-east-1b", "us-east-1a")
    assert list(placements_of(site)[SMALL].subnets.items()) == [
        ("us-east-1b", "subnet-2"),
        ("us-east-1a", "subnet-1"),
    ]


def test_a_type_may_keep_to_some_of_the_zones_and_has_their_subnets(tmp_path: Path) -> None:
    site = site_of(
        tmp_path,
        ("Cloud", "subnets", "us-east-1a:subnet-1, us-east-1b:subnet-2"),
        ("Node c7i.large", "zones", "us-east-1b"),
    )
    assert site.node_types[0].zones == ("us-east-1b",)
    assert placements_of(site)[SMALL].subnets == {"us-east-1b": "subnet-2"}


def test_a_type_may_have_all_of_its_own(tmp_path: Path) -> None:
    cloud = {
        "subnets": "us-east-1a:subnet-1",
        "security_groups": "sg-1",
        "key_name": "ops",
        "instance_profile": "nodes",
    }
    own = {
        "subnets": "us-east-1c:subnet-3",
        "security_groups": "sg-2, sg-3",
        "key_name": "gpu-ops",
        "instance_profile": "gpu-nodes",
    }
    site = site_of(
        tmp_path,
        *(("Cloud", key, text) for key, text in cloud.items()),
        *(
            ("Node g6.xlarge", key, text)
            for key, text in {**LEAST["Node c7i.large"], "slots": "gpu1", **own}.items()
        ),
    )
    assert placements_of(site) == {
        SMALL: Ec2Placement({"us-east-1a": "subnet-1"}, ("sg-1",), "ops", "nodes"),
        TypeName("g6.xlarge"): Ec2Placement({"us-east-1c": "subnet-3"}, ("sg-2", "sg-3"), "gpu-ops", "gpu-nodes"),
    }
    assert [node_type.zones for node_type in site.node_types] == [("us-east-1a",), ("us-east-1c",)]


def test_the_example_observes_and_can_be_made_into_a_cloud() -> None:
    site = load_site(EXAMPLE, {})
    assert (site.mode, site.cloud.provider) == (Mode.OBSERVE, "ec2")
    assert [node_type.zones for node_type in site.node_types] == [("us-east-1a", "us-east-1b")] * 3
    make = cloud_factory(replace(site, cluster_uuid=UUID), a_script, SystemClock())
    one, other = make(), make()
    assert isinstance(one, Ec2Cloud)
    assert isinstance(other, Ec2Cloud)
    assert one is not other
    assert one._driver is not other._driver, "a driver belongs to one thread"


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "key", "text", "fault"),
    [
        ("Cloud", "region", None, '[Cloud] region: must be given: a region such as "eu-central-1"'),
        (
            "Cloud", "image", None,
            '[Node c7i.large] image: must be given here or under [Cloud]: an image such as "ami-0abc"',
        ),
        ("Cloud", "image", "ubuntu", '[Cloud] image = "ubuntu": an image such as "ami-0abc" is needed'),
        ("Node c7i.large", "image", "x", '[Node c7i.large] image = "x": an image such as "ami-0abc" is needed'),
        (
            "Node c7i.large", "size", "small",
            '[Node c7i.large] size = "small": an instance type such as "c7i.large" is needed',
        ),
        (
            "Node c7i.large", "price_per_hour", "0.00",
            '[Node c7i.large] price_per_hour = "0.00": a price above 0 is needed: no node on EC2 is free',
        ),
        (
            "Cloud", "network", "subnet-1",
            '[Cloud] network = "subnet-1": EC2 uses subnets instead: write subnets = ZONE:SUBNET, ...',
        ),
        (
            "Cloud", "zones", "eu-west-1a",
            '[Cloud] zones = "eu-west-1a": zone "eu-west-1a" is not in region us-east-1: correct one of the two',
        ),
        (
            "Cloud", "subnets", "eu-west-1a:subnet-1",
            '[Cloud] subnets = "eu-west-1a:subnet-1": zone "eu-west-1a" is not in region us-east-1: correct one of the two',  # noqa: E501
        ),
        (
            "Cloud", "subnets", "subnet-1",
            '[Cloud] subnets = "subnet-1": a list such as "us-east-1a:subnet-1, us-east-1b:subnet-2", one subnet per zone is needed',  # noqa: E501
        ),
        (
            "Cloud", "subnets", "us-east-1a:s-1, us-east-1a:s-2",
            '[Cloud] subnets = "us-east-1a:s-1, us-east-1a:s-2": zone "us-east-1a" has two subnets: give one per zone',  # noqa: E501
        ),
        (
            "Cloud", "endpoint", "ec2.example.org",
            '[Cloud] endpoint = "ec2.example.org": "https://HOST" or "http://HOST:PORT" is needed',
        ),
        (
            "Cloud", "endpoint", "https://ada:secret@example.org",
            '[Cloud] endpoint = "https://…@example.org": "https://HOST" or "http://HOST:PORT" is needed',
        ),
        (
            "Cloud", "endpoint", "http://host:99999",
            '[Cloud] endpoint = "http://host:99999": "https://HOST" or "http://HOST:PORT" is needed',
        ),
        (
            "Cloud Credentials", "access_key_id", "AKIA",
            "[Cloud Credentials] secret_access_key: access_key_id and secret_access_key must be given together",
        ),
        (
            "Cloud Credentials", "access_key", "AKIA",
            '[Cloud Credentials] access_key: no such key; did you mean "access_key_id"?',
        ),
        (
            "Cloud Credentials", "username", "ada",
            "[Cloud Credentials] username: no such key; the keys are access_key_id, secret_access_key, session_token",  # noqa: E501
        ),
    ],
)  # fmt: skip
def test_what_ec2_would_refuse_is_refused_before(
    tmp_path: Path, section: str, key: str, text: str | None, fault: str
) -> None:
    assert faults_of(tmp_path, (section, key, text)) == [fault]


def test_a_zone_without_a_subnet_where_others_have_one_is_refused(tmp_path: Path) -> None:
    subnets = ("Cloud", "subnets", "us-east-1a:subnet-1")
    wanted = 'zone "us-east-1b" has no subnet: give one as us-east-1b:SUBNET in subnets'
    (of_cloud,) = faults_of(tmp_path, subnets, ("Cloud", "zones", "us-east-1a, us-east-1b"))
    (of_type,) = faults_of(tmp_path, subnets, ("Node c7i.large", "zones", "us-east-1b"))
    assert (of_cloud.endswith(wanted), of_type.endswith(wanted)) == (True, True)
    assert of_type.startswith("[Node c7i.large] zones")


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    faults = faults_of(
        tmp_path,
        ("Cloud", "region", None),
        ("Cloud", "image", "x"),
        ("Node c7i.large", "size", "small"),
        ("Limits", "nodes_max", "none"),
    )
    assert len(faults) == 4


def test_behind_an_endpoint_of_ones_own_zones_may_have_any_name(tmp_path: Path) -> None:
    site = site_of(tmp_path, ("Cloud", "endpoint", "http://cloud:8773"), ("Cloud", "zones", "rack-1"))
    assert site.node_types[0].zones == ("rack-1",)


def test_other_providers_do_not_need_the_keys_of_ec2(tmp_path: Path) -> None:
    assert site_of(tmp_path, ("Cloud", "provider", "local"), ("Cloud", "region", None)).cloud.region == ""


@pytest.mark.parametrize("name", ["ec2", "gce", "openstack", "azure"])
def test_the_example_copied_to_where_the_quick_start_says_fits_its_commands_and_the_unit(
    tmp_path: Path, name: str
) -> None:
    # The example's paths were relative. A copy then pointed to /etc/state, which the unit cannot write.
    quickstart = (EXAMPLE.parents[1] / "doc" / "quickstart-ec2.md").read_text(encoding="utf-8")
    unit = (EXAMPLE.parent / "systemd" / "flux-node-manager.service").read_text(encoding="utf-8")
    text = EXAMPLE.with_name(f"{name}.ini").read_text(encoding="utf-8")
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    site = load_site(tmp_path / "site.ini", {}, with_credentials=False)
    (output,) = re.findall(r"^flux-node-manager init --config .* --output (\S+)$", quickstart, re.MULTILINE)
    (folder,) = re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)
    assert f"--output {output}" in text
    assert site.state_dir == Path("/var/lib") / folder
    assert site.flux.bootstrap_dir == Path(output)
    assert site.flux.uri == f"local://{output}/run/local-0"
    assert site.flux.join is JoinMethod.SERVICE
    for path in (site.flux.bootstrap_dir, site.join.material_dir, site.web.token_file):
        assert path.is_relative_to(site.state_dir)


# --- what is said -----------------------------------------------------------------------------------------


def test_without_keys_a_warning_says_where_they_come_from(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    (said,) = provider_warnings(site, {})
    assert "empty, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set:" in said
    assert "profiles, SSO, web identity and container credentials are not supported" in said
    (said,) = provider_warnings(site, {"AWS_PROFILE": "ada"})
    assert "AWS_PROFILE (profiles) in the environment is not supported" in said
    assert provider_warnings(site, {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}) == ()


def test_half_a_pair_of_keys_in_the_environment_gives_a_warning(tmp_path: Path) -> None:
    (said,) = provider_warnings(site_of(tmp_path), {"AWS_ACCESS_KEY_ID": "AKIA"})
    assert "empty, and AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY:" in said
    (said,) = provider_warnings(site_of(tmp_path), {"AWS_SECRET_ACCESS_KEY": "of-env"})
    assert "empty, and AWS_SECRET_ACCESS_KEY is set without AWS_ACCESS_KEY_ID:" in said
    assert "of-env" not in said


def test_keys_with_impossible_characters_give_a_warning_that_hides_them(tmp_path: Path) -> None:
    given = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "of-env\r"}
    (said,) = provider_warnings(site_of(tmp_path), given)
    assert said.startswith("[Cloud Credentials] secret_access_key: contains characters that no key of AWS has")
    assert "of-env" not in said


def test_keys_in_the_site_and_other_clouds_give_no_warning(tmp_path: Path) -> None:
    given = [("Cloud Credentials", "access_key_id", "AKIA"), ("Cloud Credentials", "secret_access_key", "secret")]
    assert provider_warnings(site_of(tmp_path, *given), {"AWS_PROFILE": "ada"}) == ()
    assert provider_warnings(site_of(tmp_path, ("Cloud", "provider", "local")), {"AWS_PROFILE": "ada"}) == ()


# --- batches ----------------------------------------------------------------------------------------------

BY_TICKET = (("Flux", "join", "service"), ("Join", "addresses", "10.0.0.1:8443"))


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ((), True),
        ((("Flux", "join", None), ("Join", "addresses", None)), False),
        ((("Cloud", "nodes_per_call", "1"),), False),
        ((("Cloud", "region", "xx-future-9"),), False),
        ((("Cloud", "endpoint", "https://ec2.example.org"),), False),
        ((("Join", "client", "/usr/bin/flux-node-join"),), False),
        ((("Join", "client", "/usr/bin/flux-node-join"), ("Cloud", "nodes_per_call", "100")), True),
    ],
    ids=[
        "by default",
        "no tickets",
        "one a call",
        "a new region",
        "another server",
        "an old client?",
        "a new client",
    ],
)
def test_one_call_creates_several_nodes_if_each_can_prove_which_it_is(
    tmp_path: Path, changes: tuple[tuple[str, str, str | None], ...], batches: bool
) -> None:
    site = site_of(tmp_path, *BY_TICKET, *changes)
    calls = policy_of(site).calls
    assert site.batches is batches
    assert (calls.nodes_per_create > 1) is batches
    assert (calls.creates_per_s, calls.creates_burst) == ((2.0, 1000) if batches else (5.0, 20))
    assert calls.nodes_per_destroy == site.cloud.nodes_per_call


def test_the_rate_of_the_site_counts_for_batches_too(tmp_path: Path) -> None:
    raised = (("Cloud", "creates_per_s", "20"), ("Cloud", "creates_burst", "10000"))
    calls = policy_of(site_of(tmp_path, *BY_TICKET, *raised)).calls
    assert (calls.creates_per_s, calls.creates_burst, calls.nodes_per_create) == (20.0, 10_000, 500)


def test_the_certificate_of_another_server_is_the_sites(tmp_path: Path) -> None:
    (tmp_path / "identity.pem").write_text(signer().pem)
    given = (("Cloud", "endpoint", "https://ec2.example.org"), ("Cloud", "identity_certificate", "identity.pem"))
    site = site_of(tmp_path, *BY_TICKET, *given)
    assert site.batches
    assert identity_certificate(site.cloud) == signer().pem


def test_a_certificate_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    given = ("Cloud", "identity_certificate", "nowhere.pem")
    (fault,) = faults_of(tmp_path, *BY_TICKET, given)
    assert fault.startswith("[Cloud] identity_certificate = ")
    assert fault.endswith("cannot be read: No such file or directory")
