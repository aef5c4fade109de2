"""``init --provider openstack``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from nodemanager.cli.new_site.account import CALL_TIMEOUT_S, DEFAULT_CLUSTER, NODE_PORTS, Account
from nodemanager.cli.new_site.questions import Questions, Unanswered
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, Survey

_DOMAINS = {"user_domain": "OS_USER_DOMAIN_NAME", "project_domain_id": "OS_PROJECT_DOMAIN_ID"}
_SECRETS = {"password", "application_credential_secret"}


class OpenStackAccount(Account):
    """Keys come from the environment, as the openrc file of a project sets them."""

    keys_remedy = "Correct the OS_ variables: source the openrc file of your project again"
    missing_image = OfferedImage("flux-node", "")

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        del questions
        self._cluster = chosen.cluster or DEFAULT_CLUSTER
        self._group = "default"
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
        variables = self._credential_variables()
        secrets = {key: f"${{{variables[key]}}}" for key in variables.keys() & _SECRETS}
        return self._values() | secrets

    def _values(self) -> dict[str, str]:
        """The keys of ``[Cloud Credentials]`` with their secrets."""
        values = {key: self._environment[name] for key, name in self._credential_variables().items()}
        if "password" in values:
            values |= {key: value for key, name in _DOMAINS.items() if (value := self._environment.get(name))}
        return values

    def survey(self) -> Survey:
        from nodemanager.cloud.openstack.driver import NovaDriver, OpenStackAccount  # noqa: PLC0415
        from nodemanager.cloud.openstack.survey import survey_project  # noqa: PLC0415
        from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415

        account = OpenStackAccount.from_credentials(self._environment["OS_AUTH_URL"], self._region, self._values())
        survey = survey_project(NovaDriver(account, CALL_TIMEOUT_S), self._region, SystemClock())
        ours = f"flux-{self._cluster}"
        if ours in survey.security_groups:
            self._group = ours
        return survey

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        keys = {"auth_url": self._environment["OS_AUTH_URL"]}
        if self._region:
            keys["region"] = self._region
        return keys | {"image": image.id, "network": network.id, "security_groups": self._group}

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        del network
        group = f"flux-{cluster}"
        yield f"openstack security group create {group}"
        for port in NODE_PORTS:
            yield (
                f"openstack security group rule create {group} --protocol tcp --dst-port {port} "
                f"--remote-group {group}"
            )
