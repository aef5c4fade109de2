"""Surveys the account that a person's environment gives keys for, one class for each provider."""

from __future__ import annotations

import argparse
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodemanager.cli.new_site.questions import Questions, Unanswered
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, Survey
from nodemanager.config.price_list import read_bundled_table

CALL_TIMEOUT_S = 60.0
NODE_PORTS = (8050, 8443)  # rank 0 and the join service, unless the site says otherwise


class Account(ABC):
    """One provider's part of ``init --provider``. Making it may ask for what the survey needs."""

    price_source = ""

    @abstractmethod
    def survey(self) -> Survey:
        """Read what the account offers. Raises :class:`CloudError`."""

    @abstractmethod
    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        """The keys of ``[Cloud]`` after ``provider``."""

    def credentials(self) -> dict[str, str]:
        """The keys of ``[Cloud Credentials]``. A secret is the name of its environment variable."""
        return {}

    def write_beside(self, site_file: Path, cluster: str) -> Iterator[str]:
        """Write what belongs to the site beside its file, and say what was written."""
        del site_file, cluster
        yield from ()

    @abstractmethod
    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        """The provider's commands for what only its administrator may make."""


class Ec2Account(Account):
    """Keys come from the environment, or from the role of this instance. The manager looks there too."""

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        usual = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        given = chosen.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        if given is None and not questions.can_ask:
            raise Unanswered("give --region, such as eu-central-1, or set AWS_REGION")
        self._region = questions.choose("region", "--region", given, [(usual, "")])
        table = read_bundled_table("ec2")
        self._prices = table
        self.price_source = f"{table.source} of {table.updated}"

    def survey(self) -> Survey:
        # libcloud is slow to import.
        from nodemanager.cloud.ec2.credentials import key_source  # noqa: PLC0415
        from nodemanager.cloud.ec2.driver import Ec2Driver, endpoint_of  # noqa: PLC0415
        from nodemanager.cloud.ec2.survey import survey_region  # noqa: PLC0415
        from nodemanager.service.service import SystemClock  # noqa: PLC0415

        clock = SystemClock()
        keys = key_source({}, self._environment, clock)
        driver = Ec2Driver(endpoint_of(self._region, self._endpoint), keys, timeout_s=CALL_TIMEOUT_S)
        return survey_region(driver, self._region, self._prices, clock)

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        keys = {"region": self._region}
        if self._endpoint:
            keys["endpoint"] = self._endpoint
        keys["image"] = image.id
        if network.subnets:
            keys["subnets"] = ", ".join(f"{zone}:{subnet}" for zone, subnet in network.subnets)
        if network.security_group:
            keys["security_groups"] = network.security_group
        return keys

    def write_beside(self, site_file: Path, cluster: str) -> Iterator[str]:
        from nodemanager.cloud.ec2.policy import least_privileges, partition_of  # noqa: PLC0415

        policy = site_file.with_suffix(".policy.json")
        with policy.open("x", encoding="utf-8") as file:
            json.dump(least_privileges(cluster, partition_of(self._region)), file, indent=2)
            file.write("\n")
        yield (
            f"Written: {policy}, the manager's least privileges. Give them to the role of the machine of rank 0:\n"
            f"  aws iam create-policy --policy-name flux-node-manager-{cluster} --policy-document file://{policy}"
        )

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        aws = f"aws ec2 --region {self._region}"
        group = "$group"
        yield (
            f"group=$({aws} create-security-group --group-name flux-{cluster} --vpc-id {network.id or 'VPC'} "
            f'--description "Flux {cluster}" --query GroupId --output text)'
        )
        for port in NODE_PORTS:
            yield (
                f"{aws} authorize-security-group-ingress --group-id {group} --protocol tcp --port {port} "
                f"--source-group {group}"
            )


class OpenStackAccount(Account):
    """Keys come from the environment, as the openrc file of a project sets them."""

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        del questions
        self._environment = environment
        self._region = chosen.region or environment.get("OS_REGION_NAME", "")
        needed = ("OS_AUTH_URL", *self._credential_variables().values())
        missing = [name for name in needed if not environment.get(name)]
        if missing:
            raise Unanswered(f"{', '.join(missing)} must be set: source the openrc file of your project first")

    def _credential_variables(self) -> dict[str, str]:
        """The variable of each key of ``[Cloud Credentials]``."""
        if self._environment.get("OS_APPLICATION_CREDENTIAL_ID"):
            names = ("application_credential_id", "application_credential_secret")
            return {name: f"OS_{name.upper()}" for name in names}
        return {"username": "OS_USERNAME", "password": "OS_PASSWORD", "project": "OS_PROJECT_NAME"}

    def credentials(self) -> dict[str, str]:
        environment = self._environment
        keys = {
            key: f"${{{name}}}" if key in {"password", "application_credential_secret"} else environment[name]
            for key, name in self._credential_variables().items()
        }
        if "password" in keys:
            domains = {"user_domain": "OS_USER_DOMAIN_NAME", "project_domain_id": "OS_PROJECT_DOMAIN_ID"}
            keys |= {key: environment[name] for key, name in domains.items() if environment.get(name)}
        return keys

    def survey(self) -> Survey:
        from nodemanager.cloud.openstack.driver import NovaDriver, OpenStackAccount  # noqa: PLC0415
        from nodemanager.cloud.openstack.survey import survey_project  # noqa: PLC0415
        from nodemanager.service.service import SystemClock  # noqa: PLC0415

        environment = self._environment
        values = {key: environment[name] for key, name in self._credential_variables().items()}
        application_credential = "application_credential_id" in values
        account = OpenStackAccount(
            auth_url=environment["OS_AUTH_URL"],
            user=values["application_credential_id" if application_credential else "username"],
            secret=values["application_credential_secret" if application_credential else "password"],
            application_credential=application_credential,
            project=values.get("project", ""),
            user_domain=environment.get("OS_USER_DOMAIN_NAME", "Default"),
            project_domain_id=environment.get("OS_PROJECT_DOMAIN_ID", "default"),
            region=self._region,
        )
        return survey_project(NovaDriver(account, CALL_TIMEOUT_S), self._region, SystemClock())

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        keys = {"auth_url": self._environment["OS_AUTH_URL"]}
        if self._region:
            keys["region"] = self._region
        return keys | {"image": image.id, "network": network.id, "security_groups": network.security_group}

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        del network
        group = f"flux-{cluster}"
        yield f"openstack security group create {group}"
        for port in NODE_PORTS:
            yield (
                f"openstack security group rule create {group} --protocol tcp --dst-port {port} "
                f"--remote-group {group}"
            )


ACCOUNTS: Mapping[str, type[Ec2Account | OpenStackAccount]] = {
    "ec2": Ec2Account,
    "openstack": OpenStackAccount,
}
