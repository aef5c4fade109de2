"""``provider = gce``: instances of a project on Google Compute Engine."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from nodemanager.cloud.common.findings import Finding
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import Account, Questions
from nodemanager.config import key_faults
from nodemanager.config.provider import GoogleToken, NodeProof, Nodes
from nodemanager.config.site import Site
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings

_UNSUPPORTED = (
    "region", "security_groups", "key_name", "auth_url", "microversion", "config_drive", "resource_group",
    "ssh_public_key", "identity_certificate",
)  # fmt: skip
_ACCOUNT = re.compile(r"[a-z0-9.-]+@[a-z0-9.-]+", re.ASCII)
_IMAGE = re.compile(r"(projects/[a-z0-9.:-]+/)?global/images/(family/)?[a-z0-9-]+", re.ASCII)
_NETWORK = re.compile(
    r"(projects/[a-z0-9.:-]+/)?(global/networks|regions/[a-z0-9-]+/subnetworks)/[a-z0-9-]+", re.ASCII
)
_CUSTOM = re.compile(r"((?P<family>[a-z0-9]+)-)?custom-(?P<cpus>[0-9]+)-(?P<mib>[0-9]+)", re.ASCII)
_READY_MADE = re.compile(r"(?P<family>[a-z0-9]+)-[a-z]+-(?P<cpus>[0-9]+)", re.ASCII)


class Gce(CloudProvider):
    """Instances of a project on Google Compute Engine."""

    name = "gce"
    title = "Google Compute Engine"
    poweroff_effect = "a node that powers itself off still costs money for its disk until a manager destroys it"
    has_account = True
    has_groups = True
    notice = "gce"
    proof_key = "node_service_account"
    # Google counts requests: as many instances a second as requests for one may be made. Source: Google's
    # "Troubleshooting bulk VM creation".
    batch_creates_per_s = 20.0
    billing = (
        "# Google bills by the second, with a minimum of one minute.",
        "billing = per-second",
        "billing_minimum = 1m",
    )
    init_options = (("--project", {"metavar": "ID", "help": "gce: the project"}),)

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
        """Find what the API would refuse later, at a create."""
        yield from key_faults.missing_cloud_keys(document, cloud, {"project": "the project's id"})
        needed = {
            "image": 'an image such as "projects/debian-cloud/global/images/family/debian-12"',
            "network": 'a network such as "global/networks/default" or "regions/REGION/subnetworks/NAME"',
            "zones": 'a zone such as "europe-west3-a"; several are tried in order',
        }
        yield from key_faults.missing_node_keys(document, cloud, nodes, needed)
        yield from key_faults.unsupported_keys(document, cloud, nodes, _UNSUPPORTED, self.title)
        yield from key_faults.zero_prices(document, nodes)
        for section, settings in key_faults.provider_sections(cloud, nodes):
            if settings.image and not _IMAGE.fullmatch(settings.image):
                yield document.fault(section, "image", f"{needed['image']} is needed")
            if settings.network and not _NETWORK.fullmatch(settings.network):
                yield document.fault(section, "network", f"{needed['network']} is needed")
        if cloud.node_service_account and not _ACCOUNT.fullmatch(cloud.node_service_account):
            needed_here = 'a mail address such as "nodes@PROJECT.iam.gserviceaccount.com" is needed'
            yield document.fault("Cloud", "node_service_account", needed_here)
        # Without credentials, the manager uses those of the instance on which it runs.
        yield from key_faults.credential_faults(document, ((), ("service_account", "key")))
        entries = {key.removesuffix("_file") for key in document.section("Cloud Credentials").entries}
        if len(entries & {"service_account", "key"}) == 1:
            yield document.fault(
                "Cloud Credentials", "", "service_account and key must be given together, or neither"
            )

    def regions(self, cloud: CloudSettings, zones: Sequence[str]) -> tuple[str, ...]:
        """Return the regions of the zones, such as us-central1 of us-central1-a."""
        del cloud
        return tuple(dict.fromkeys(zone.rpartition("-")[0] for zone in zones))

    def node_proof(self, cloud: CloudSettings) -> NodeProof | None:
        account = cloud.node_service_account
        return GoogleToken(cloud.project, account) if account else None

    def listed_prices(self, size: str, memory_bytes: int, listed: Mapping[str, Any]) -> Mapping[str, object]:
        return _gce_prices(size, memory_bytes, listed["gce_instances"])

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        from nodemanager.cloud.gce.port import ports_of  # noqa: PLC0415

        return ports_of(site, settings)

    def check(self, site: Site, settings: PortSettings) -> Iterator[Finding]:
        from nodemanager.cloud.gce.account import check_nodes  # noqa: PLC0415

        return check_nodes(site, settings.clock)

    def clock_url(self, site: Site) -> str:
        del site
        return "https://compute.googleapis.com/"

    def account(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> Account:
        from nodemanager.cloud.gce.account import GceAccount  # noqa: PLC0415

        return GceAccount(chosen, questions, environment)


PROVIDER = Gce()


def _gce_prices(size: str, memory_bytes: int, families: Mapping[str, Any]) -> Mapping[str, Decimal]:
    """Add up the price of a GCE machine type such as n2-standard-4 by region, from its virtual CPUs and memory."""
    parts = _gce_parts(size, memory_bytes)
    if parts is None:
        return {}
    family, cpus, gib = parts
    if not {"cpu", "ram"} <= families.get(family, {}).keys():
        return {}
    cpu, ram = (families[family][part]["on_demand"] for part in ("cpu", "ram"))
    return {
        region: cpus * Decimal(str(cpu[region]["price"])) + gib * Decimal(str(ram[region]["price"]))
        for region in cpu.keys() & ram.keys()
    }


def _gce_parts(size: str, memory_bytes: int) -> tuple[str, int, Decimal] | None:
    """Parse a GCE machine type into its family, virtual CPUs and memory in GiB. None for other names.

    Custom types have prices of their own and contain their memory in MiB: n2-custom-4-8192, and for N1
    custom-4-4096.
    """
    if custom := _CUSTOM.fullmatch(size):
        return f"{custom['family'] or 'n1'}_custom", int(custom["cpus"]), Decimal(custom["mib"]) / 1024
    if ready := _READY_MADE.fullmatch(size):
        return ready["family"], int(ready["cpus"]), Decimal(memory_bytes) / 2**30
    return None
