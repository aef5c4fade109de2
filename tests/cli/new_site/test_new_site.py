"""``init --provider``: what is asked, what is written, and that the site is good, on moto and on a real Nova."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.cli import main
from nodemanager.cli.new_site import command
from nodemanager.cli.new_site.command import NewSiteError, write_new_site
from nodemanager.cli.new_site.site_text import SiteChoices, site_text, type_names
from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_USAGE
from nodemanager.cloud.common.survey import (
    OfferedImage,
    OfferedNetwork,
    OfferedSize,
    Questions,
    Survey,
    Unanswered,
    typical_sizes,
)
from nodemanager.cloud.ec2.account import Ec2Account
from nodemanager.cloud.openstack.account import OpenStackAccount
from nodemanager.config.load import load_site
from nodemanager.config.site import ConfigError, Site, cluster_of_test
from nodemanager.service.assembly.ports import SystemClock
from tests.paths import DOC

GIB = 2**30
ARM = OfferedImage("ami-0a", "arm", "2026-01-01", "arm64")
INTEL = OfferedImage("ami-0b", "intel", "2026-02-02", "x86_64")
SMALL = OfferedSize("c7i.xlarge", 2, 0, 8 * GIB, Decimal("0.1785"), frozenset({"x86_64"}))
LARGE = OfferedSize("c7i.8xlarge", 16, 0, 64 * GIB, Decimal("1.428"), frozenset({"x86_64"}))
GPU = OfferedSize("g6.xlarge", 2, 1, 16 * GIB, Decimal("0.8048"), frozenset({"x86_64"}))
ARM_SIZE = OfferedSize("c7g.large", 2, 0, 4 * GIB, Decimal("0.07"), frozenset({"arm64"}))
UNPRICED = OfferedSize("new.large", 2, 0, 4 * GIB, None, frozenset({"x86_64"}))
NETWORKS = (
    OfferedNetwork("vpc-1", "", (("r-1a", "subnet-1a"), ("r-1b", "subnet-1b")), "sg-1"),
    OfferedNetwork("vpc-2", "", (("r-1a", "subnet-2a"),), "sg-2"),
)
OLD = OfferedSize("m4.large", 1, 0, 8 * GIB, Decimal("0.1"), frozenset({"x86_64"}), "of a previous generation")
SURVEY = Survey(
    "r-1",
    ("r-1", "r-2"),
    ("r-1a", "r-1b"),
    (INTEL, ARM),
    NETWORKS,
    (SMALL, LARGE, GPU, ARM_SIZE, UNPRICED),
    unusual_sizes=(OLD,),
)


@pytest.fixture
def surveyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both accounts offer the survey above, and no call is made."""
    monkeypatch.setattr(Ec2Account, "survey", lambda *_: SURVEY)
    monkeypatch.setattr(OpenStackAccount, "survey", lambda *_: SURVEY)


def options(file: Path, **given: object) -> argparse.Namespace:
    names = "cluster region image network size head_address endpoint project resource_group ssh_key"
    nothing = dict.fromkeys(names.split())
    return argparse.Namespace(**{**nothing, "provider": "ec2", "output": str(file), **given})


def write(file: Path, *typed: str, **given: object) -> tuple[Site, list[str]]:
    """The site written, and what was said. ``typed``: the answers on a terminal; without any there is none."""
    answers = iter(typed)
    said: list[str] = []
    questions = Questions((lambda _: next(answers)) if typed else None)
    write_new_site(options(file, **given), questions, {"AWS_REGION": "r-1"}, said.append)
    assert list(answers) == [], "every answer was asked for"
    return load_site(file), said


# --- the choices ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("surveyed")
def test_without_a_terminal_the_first_choices_are_taken(tmp_path: Path) -> None:
    site, said = write(tmp_path / "site.ini", head_address="10.0.0.10")
    assert (site.cluster, site.mode_text, site.cloud.provider) == ("lab", "observe", "ec2")
    assert (site.cloud.region, site.cloud.image, site.cloud.security_groups) == ("r-1", INTEL.id, ("sg-1",))
    assert dict(site.cloud.subnets) == {"r-1a": "subnet-1a", "r-1b": "subnet-1b"}
    assert [(it.name, it.size, it.price_per_hour) for it in site.node_types] == [
        ("small", "c7i.xlarge", Decimal("0.1785")),
        ("large", "c7i.8xlarge", Decimal("1.428")),
    ]
    assert site.limits.nodes_max == 8
    assert site.limits.price_per_hour_max == 4 * (Decimal("1.428") + Decimal("0.1785"))
    text = (tmp_path / "site.ini").read_text(encoding="utf-8")
    assert "# g6.xlarge                  2    1     16GiB  0.8048" in text
    assert "c7g.large" not in text, "the image cannot boot there"
    assert "# The account's regions: r-1, r-2" in text
    assert f"# Another image: {ARM.id} arm 2026-01-01" in text
    assert any("check --online --config" in line for line in said)


@pytest.mark.usefixtures("surveyed")
def test_on_a_terminal_what_no_option_says_is_asked_by_number_or_value(tmp_path: Path) -> None:
    typed = ("2\n", "vpc-2\n", "c7g.large\n", "\n")
    site, _ = write(tmp_path / "site.ini", *typed, cluster="mine")
    assert (site.cluster, site.cloud.image, site.cloud.security_groups) == ("mine", ARM.id, ("sg-2",))
    assert [it.size for it in site.node_types] == ["c7g.large"]
    assert site.flux.head_address == command.own_address()


@pytest.mark.usefixtures("surveyed")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"size": ["c7i.xlarg"]}, "r-1 offers no such size: did you mean c7i.xlarge?"),
        ({"size": ["c7g.large"]}, "it cannot boot ami-0b, whose architecture is x86_64"),
        ({"network": "vpc-9"}, "there is no such network. The account has vpc-1, vpc-2"),
    ],
)
def test_what_the_account_lacks_is_named_and_nothing_is_written(
    tmp_path: Path, given: dict[str, object], problem: str
) -> None:
    with pytest.raises(NewSiteError, match=problem.replace("?", r"\?")):
        write(tmp_path / "site.ini", **given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("surveyed")
def test_a_size_that_is_not_proposed_is_taken_if_it_is_named(tmp_path: Path) -> None:
    site, _ = write(tmp_path / "site.ini", size=["m4.large"])
    assert [it.size for it in site.node_types] == ["m4.large"]
    assert "# of a previous generation." in (tmp_path / "site.ini").read_text(encoding="utf-8")
    write(tmp_path / "other.ini")
    assert "m4.large" not in (tmp_path / "other.ini").read_text(encoding="utf-8")


@pytest.mark.usefixtures("surveyed")
@pytest.mark.parametrize("name", ["site.ini", "site.policy.json"])
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    with pytest.raises(NewSiteError, match="nothing is overwritten"):
        write(tmp_path / "site.ini")
    assert [(it.name, it.read_text(encoding="utf-8")) for it in tmp_path.iterdir()] == [(name, "mine")]


def test_a_price_that_no_list_has_is_left_to_a_person_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ec2Account, "survey", lambda *_: SURVEY)
    said: list[str] = []
    chosen = options(tmp_path / "site.ini", size=["new.large"])
    write_new_site(chosen, Questions(None), {"AWS_REGION": "r-1"}, said.append)
    assert any("price_per_hour" in line and "must be given" in line for line in said)
    with pytest.raises(ConfigError):
        load_site(tmp_path / "site.ini")


def test_a_region_or_keys_that_are_missing_are_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "OS_AUTH_URL", "OS_APPLICATION_CREDENTIAL_ID"):
        monkeypatch.delenv(name, raising=False)
    for provider, words in (("ec2", "give --region"), ("openstack", "OS_AUTH_URL, OS_USERNAME")):
        asked = ["init", "--provider", provider, "--output", str(tmp_path / "site.ini")]
        assert main.main(asked) == EXIT_USAGE
        assert words in capsys.readouterr().err
    assert main.main(["init", "--provider", "ec2", "--config", "site.ini"]) == EXIT_USAGE


def test_the_input_may_end_before_the_last_question() -> None:
    def ended(prompt: str) -> str:
        raise Unanswered(prompt)

    with pytest.raises(Unanswered):
        Questions(ended).choose("image", "--image", None, [("a", ""), ("b", "")])


def test_every_type_has_a_name_of_its_own_that_does_not_end_in_a_digit() -> None:
    assert type_names([SMALL]) == ["cpu"]
    assert type_names([LARGE, GPU, SMALL]) == ["large", "gpu", "small"]
    many = [OfferedSize(f"s{cores}", cores, cores % 2, GIB, None) for cores in range(60)]
    names = type_names(many)
    assert len(set(names)) == 60
    assert not any(name[-1].isdigit() for name in names)


def test_the_typical_sizes_are_the_cheapest_that_are_large_enough() -> None:
    assert typical_sizes(SURVEY.sizes) == (ARM_SIZE, LARGE)
    assert typical_sizes([GPU]) == (GPU,)
    assert typical_sizes([UNPRICED, SMALL]) == (SMALL,)
    tiny = replace(SMALL, name="tiny", memory_bytes=GIB // 8, price_per_hour=Decimal("0.01"))
    with_devices = replace(SMALL, name="fpga", note="a device", price_per_hour=Decimal("0.02"))
    assert typical_sizes([tiny, with_devices, SMALL]) == (SMALL,)


def test_without_other_sizes_the_site_lists_none() -> None:
    survey = Survey("r-1", (), (), (), (), (SMALL,))
    text = site_text(survey, SiteChoices("ec2", "lab", "10.0.0.1", INTEL, (SMALL,), {"region": "r-1"}))
    assert "other sizes" not in text


def test_the_policy_is_the_one_of_the_page() -> None:
    from nodemanager.cloud.ec2.policy import least_privileges, partition_of  # noqa: PLC0415

    text = (DOC / "clouds" / "ec2.md").read_text(encoding="utf-8")
    shown = json.loads(text.split("```json\n", 1)[1].split("```", 1)[0])
    # The last one is for sites with an instance profile, which init does not write.
    assert shown["Statement"].pop()["Sid"] == "OnlyWithAnInstanceProfile"
    assert least_privileges("lab") == shown
    assert "arn:aws-cn:ec2" in json.dumps(least_privileges("lab", partition_of("cn-north-1")))
    assert cluster_of_test("genomics-production-eu-west") in json.dumps(
        least_privileges("genomics-production-eu-west")
    )


# --- on moto ----------------------------------------------------------------------------------------------


@pytest.fixture
def moto() -> Iterator[object]:
    pytest.importorskip("moto", reason="EC2 is tried on moto, of the extra `test`")
    from tests.cloud.ec2.moto_front import MotoFront  # noqa: PLC0415

    front = MotoFront()
    yield front
    front.close()


def test_an_account_on_ec2_gets_a_site_that_passes_check(
    moto: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.ec2.moto_front import IMAGE, REGION, SECRETS, MotoFront  # noqa: PLC0415

    assert isinstance(moto, MotoFront)
    [(key, secret)] = SECRETS.items()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    file = tmp_path / "site.ini"
    asked = ["init", "--provider", "ec2", "--region", REGION, "--endpoint", moto.url, "--image", IMAGE]
    assert main.main([*asked, "--output", str(file)]) == 0
    told = capsys.readouterr().out
    assert "authorize-security-group-ingress" in told
    site = load_site(file)
    vpcs = {subnet.vpc_id for zone in moto.backend.subnets.values() for subnet in zone.values()}
    assert f"--vpc-id {vpcs.pop()}" in told
    assert {zone for zone, _ in site.cloud.subnets} == {f"{REGION}{letter}" for letter in "abcdef"}
    assert [it.cores for it in site.node_types] == [2, 16]
    assert all("g" not in it.size.partition(".")[0][1:] for it in site.node_types), "the image cannot boot on Arm"
    assert all(it.price_per_hour > 0 for it in site.node_types)
    assert main.main(["check", "--config", str(file)]) == 0
    assert json.loads((tmp_path / "site.policy.json").read_text(encoding="utf-8"))["Version"] == "2012-10-17"
    assert moto.instances() == {}, "nothing is created"


def test_an_image_that_the_region_lacks_is_named(
    moto: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.ec2.moto_front import REGION, SECRETS, MotoFront  # noqa: PLC0415

    assert isinstance(moto, MotoFront)
    [(key, secret)] = SECRETS.items()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    asked = [
        "init",
        "--provider",
        "ec2",
        "--region",
        REGION,
        "--endpoint",
        moto.url,
        "--image",
        "ami-0123456789abcdef0",
    ]
    assert main.main([*asked, "--output", str(tmp_path / "site.ini")]) == EXIT_FAILED
    assert "ami-0123456789abcdef0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_keys_that_ec2_refuses_are_named(
    moto: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.ec2.moto_front import MotoFront  # noqa: PLC0415

    assert isinstance(moto, MotoFront)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    asked = ["init", "--provider", "ec2", "--region", "us-east-1", "--endpoint", moto.url]
    assert main.main([*asked, "--output", str(tmp_path / "site.ini")]) == EXIT_FAILED
    assert "SignatureDoesNotMatch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- on a real Nova ---------------------------------------------------------------------------------------


def test_a_project_on_openstack_gets_a_site_that_passes_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cloud.openstack.nova.process import PASSWORD, shared_nova  # noqa: PLC0415

    nova = shared_nova()
    for name, value in (
        ("OS_AUTH_URL", nova.url),
        ("OS_USERNAME", "demo"),
        ("OS_PASSWORD", PASSWORD),
        ("OS_PROJECT_NAME", "demo"),
    ):
        monkeypatch.setenv(name, value)
    file = tmp_path / "site.ini"
    asked = ["init", "--provider", "openstack", "--output", str(file)]
    assert main.main(asked) == EXIT_FAILED, "there are two regions"
    assert "RegionOne, RegionTwo" in capsys.readouterr().err
    assert main.main([*asked, "--region", "RegionOne"]) == 0
    text = file.read_text(encoding="utf-8")
    assert PASSWORD not in text
    site = load_site(file)
    assert site.secrets["password"] == PASSWORD
    assert {it.size for it in site.node_types} <= {
        it["name"] for it in nova.administer("GET", "/flavors")["flavors"]
    }
    assert "openstack security group rule create flux-lab" in capsys.readouterr().out
    assert site.cloud.security_groups == ("flux-lab",), "of the project's groups, the one that init's commands make"
    assert "# The project's other security groups: default, web" in text
    assert main.main(["check", "--config", str(file)]) == 0


def test_the_gpus_of_a_flavor_are_counted_or_left_to_a_person(tmp_path: Path) -> None:
    from nodemanager.cloud.openstack.account import survey_project  # noqa: PLC0415
    from nodemanager.cloud.openstack.driver import Login as NovaLogin  # noqa: PLC0415
    from nodemanager.cloud.openstack.driver import NovaDriver  # noqa: PLC0415
    from tests.cloud.openstack.nova.process import PASSWORD, shared_nova  # noqa: PLC0415

    nova = shared_nova()
    specs = ({"resources:VGPU": "2"}, {"pci_passthrough:alias": "a100:1"})
    names = ("test.vgpu", "test.alias")
    for name, spec in zip(names, specs, strict=True):
        hardware = {"vcpus": 8, "ram": 32768, "disk": 1}
        nova.administer("POST", "/flavors", {"flavor": {"id": name, "name": name, **hardware}})
        nova.administer("POST", f"/flavors/{name}/os-extra_specs", {"extra_specs": spec})
    try:
        account = NovaLogin(nova.url, "demo", PASSWORD, project="demo", region="RegionOne")
        survey = survey_project(NovaDriver(account, 20.0), "RegionOne", SystemClock())
    finally:
        for name in names:
            nova.administer("DELETE", f"/flavors/{name}")
    vgpu, alias = (next(it for it in survey.sizes if it.name == name) for name in names)
    assert (vgpu.gpus, vgpu.note) == (2, "")
    assert (alias.gpus, alias.note) == (0, "pci_passthrough:alias = a100:1")
    choices = SiteChoices("openstack", "lab", "10.0.0.1", OfferedImage("i", ""), (alias,), {})
    text = site_text(survey, choices)
    assert "# pci_passthrough:alias = a100:1. If these are GPUs, write gpus = and their number." in text
    assert "#price_per_hour =" in text, "what a GPU is worth is not guessed"
