"""``init --provider gce``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nodemanager.cli.new_site.account import (
    CALL_TIMEOUT_S,
    NODE_PORTS,
    Account,
    choose_region,
    describe_price_list,
)
from nodemanager.cli.new_site.questions import Questions, Unanswered
from nodemanager.cloud.common.survey import OfferedImage, OfferedNetwork, Survey

_KEY_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"


class GceAccount(Account):
    """The key is the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names, or the role of this instance."""

    keys_remedy = (
        "Set GOOGLE_APPLICATION_CREDENTIALS to the JSON key of a service account. Or run this on an instance that "
        "has a service account"
    )
    network_intro = "A firewall rule:"

    def __init__(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._endpoint = chosen.endpoint or ""
        self._key_file = environment.get(_KEY_VARIABLE, "")
        self._key = _read_key(self._key_file) if self._key_file else {}
        project = chosen.project or environment.get("GOOGLE_CLOUD_PROJECT") or self._key.get("project_id")
        if not project and not questions.can_ask:
            raise Unanswered("give --project, or set GOOGLE_CLOUD_PROJECT")
        self._project = questions.choose("project", "--project", project, [])
        variables = ("CLOUDSDK_COMPUTE_REGION",)
        self._region = choose_region(chosen.region, environment, variables, "europe-west3", questions)
        self.price_source = describe_price_list("gce")
        self.missing_image = OfferedImage(f"projects/{self._project}/global/images/flux-node", "")
        self._zones: tuple[str, ...] = ()

    def survey(self) -> Survey:
        from nodemanager.cloud.gce.credentials import CachedTokens  # noqa: PLC0415
        from nodemanager.cloud.gce.driver import GceDriver  # noqa: PLC0415
        from nodemanager.cloud.gce.from_site import token_fetcher  # noqa: PLC0415
        from nodemanager.cloud.gce.survey import survey_region  # noqa: PLC0415
        from nodemanager.service.assembly.ports import SystemClock  # noqa: PLC0415

        clock = SystemClock()
        secrets = {}
        if self._key:
            key = Path(self._key_file).read_text(encoding="utf-8")
            secrets = {"service_account": self._key["client_email"], "key": key}
        tokens = CachedTokens(token_fetcher(secrets, self._environment, CALL_TIMEOUT_S), clock)
        driver = GceDriver(self._project, tokens, timeout_s=CALL_TIMEOUT_S, endpoint=self._endpoint)
        survey = survey_region(driver, self._project, self._region, clock)
        self._zones = survey.zones
        return survey

    def credentials(self) -> dict[str, str]:
        if not self._key:
            return {}
        file = str(Path(self._key_file).absolute())
        return {"service_account": self._key["client_email"], "key_file": file}

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        zones = ", ".join(self._zones)
        return {"project": self._project, "image": image.id, "network": network.id, "zones": zones}

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        ports = ",".join(f"tcp:{port}" for port in NODE_PORTS)
        yield (
            f"gcloud compute firewall-rules create flux-{cluster} --project {self._project} "
            f"--network {network.name or 'NETWORK'} --direction INGRESS --allow {ports} "
            f"--source-ranges {network.addresses or 'ADDRESSES'}"
        )


def _read_key(file: str) -> dict[str, Any]:
    try:
        key = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unanswered(f"{_KEY_VARIABLE} names {file}, which cannot be read: {error}") from error
    if not isinstance(key, dict) or not {"client_email", "private_key"} <= key.keys():
        raise Unanswered(f"{_KEY_VARIABLE} names {file}, which is not the JSON key of a service account")
    return key
