"""A provider as somebody else would add it: everything that the program needs of it is in one place."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated

from nodemanager.cloud.common.findings import Finding, Verdict
from nodemanager.cloud.common.provider import CloudFactory, CloudProvider
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.common.survey import Account, OfferedImage, OfferedNetwork, OfferedSize, Questions, Survey
from nodemanager.cloud.local.port import LocalCloud
from nodemanager.config import key_faults
from nodemanager.config.provider import Nodes
from nodemanager.config.site import Site
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings, ValueFormat
from nodemanager.core.ports import Clock


class ToySettings(CloudSettings):
    """``[Cloud]``, with a key of its own."""

    shelf: Annotated[str, ValueFormat("a word", str)] = ""


class ToyAccount(Account):
    """What the toy offers."""

    keys_remedy = "Wind it up"
    missing_image = OfferedImage("none", "")

    def survey(self, clock: Clock) -> Survey:
        del clock
        sizes = (OfferedSize("brick", 4, 0, 8 * 2**30, None),)
        return Survey("box", (), (), (OfferedImage("wood", "wood"),), (OfferedNetwork("floor"),), sizes)

    def cloud_keys(self, image: OfferedImage, network: OfferedNetwork) -> dict[str, str]:
        return {"shelf": "top", "image": image.id, "network": network.id}

    def network_commands(self, cluster: str, network: OfferedNetwork) -> Iterator[str]:
        yield f"open {network.id} to {cluster}"


class Toy(CloudProvider):
    """Nodes are processes, as those of the local cloud."""

    name = "toy"
    title = "Toy"
    settings = ToySettings
    meanings = MappingProxyType({"shelf": "Where it stands."})
    poweroff_effect = "a toy that is switched off costs nothing"
    has_prices = False
    init_options = (("--shelf", {"metavar": "NAME", "help": "toy: where it stands"}),)
    billing = ("billing = hourly",)

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterator[Fault]:
        yield from key_faults.missing_cloud_keys(document, cloud, {"shelf": "where it stands"})
        yield from key_faults.unsupported_keys(document, cloud, nodes, ("region",), self.title)

    def ports(self, site: Site, settings: PortSettings) -> CloudFactory:
        return lambda: LocalCloud(site.cloud_dir, settings)

    def warnings(self, site: Site, environment: Mapping[str, str]) -> Iterator[str]:
        del environment
        yield f"[{site.cloud_section.section}] the toy is on loan."

    def check(self, site: Site, settings: PortSettings) -> Iterator[Finding]:
        for node_type in site.node_types:
            yield Finding(f"nodes of {node_type.name}", Verdict.OK, f"{settings.cluster} may have them")

    def account(self, chosen: argparse.Namespace, questions: Questions, environment: Mapping[str, str]) -> Account:
        del chosen, questions, environment
        return ToyAccount()


PROVIDER = Toy()
