"""``init --provider ec2``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nodemanager.cli.new_site.account import (
    CALL_TIMEOUT_S,
    NODE_PORTS,
    Account,
    choose_region,
    describe_price_list,
)
from nodemanager.cli.new_site.questions import Questions
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, Survey
from nodemanager.config.price_list import read_bundled_table

if TYPE_CHECKING:
    from nodemanager.cloud.ec2.driver import Ec2Driver


class Ec2Account(Account):
    """Keys come from the environment, or from the role of this instance. The manager looks there too."""

    keys_remedy = (
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN for temporary keys. Or run this on "
        "an instance that has a role"
    )
    missing_image = OfferedImage("ami-00000000", "", architecture="x86_64")

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        variables = ("AWS_REGION", "AWS_DEFAULT_REGION")
        self._region = choose_region(chosen.region, environment, variables, "us-east-1", questions)
        self.price_source = describe_price_list("ec2")

    def survey(self) -> Survey:
        from nodemanager.cloud.ec2.survey import survey_region  # noqa: PLC0415
        from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415

        return survey_region(self._driver(), self._region, read_bundled_table("ec2"), SystemClock())

    def find_image(self, image_id: str) -> OfferedImage | None:
        from nodemanager.cloud.ec2.survey import find_image  # noqa: PLC0415
        from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415

        return find_image(self._driver(), image_id, SystemClock())

    def _driver(self) -> Ec2Driver:
        # libcloud is slow to import.
        from nodemanager.cloud.ec2.credentials import key_source  # noqa: PLC0415
        from nodemanager.cloud.ec2.driver import Ec2Driver, endpoint_of  # noqa: PLC0415
        from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415

        keys = key_source({}, self._environment, SystemClock())
        return Ec2Driver(endpoint_of(self._region, self._endpoint), keys, timeout_s=CALL_TIMEOUT_S)

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
