"""``init --provider azure``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from nodemanager.cli.new_site.account import (
    CALL_TIMEOUT_S,
    NODE_PORTS,
    Account,
    choose_region,
    describe_price_list,
)
from nodemanager.cli.new_site.questions import Questions, Unanswered
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, Survey

_VARIABLES = {
    name: f"AZURE_{name.upper()}" for name in ("tenant_id", "subscription_id", "client_id", "client_secret")
}
_SSH_KEYS = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")


class AzureAccount(Account):
    """Keys come from the environment, by the names that Azure's own libraries read."""

    keys_remedy = "Correct the AZURE_ variables, and give the application the role Reader on the subscription"
    network_intro = "Azure allows that within a virtual network. If rules of your own forbid it, rules for rank 0:"

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        if missing := [name for name in _VARIABLES.values() if not environment.get(name)]:
            raise Unanswered(f"{', '.join(missing)} must be set: the application that acts in the subscription")
        self._region = choose_region(chosen.region, environment, ("AZURE_LOCATION",), "westeurope", questions)
        group = chosen.resource_group or environment.get("AZURE_RESOURCE_GROUP")
        self._group = questions.choose("resource group", "--resource-group", group, [])
        self._ssh_key = _read_ssh_key(chosen.ssh_key)
        self.price_source = describe_price_list("azure")
        compute = f"/subscriptions/{environment[_VARIABLES['subscription_id']]}/resourceGroups/{self._group}"
        self.missing_image = OfferedImage(f"{compute}/providers/Microsoft.Compute/images/flux-node", "")

    def survey(self) -> Survey:
        from nodemanager.cloud.azure.driver import AzureDriver  # noqa: PLC0415
        from nodemanager.cloud.azure.survey import survey_region  # noqa: PLC0415
        from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415

        driver = AzureDriver(
            **{key: self._environment[name] for key, name in _VARIABLES.items()},
            resource_group=self._group,
            timeout_s=CALL_TIMEOUT_S,
            endpoint=self._endpoint,
        )
        return survey_region(driver, self._region, SystemClock())

    def credentials(self) -> dict[str, str]:
        given = {key: self._environment[name] for key, name in _VARIABLES.items()}
        return given | {"client_secret": f"${{{_VARIABLES['client_secret']}}}"}

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        return {
            "region": self._region,
            "resource_group": self._group,
            "image": image.id,
            "network": network.id or "NETWORK/SUBNET",
            "ssh_public_key": self._ssh_key,
        }

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        group = f"--resource-group {self._group}"
        ports = " ".join(str(port) for port in NODE_PORTS)
        yield f"az network nsg create {group} --name flux-{cluster} --location {self._region}"
        yield (
            f"az network nsg rule create {group} --nsg-name flux-{cluster} --name flux --priority 100 "
            f"--protocol Tcp --destination-port-ranges {ports} "
            f"--source-address-prefixes {network.addresses or 'ADDRESSES'}"
        )
        yield f"az network nic update {group} --name INTERFACE_OF_RANK_0 --network-security-group flux-{cluster}"


def _read_ssh_key(given: str | None) -> str:
    """The public key of a file: the one given, or the first usual one of this user."""
    files = [Path(given)] if given else [Path.home() / ".ssh" / name for name in _SSH_KEYS]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            if given:
                raise Unanswered(f"--ssh-key {file}: {error}") from error
            continue
        if text.startswith(("ssh-", "ecdsa-")) and "\n" not in text:
            return text
        if given:
            raise Unanswered(f"--ssh-key {file}: this is not one public key of ssh")
    raise Unanswered("give --ssh-key FILE, a public key: Azure creates no Linux machine without a way to log in")
