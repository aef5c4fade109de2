"""What the program must know of a provider besides how to call it. Each declares it in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.config.text.settings import CloudSettings, NodeSettings
from nodemanager.core.slots import TypeName

Nodes = Mapping[TypeName, NodeSettings]

# What EC2 lets an account create in a region by default. Source: "Request throttling for the Amazon EC2 API".
EC2_INSTANCES_PER_S = 2.0


class SizeHardware(NamedTuple):
    """What a size has. ``cores``: as the provider counts them, which may be hardware threads."""

    cores: int
    gpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class SignedDocument:
    """Nodes prove which instance they are by a document that EC2 signs. ``certificate``: as PEM."""

    certificate: str


@dataclass(frozen=True, slots=True)
class GoogleToken:
    """Nodes prove which instance they are by a token that Google signs for their service account."""

    project: str
    service_account: str


NodeProof = SignedDocument | GoogleToken


class ProviderRules:
    """One provider. The values here are those of a provider that has nothing special."""

    name: str  # as in PROVIDERS
    title = ""  # as faults and comments name it
    settings: type[CloudSettings] = CloudSettings  # of ``[Cloud]``, with keys that only this provider has
    meanings: Mapping[str, str] = MappingProxyType({})  # of those keys, for doc/settings.md
    poweroff_effect: str  # of a node that powers itself off, as ``check`` notes it

    has_account = False  # two clouds with the same account and region are one
    has_groups = False  # placement groups
    destroys_many = False  # by one call
    is_simulated = False
    is_this_machine = False  # nodes are processes beside the manager
    own_hosts = False  # nodes are the site's own hosts: there is no account, and no price list
    gives_names_only = False  # of its nodes, and no addresses
    shares_machines = False  # a node has a part of a machine, whose size says nothing about that part
    shares_session = False  # other jobs' processes are in the session of a node's script
    ends_with_script = False  # the end of a node's script ends the node
    is_alone = False  # its nodes are parts of another instance, which is the only place that a site can have
    is_stack = False  # only the last node can leave
    configures_nodes = ""  # who gives nodes their configuration, if the manager does not
    notice = ""  # the part of flux-node-join that reads when a node will be reclaimed, and proves who it is
    proof_key = ""  # the key of ``[Cloud]`` without which nodes cannot prove which instance they are
    batch_creates_per_s = EC2_INSTANCES_PER_S  # nodes, if one call creates several
    join_defaults: Mapping[str, object] = MappingProxyType({})  # of ``[Join]``

    def faults(self, document: Document, cloud: CloudSettings, nodes: Nodes) -> Iterable[Fault]:
        """Find what the provider would refuse later, at a create."""
        del document, cloud, nodes
        return ()

    def regions(self, cloud: CloudSettings, zones: Sequence[str]) -> tuple[str, ...]:
        """Return the regions of a node type."""
        del zones
        return (cloud.region,)

    def node_proof(self, cloud: CloudSettings) -> NodeProof | None:
        """Return how a node proves to the join service which instance it is; None if it cannot.

        Raises ``OSError`` if the site names a file that cannot be read.
        """
        del cloud
        return None

    def listed_prices(self, size: str, memory_bytes: int, listed: Mapping[str, Any]) -> Mapping[str, object]:
        """Return the prices of a size by region in libcloud's list. It has none for some providers."""
        del size, memory_bytes, listed
        return {}

    def known_sizes(self) -> Mapping[str, SizeHardware]:
        """Return the sizes that are known without asking the provider: then a site needs no list of its own."""
        return {}


def provider_named(name: str) -> ProviderRules:
    """Return a provider of :data:`PROVIDERS`."""
    found: ProviderRules = import_module(PROVIDERS[name]).PROVIDER
    return found


def rules_of(cloud: CloudSettings) -> ProviderRules:
    """Return the provider of a cloud."""
    return provider_named(cloud.provider)


def zones_of(settings: CloudSettings | NodeSettings) -> tuple[str, ...]:
    """List the zones of a section in order, from ``zones`` or from ``subnets``."""
    return settings.zones or tuple(zone for zone, _ in settings.subnets)
