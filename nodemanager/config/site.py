"""Load ``site.ini`` into a :class:`Site`, or report every fault of the file at once.

``text/settings.py`` defines each key. This module reads the sections, fills in defaults that depend on other keys,
and checks keys against each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

from pydantic import SecretStr, ValidationError

from nodemanager.config import clouds as several
from nodemanager.config.clouds import CloudSection
from nodemanager.config.fingerprints import with_fingerprints
from nodemanager.config.price_list import PriceTable
from nodemanager.config.providers import azure, common, ec2, gce, minicluster, openstack, static
from nodemanager.config.sizes import SizeExpander, read_price_list, regions_of, sizes_on_both_markets
from nodemanager.config.text import credentials
from nodemanager.config.text.flux_toml import (
    ConfigFile,
    FluxConfigError,
    read_promises,
    read_slot_types,
    with_promises,
)
from nodemanager.config.text.ini import Document, Fault, nearest_name, read_ini
from nodemanager.config.text.settings import (
    ENSEMBLE_NAME,
    ENSEMBLE_NAME_ALLOWED,
    HOST_NAME,
    HOST_NAME_ALLOWED,
    NAME,
    NAME_ALLOWED,
    NEVER,
    BudgetSettings,
    Burst,
    CloudSettings,
    DelegateTo,
    DisruptionSettings,
    EnsembleSettings,
    FluxSettings,
    JoinMethod,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    Mode,
    NodeSettings,
    NotifySettings,
    PeerSettings,
    PolicySettings,
    Provider,
    ScheduleSettings,
    SectionSettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    WebSettings,
    allowed_keys,
    bracketed,
    is_ipv6_address,
    is_loopback,
)
from nodemanager.core.slots import (
    DEFAULT_CLOUD,
    CloudName,
    Market,
    Misfit,
    NodePlacement,
    NodeType,
    Size,
    SlotName,
    TypeName,
)

__all__ = [
    "Burst",
    "ConfigError",
    "DelegateTo",
    "Fault",
    "JoinMethod",
    "Mode",
    "Provider",
    "Site",
    "load_site",
    "name_file",
    "site_warnings",
    "uuid_file",
]

_NODE = "Node "
_PEER = "Peer "
_ENSEMBLE = "Ensemble "
_SCHEDULE = "Schedule "
ANY_PEER = "any"  # --dependency=delegate:any
_LOCAL = "local://"  # followed by a socket's path, which may be relative to the site's folder
# The sections of which there may be several: how they may be named.
_NAMED = {
    _NODE: (NAME, NAME_ALLOWED),
    several.NAMED: (ENSEMBLE_NAME, ENSEMBLE_NAME_ALLOWED),
    _PEER: (HOST_NAME, HOST_NAME_ALLOWED),
    _ENSEMBLE: (ENSEMBLE_NAME, ENSEMBLE_NAME_ALLOWED),
    _SCHEDULE: (NAME, NAME_ALLOWED),
}
_SECTIONS = (
    "Site",
    "Flux",
    "Cloud",
    credentials.SECTION,
    "Limits",
    "Timing",
    "Policy",
    "Join",
    "Budget",
    "Disruption",
    "Web",
    "Journal",
    "Notify",
    "Simulation",
)

# A local node shares this machine with others and with the manager: it may touch no files or processes of theirs.
_LOCAL_NODE: Mapping[str, object] = MappingProxyType(
    {
        "node_dir": Path("flux-node-join"),
        "hosts_file": Path("hosts"),
        "poweroff": 'kill -KILL "$FLUX_NODE_JOIN_PARENT"',
        "systemd": False,
    }
)

# A host of the site's own may be up for other reasons: it leaves the instance, and stays up.
_LEAVE_HOST_UP = "systemctl disable --now flux-node-join.service"

# A node has a part of a machine, whose size says nothing about that part.
_SHARES_MACHINES = (Provider.LOCAL, Provider.MINICLUSTER)
_NAMES_ONLY = (Provider.FLUX, Provider.STATIC)  # of nodes, and no addresses
_HAS_GROUPS = (Provider.EC2, Provider.OPENSTACK, Provider.GCE, Provider.AZURE, Provider.SIMULATED)  # of nodes

_S = TypeVar("_S", bound=SectionSettings)


# What EC2 lets an account create in a region by default. Source: "Request throttling for the Amazon EC2 API".
EC2_INSTANCES_PER_S = 2.0
EC2_INSTANCES_AT_ONCE = 1000
EC2_CREATE_CALLS_PER_S = 2.0
EC2_CREATE_CALLS_AT_ONCE = 5.0
# Requests that create, of which 10 bulk inserts at once. Source: Google's "Troubleshooting bulk VM creation".
GCE_INSTANCES_PER_S = 20.0


class ConfigError(Exception):
    """The site cannot be used. ``faults`` lists everything that is wrong, in the order of the lines."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Site:
    """One cluster's settings, complete and consistent. Paths are absolute."""

    path: Path
    cluster: str
    cluster_uuid: str  # "" until ``init`` creates one
    state_dir: Path
    mode: Mode
    flux: FluxSettings
    cloud: CloudSettings
    credentials: Mapping[str, SecretStr]
    limits: LimitsSettings
    timing: TimingSettings
    policy: PolicySettings
    join: JoinSettings
    budget: BudgetSettings
    disruption: DisruptionSettings
    web: WebSettings
    journal: JournalSettings
    notify: NotifySettings
    simulation: SimulationSettings
    node_types: tuple[NodeType, ...]
    networks: Mapping[TypeName, str]  # of each type; "" leaves the choice to the provider
    nodes: Mapping[TypeName, NodeSettings]  # as written, for what a provider needs in addition to a NodeType
    peers: Mapping[str, PeerSettings]  # other instances that jobs may run in
    ensembles: Mapping[str, EnsembleSettings]  # that the service runs
    schedules: Mapping[str, ScheduleSettings]  # in the order of the file
    cloud_name: CloudName = DEFAULT_CLOUD
    # Of several clouds, the site as if each were the only one; then the fields above describe the first. {}: one.
    parts: Mapping[CloudName, Site] = field(default_factory=dict)

    @property
    def by_cloud(self) -> Mapping[CloudName, Site]:
        """The site of each cloud, with only that cloud's settings, credentials and node types."""
        if not self.parts:
            return {self.cloud_name: self}
        return {name: replace(part, cluster_uuid=self.cluster_uuid) for name, part in self.parts.items()}

    @property
    def cloud_dir(self) -> Path:
        """The folder of the nodes of a local cloud."""
        return self.state_dir / ("cloud" if self.cloud_name == DEFAULT_CLOUD else f"cloud-{self.cloud_name}")

    @property
    def slots(self) -> tuple[SlotName, ...]:
        """Every slot, in the order of the ranks that ``init`` gives them."""
        return tuple(slot for node_type in self.node_types for slot in node_type.slots)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The credentials in plain text, for the provider only. Never show, log or store them."""
        return {key: secret.get_secret_value() for key, secret in self.credentials.items()}

    @property
    def needs_groups(self) -> bool:
        """Whether nodes of any type are created in placement groups."""
        return any(node_type.placement is not NodePlacement.ANYWHERE for node_type in self.node_types)

    @property
    def observed_types(self) -> frozenset[TypeName]:
        """The node types in observe mode: the manager only shows what it would do."""
        return frozenset(name for name, node in self.nodes.items() if (node.mode or self.mode) is Mode.OBSERVE)

    @property
    def acts(self) -> bool:
        """Whether the manager acts at all, by ``[Site] mode`` or for at least one node type by its own ``mode``."""
        return self.mode is Mode.ACT or len(self.observed_types) < len(self.nodes)

    @property
    def delegates(self) -> bool:
        """Whether jobs of this instance may run in another one."""
        policy = self.policy
        return policy.burst is not Burst.NEVER and (bool(self.peers) or policy.delegate_to is DelegateTo.ANY)

    @property
    def batches(self) -> bool:
        """Whether one call creates several nodes, each of which then proves which slot is its own.

        An image may hold a client that cannot do so yet: then the site must say that its client can.
        """
        cloud = self.cloud
        return (
            self.flux.join is JoinMethod.SERVICE
            and cloud.nodes_per_call > 1
            and (not self.join.client or "nodes_per_call" in cloud.model_fields_set)
            and _nodes_prove_identity(cloud)
        )

    @property
    def lacks_node_account(self) -> bool:
        """Whether nodes are created one by one only because they have no service account."""
        cloud = self.cloud
        wants_batches = self.flux.join is JoinMethod.SERVICE and cloud.nodes_per_call > 1
        return cloud.provider is Provider.GCE and wants_batches and not cloud.node_service_account

    @property
    def create_rate(self) -> tuple[float, int]:
        """How many nodes may be created a second, and how many at once.

        The default for batches is that of EC2's bucket of instances, which fills at the same rate as ours. Google
        counts requests: as many instances a second as requests for one may be made.
        """
        cloud = self.cloud
        per_s, burst = cloud.creates_per_s, cloud.creates_burst
        if self.batches and "creates_per_s" not in cloud.model_fields_set:
            per_s = GCE_INSTANCES_PER_S if cloud.provider is Provider.GCE else EC2_INSTANCES_PER_S
        if self.batches and "creates_burst" not in cloud.model_fields_set:
            burst = EC2_INSTANCES_AT_ONCE
        return per_s, burst

    @property
    def mode_text(self) -> str:
        """``act``, ``observe``, or ``act (gpu only observed)``."""
        only = ", ".join(sorted(self.observed_types)) if self.acts else ""
        return f"act ({only} only observed)" if only else str(Mode.ACT if self.acts else Mode.OBSERVE)


def _nodes_prove_identity(cloud: CloudSettings) -> bool:
    """Return whether a node can prove to the join service which instance it is."""
    match cloud.provider:
        case Provider.EC2:
            return bool(ec2.identity_certificate(cloud))
        case Provider.GCE:
            return bool(cloud.node_service_account)
        case _:
            return False


def uuid_file(state_dir: Path) -> Path:
    """The file in which ``init`` stores the cluster's UUID."""
    return state_dir / "cluster-uuid"


def name_file(state_dir: Path) -> Path:
    """The file in which the service stores the cluster name that its nodes carry."""
    return state_dir / "cluster-name"


def load_site(
    path: str | Path, environment: Mapping[str, str] | None = None, *, with_credentials: bool = True
) -> Site:
    """Read a site. Raises :class:`ConfigError` with every fault. ``environment`` defaults to the process's own.

    ``with_credentials=False`` skips the credentials' section and reads none of its variables and files, for a
    process that must not know them.
    """
    file = Path(path)
    document = read_ini(file, os.environ if environment is None else environment, [credentials.SECTION])
    if document.faults and not document.sections:
        raise ConfigError(document.faults)
    return _SiteLoader(document if with_credentials else _without_credentials(document), with_credentials).load()


def _without_credentials(document: Document) -> Document:
    sections = {name: section for name, section in document.sections.items() if not _is_secret(name)}
    faults = tuple(fault for fault in document.faults if not _is_secret(fault.section))
    return replace(document, sections=sections, faults=faults)


def _is_secret(section: str) -> bool:
    return several.is_cloud_section(section) and section.endswith("Credentials")


@dataclass(frozen=True, slots=True)
class _CloudPart:
    """What the site says of one cloud. ``document``: as if it were the only one."""

    section: CloudSection
    document: Document
    settings: CloudSettings
    nodes: Mapping[TypeName, NodeSettings]
    secrets: Mapping[str, SecretStr]
    node_types: tuple[NodeType, ...]


class _SiteLoader:
    """Loads one document and collects its faults."""

    def __init__(self, document: Document, with_credentials: bool) -> None:
        self._document = document
        self._with_credentials = with_credentials
        self._folder = document.file.parent
        self._faults = list(document.faults)

    def load(self) -> Site:
        self._faults += _unknown_sections(self._document)
        site = self._section("Site", SiteSettings)
        flux = self._section("Flux", FluxSettings)
        limits = self._section("Limits", LimitsSettings)
        timing = self._section("Timing", TimingSettings)
        policy = self._section("Policy", PolicySettings)
        join = self._section("Join", JoinSettings)
        budget = self._section("Budget", BudgetSettings)
        disruption = self._section("Disruption", DisruptionSettings)
        web = self._section("Web", WebSettings)
        journal = self._section("Journal", JournalSettings)
        notify = self._section("Notify", NotifySettings)
        simulation = self._section("Simulation", SimulationSettings)
        nodes = self._nodes()
        peers = self._peers()
        ensembles = self._ensembles()
        schedules = self._schedules(nodes)
        parts = self._cloud_parts(nodes)
        cloud = parts[0].settings if parts else None
        state_dir = _absolute(self._folder / site.state_dir) if site else self._folder
        cluster_uuid = self._cluster_uuid(site.cluster_uuid, state_dir) if site else ""
        if site:
            self._check_cluster_name(site.cluster, state_dir)
        self._faults += _contradictions(
            self._document, flux=flux, cloud=cloud, limits=limits, timing=timing, nodes=nodes
        )
        if web and web.exposes_plaintext:
            self._fault("Web", "grpc_plaintext", "grpc_listen must then be an address of the loopback interface")
        if len(parts) > 1:
            settings = {part.section: part.settings for part in parts}
            secrets = {part.section.name: part.secrets for part in parts}
            is_simulated = bool(flux and flux.simulated)
            self._faults += several.faults_of_several(self._document, settings, secrets, simulated=is_simulated)
        if join and join.check_source and flux and flux.join is JoinMethod.SERVICE:
            self._faults += _unknown_sources(self._document, parts)
        if policy and policy.wait_for_data != NEVER:
            self._check_property(policy.wait_for_data, nodes)
        by_name = {it.name: it for part in parts for it in part.node_types}
        node_types = tuple(by_name[name] for name in nodes if name in by_name)  # they number the slots
        flux = self._complete_flux(flux, cloud, state_dir) if flux else None
        if flux and not flux.simulated:
            node_types = self._with_configured_slots(node_types, flux)
        if self._faults or not (
            site
            and flux
            and cloud
            and limits
            and timing
            and policy
            and join
            and budget
            and disruption
            and web
            and journal
            and notify
            and simulation
        ):
            raise ConfigError(tuple(sorted(self._faults, key=lambda fault: fault.line)))
        site_of_all = Site(
            path=self._document.file,
            cluster=site.cluster,
            cluster_uuid=cluster_uuid,
            state_dir=state_dir,
            mode=site.mode,
            flux=flux,
            cloud=self._complete_cloud(cloud),
            credentials=MappingProxyType({}),
            limits=limits,
            timing=timing,
            policy=with_default_misfit(policy, *(part.settings for part in parts)),
            join=join,
            budget=budget,
            disruption=disruption,
            web=self._complete_web(web, state_dir),
            journal=journal,
            notify=notify,
            simulation=simulation,
            node_types=node_types,
            networks=MappingProxyType({}),
            nodes=MappingProxyType(nodes),
            peers=MappingProxyType(peers),
            ensembles=MappingProxyType(ensembles),
            schedules=MappingProxyType(schedules),
        )
        sites = {part.section.name: self._site_of(part, site_of_all) for part in parts}
        first = next(iter(sites.values()))
        if len(sites) == 1:
            return first
        complete = {it.name: it for one in sites.values() for it in one.node_types}
        networks = {name: network for one in sites.values() for name, network in one.networks.items()}
        return replace(
            first,
            node_types=tuple(complete[it.name] for it in node_types),
            networks=MappingProxyType(networks),
            nodes=MappingProxyType(nodes),
            parts=MappingProxyType(sites),
        )

    def _cloud_parts(self, nodes: Mapping[TypeName, NodeSettings]) -> list[_CloudPart]:
        """Read the clouds, and check each as if it were the only one. One with faults of its own is left out."""
        sections = several.cloud_sections(self._document)
        self._faults += several.name_faults(self._document, sections)
        homes, faults = several.find_homes(self._document, nodes, sections)
        self._faults += faults
        read = {it: self._section(it.section, CloudSettings) for it in sections}
        return [self._cloud_part(it, cloud, nodes, homes) for it, cloud in read.items() if cloud]

    def _cloud_part(
        self,
        section: CloudSection,
        cloud: CloudSettings,
        nodes: Mapping[TypeName, NodeSettings],
        homes: Mapping[TypeName, CloudName],
    ) -> _CloudPart:
        here = {name: node for name, node in nodes.items() if homes.get(name) == section.name}
        document = several.document_of(section, self._document)
        secrets, faults = credentials.read_credentials(document, self._folder)
        needed = (*faults, *_provider_faults(document, self._complete_cloud(cloud), here))
        known = len(self._faults)
        self._faults += (it for it in needed if self._with_credentials or it.section != credentials.SECTION)
        node_types = self._node_types(here, cloud, document)
        self._faults[known:] = [several.in_own_words(fault, section) for fault in self._faults[known:]]
        node_types = tuple(replace(it, cloud=section.name, priority=cloud.priority) for it in node_types)
        return _CloudPart(section, document, cloud, here, secrets, node_types)

    def _site_of(self, part: _CloudPart, site: Site) -> Site:
        """The site as if this cloud were the only one."""
        cloud = self._complete_cloud(part.settings)
        join = self._complete_join(site.join, site.flux, cloud, site.state_dir)
        node_types = tuple(it for it in site.node_types if it.cloud == part.section.name)
        return replace(
            site,
            cloud=cloud,
            cloud_name=part.section.name,
            credentials=MappingProxyType(dict(part.secrets)),
            join=join,
            node_types=with_fingerprints(node_types, part.nodes, cloud, site.flux, join),
            networks=MappingProxyType({name: node.network or cloud.network for name, node in part.nodes.items()}),
            nodes=MappingProxyType(dict(part.nodes)),
        )

    def _section(self, name: str, settings: type[_S]) -> _S | None:
        """Read a section's settings. If any key is wrong, add a fault for each wrong key and return None."""
        allowed = allowed_keys(settings)
        entries = self._document.section(name).entries
        for key in entries.keys() - allowed.keys():
            nearest = nearest_name(key, allowed)
            self._fault(
                name, key, "no such key" + ("" if nearest else f"; the keys are {', '.join(allowed)}"), nearest
            )
        texts = {key: entry.text for key, entry in entries.items() if key in allowed and entry.text is not None}
        try:
            return settings.model_validate(texts)
        except ValidationError as error:
            for detail in error.errors():
                key = str(detail["loc"][0])
                if detail["type"] != "missing":
                    self._fault(name, key, str(detail["ctx"]["error"]))
                elif key not in entries:  # a key that is there names an unset variable, which is already a fault
                    self._fault(name, key, f"must be given: {allowed[key]}")
            return None

    def _nodes(self) -> dict[TypeName, NodeSettings]:
        names = [name for name in self._document.sections if name.startswith(_NODE)]
        if not names:
            self._fault("", "", "at least one [Node NAME] section must be given")
        nodes = {TypeName(name.removeprefix(_NODE)): self._section(name, NodeSettings) for name in names}
        for name, node in nodes.items():
            if node and node.prepaid and node.sizes:
                self._fault(
                    _NODE + name, "prepaid", "a contract names one size: leave out sizes, or give it a type"
                )
        return {name: node for name, node in nodes.items() if node}

    def _node_types(
        self, nodes: Mapping[TypeName, NodeSettings], cloud: CloudSettings, document: Document
    ) -> tuple[NodeType, ...]:
        """Return the node types with their sizes and prices. A type without a price is left out, with a fault."""
        table: PriceTable | None = None
        node_types: list[NodeType] = []
        for name, node in nodes.items():
            sizes: tuple[Size, ...] = ()
            if node.sizes:
                if table is None:
                    read = read_price_list(document, cloud)
                    if isinstance(read, Fault):
                        self._faults.append(read)
                        return ()
                    table = read
                sizes = self._sizes(name, node, cloud, table)
            elif node.price_per_hour is None:
                self._fault(_NODE + name, "price_per_hour", "must be given: a price of 0 or more")
            elif node.market is None:
                sizes = sizes_on_both_markets(name, node)
                if not sizes:
                    self._fault(_NODE + name, "spot_price_per_hour", "must be given with market = any")
            if sizes or not node.sizes:
                node_types.append(_node_type(name, node, cloud, sizes))
        return tuple(node_types)

    def _sizes(
        self, name: TypeName, node: NodeSettings, cloud: CloudSettings, table: PriceTable
    ) -> tuple[Size, ...]:
        """Return the sizes of a node type, or none and add a fault."""
        regions = regions_of(cloud, node.zones or cloud.zones)
        if len(regions) > 1:
            where = ", ".join(regions)
            self._fault(
                _NODE + name, "sizes", f"the zones must be in one region, for its prices; they are in {where}"
            )
            return ()
        only = next(iter(table.prices), "") if len(table.prices) == 1 else ""
        expander = SizeExpander(self._document, name, node, table, "".join(regions) or only)
        sizes = expander.expand()
        if node.size:
            self._fault(_NODE + name, "size", "give size or sizes, not both")
        self._faults += expander.faults
        return sizes

    def _peers(self) -> dict[str, PeerSettings]:
        names = [name for name in self._document.sections if name.startswith(_PEER)]
        peers = {name.removeprefix(_PEER): self._section(name, PeerSettings) for name in names}
        found: dict[str, PeerSettings] = {}
        for name, peer in peers.items():
            if peer is None:
                continue
            if name == ANY_PEER:
                self._fault(_PEER + name, "", f"{ANY_PEER} means all peers: give this one another name")
            for other, known in found.items():
                if known.uri == peer.uri:
                    self._fault(_PEER + name, "uri", f"[Peer {other}] has the same uri: one instance is one peer")
            found[name] = self._with_absolute_uri(peer)
        return found

    def _ensembles(self) -> dict[str, EnsembleSettings]:
        names = [name for name in self._document.sections if name.startswith(_ENSEMBLE)]
        read = {name.removeprefix(_ENSEMBLE): self._section(name, EnsembleSettings) for name in names}
        found = {name: ensemble for name, ensemble in read.items() if ensemble is not None}
        for name, ensemble in found.items():
            if ensemble.nodes_max is not None and ensemble.nodes_min > ensemble.nodes_max:
                self._fault(_ENSEMBLE + name, "nodes_min", f"must not be above nodes_max = {ensemble.nodes_max}")
        return {
            name: ensemble.model_copy(update={"file": _absolute(self._folder / ensemble.file)})
            for name, ensemble in found.items()
        }

    def _schedules(self, nodes: Mapping[TypeName, NodeSettings]) -> dict[str, ScheduleSettings]:
        names = [name for name in self._document.sections if name.startswith(_SCHEDULE)]
        read = {name.removeprefix(_SCHEDULE): self._section(name, ScheduleSettings) for name in names}
        found = {name: schedule for name, schedule in read.items() if schedule is not None}
        for name, schedule in found.items():
            section = _SCHEDULE + name
            if not schedule.when:
                self._fault(section, "when", "must name a window such as Mon-Fri 08:00-18:00 Europe/Berlin")
            for node_type in schedule.node_types:
                if node_type not in nodes:
                    self._fault(
                        section, "node_types", f"there is no [Node {node_type}]", nearest_name(node_type, nodes)
                    )
            if schedule.nodes_max == 0 and not schedule.node_types:
                self._fault(section, "nodes_max", "0 closes a node type: name it in node_types, or write 1 or more")
            for of in schedule.node_types if schedule.nodes_min else ():
                if of in nodes and len(nodes[TypeName(of)].slots) < (schedule.nodes_min or 0):
                    self._fault(
                        section, "nodes_min", f"[Node {of}] has only {len(nodes[TypeName(of)].slots)} slots"
                    )
            nodes_min, nodes_max = schedule.nodes_min, schedule.nodes_max
            if nodes_min is not None and nodes_max is not None and nodes_min > nodes_max:
                self._fault(section, "nodes_min", f"must not be above nodes_max = {nodes_max}")
        return found

    def _with_absolute_uri(self, peer: PeerSettings) -> PeerSettings:
        if not peer.uri.startswith(_LOCAL):
            return peer
        path = _absolute(self._folder / peer.uri.removeprefix(_LOCAL))
        return peer.model_copy(update={"uri": _LOCAL + str(path)})

    def _cluster_uuid(self, given: str, state_dir: Path) -> str:
        """Return the UUID from the site or from ``init``'s file; add a fault if they differ."""
        file = uuid_file(state_dir)
        try:
            kept = str(UUID(file.read_text(encoding="ascii").strip()))
        except (FileNotFoundError, NotADirectoryError):
            return given
        except OSError as error:
            self._faults.append(Fault(file, f"the file cannot be read: {error.strerror}"))
        except ValueError:
            self._faults.append(Fault(file, "the file must hold the UUID that init wrote: restore it"))
        else:
            if given in ("", kept):
                return kept
            self._fault(
                "Site", "cluster_uuid", f"{file} holds another one, {kept}: keep the one that the nodes carry"
            )
        return ""

    def _check_cluster_name(self, cluster: str, state_dir: Path) -> None:
        """Add a fault if the cluster was renamed: nodes with the old name would not be listed, but still cost."""
        file = name_file(state_dir)
        try:
            kept = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return  # never written; or state_dir is unreadable, which the UUID's file already reports
        if kept != cluster:
            self._fault(
                "Site",
                "cluster",
                f"this cluster's nodes carry the name {kept}. With another name the manager would not find them, "
                f"and they would keep costing money: write cluster = {kept}, or remove {file} once all are gone",
            )

    def _check_property(self, name: str, nodes: Mapping[TypeName, NodeSettings]) -> None:
        """Add a fault if no node would wait for its data."""
        known = sorted({it for node in nodes.values() for it in node.properties})
        if nodes and name not in known:
            problem = f"no [Node NAME] has this property: give never, or one of {', '.join(known) or 'theirs'}"
            self._fault("Policy", "wait_for_data", problem, nearest_name(name, known))

    def _complete_flux(self, flux: FluxSettings, cloud: CloudSettings | None, state_dir: Path) -> FluxSettings:
        folder = self._folder if "bootstrap_dir" in flux.model_fields_set else state_dir
        uri = flux.uri
        if uri.startswith(_LOCAL):
            uri = _LOCAL + str(_absolute(self._folder / uri.removeprefix(_LOCAL)))
        completed: dict[str, object] = {"uri": uri, "bootstrap_dir": _absolute(folder / flux.bootstrap_dir)}
        if cloud and cloud.provider is Provider.MINICLUSTER and not flux.simulated:
            completed["join"] = JoinMethod.IMAGE  # the operator gives each pod its configuration
        return flux.model_copy(update=completed)

    def _complete_cloud(self, cloud: CloudSettings) -> CloudSettings:
        completed = {"service_material": _absolute(self._folder / cloud.service_material)}
        if cloud.kubeconfig is not None:
            completed["kubeconfig"] = _absolute(self._folder / cloud.kubeconfig)
        if cloud.identity_certificate is not None:
            completed["identity_certificate"] = _absolute(self._folder / cloud.identity_certificate)
        return cloud.model_copy(update=completed)

    def _complete_web(self, web: WebSettings, state_dir: Path) -> WebSettings:
        listen = web.listen
        if listen == "unix":
            listen = f"unix:{state_dir / 'web.sock'}"
        elif listen.startswith("unix:"):
            listen = f"unix:{_absolute(self._folder / listen.removeprefix('unix:'))}"
        folder = self._folder if "token_file" in web.model_fields_set else state_dir
        material = self._folder if "grpc_material" in web.model_fields_set else state_dir
        return web.model_copy(
            update={
                "listen": listen,
                "token_file": _absolute(folder / web.token_file),
                "tokens_file": _absolute(self._folder / web.tokens_file) if web.tokens_file else None,
                "grpc_material": _absolute(material / web.grpc_material),
            }
        )

    def _complete_join(
        self, join: JoinSettings, flux: FluxSettings, cloud: CloudSettings, state_dir: Path
    ) -> JoinSettings:
        """Fill in the keys that were not given: addresses from rank 0's, a node's paths from the provider."""
        given = join.model_fields_set
        port = join.listen.rpartition(":")[2]
        rank_0 = bracketed(flux.head_address)
        folder = self._folder if "material_dir" in given else state_dir
        completed: dict[str, object] = {"material_dir": _absolute(folder / join.material_dir)}
        if "listen" not in given and is_ipv6_address(flux.head_address):
            completed["listen"] = f"{rank_0 if is_loopback(flux.head_address) else '[::]'}:{port}"
        elif "listen" not in given and is_loopback(flux.head_address):
            completed["listen"] = f"127.0.0.1:{port}"
        if not join.addresses and flux.head_address:
            completed["addresses"] = (f"{rank_0}:{port}",)
        if cloud.provider is Provider.LOCAL:
            completed |= {key: value for key, value in _LOCAL_NODE.items() if key not in given}
        elif cloud.provider is Provider.STATIC and "poweroff" not in given:
            completed["poweroff"] = _LEAVE_HOST_UP
        return join.model_copy(update=completed)

    def _with_configured_slots(self, node_types: tuple[NodeType, ...], flux: FluxSettings) -> tuple[NodeType, ...]:
        """Return the types with the slots from the instance's configuration, once ``init`` has written that."""
        # A service with a user of its own may be unable to read that configuration. Then the site's slots count.
        if not os.access(flux.bootstrap_dir / "conf.d", os.R_OK | os.X_OK):
            return node_types
        try:
            if not ConfigFile.resource_files(flux.bootstrap_dir):
                return node_types  # it declares no slots yet
            file = ConfigFile.find(flux.bootstrap_dir)
            config = file.read()
            slot_types, node_types = read_slot_types(config), with_promises(node_types, read_promises(config))
        except FluxConfigError as error:
            self._faults.append(Fault(flux.bootstrap_dir / "conf.d", str(error)))
            return node_types
        unknown = set(slot_types.values()) - {node_type.name for node_type in node_types}
        if unknown and node_types:
            name = min(unknown)
            self._faults.append(
                Fault(file.path, f"it has slots of type {name}: keep [Node {name}] until they have another type")
            )
        known = {slot: node_type.name for node_type in node_types for slot in node_type.slots} | slot_types
        return tuple(
            replace(node_type, slots=tuple(slot for slot, name in known.items() if name == node_type.name))
            for node_type in node_types
        )

    def _fault(self, section: str, key: str, problem: str, nearest: str = "") -> None:
        self._faults.append(self._document.fault(section, key, problem, nearest))


def with_default_misfit(policy: PolicySettings, *clouds: CloudSettings) -> PolicySettings:
    """Accept misfits if all nodes are parts of machines, unless the site says otherwise."""
    shares = all(cloud.provider in _SHARES_MACHINES for cloud in clouds)
    if shares and "misfit" not in policy.model_fields_set:
        return policy.model_copy(update={"misfit": Misfit.ACCEPT})
    return policy


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - removes "..", but does not follow links


def _node_type(name: TypeName, node: NodeSettings, cloud: CloudSettings, sizes: tuple[Size, ...]) -> NodeType:
    return NodeType(
        name=name,
        size=sizes[0].name if sizes else node.size or name,
        cores=node.cores,
        gpus=node.gpus,
        memory_bytes=node.memory_bytes,
        price_per_hour=sizes[0].price_per_hour if sizes else node.price_per_hour or Decimal(0),
        billing=node.billing,
        slots=node.slots,
        properties=node.properties,
        market=sizes[0].market if sizes else node.market or Market.ON_DEMAND,
        image=node.image or cloud.image,
        zones=ec2.zones_of(node) or ec2.zones_of(cloud),
        placement=node.placement,
        spares=node.spares,
        sizes=sizes,
        max_age_s=node.max_age_s,
        prepaid=node.prepaid,
        prepaid_until_at=node.prepaid_until_at,
        price_until_at=node.price_until_at,
    )


# --- one key against another ------------------------------------------------------------------------------


def _unknown_sections(document: Document) -> Iterator[Fault]:
    for name in document.sections:
        if _is_secret(name):
            continue
        kind = next((kind for kind in _NAMED if name.startswith(kind)), None)
        if kind is not None and not several.is_misspelt(name):
            pattern, allowed = _NAMED[kind]
            if not pattern.fullmatch(name.removeprefix(kind)):
                yield document.fault(name, "", f"[{kind}NAME] needs a name: {allowed}")
        elif name not in _SECTIONS:
            _, _, rest = name.partition(" ")
            named = [kind + (rest or "NAME") for kind in _NAMED]
            misspelt = several.is_misspelt(name)
            nearest = credentials.SECTION if misspelt else nearest_name(name, (*_SECTIONS, *named))
            known = ", ".join((*_SECTIONS, *(f"{kind}NAME" for kind in _NAMED)))
            problem = "no such section" + ("" if nearest else f"; the sections are {known}")
            yield document.fault(name, "", problem, nearest)


def _contradictions(
    document: Document,
    *,
    flux: FluxSettings | None,
    cloud: CloudSettings | None,
    limits: LimitsSettings | None,
    timing: TimingSettings | None,
    nodes: Mapping[TypeName, NodeSettings],
) -> Iterator[Fault]:
    """Find keys that contradict each other. A section with faults of its own (None) is not checked."""
    if flux:
        yield from _outside_contradictions(document, flux, cloud)
        yield from _join_contradictions(document, flux, nodes)
    if limits and limits.nodes_min > limits.nodes_max:
        yield document.fault("Limits", "nodes_min", f"must not be above nodes_max = {limits.nodes_max}")
    if timing:
        yield from _timing_contradictions(document, timing)
    yield from _slots_named_twice(document, flux, nodes)
    yield from static.hosts_named_twice(document, nodes)


def _join_contradictions(
    document: Document, flux: FluxSettings, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find what the chosen way to join cannot do."""
    if flux.join is JoinMethod.FLUB and len(nodes) > 1:
        yield document.fault(
            "Flux", "join", "with flub a node gets any free rank, so all slots must belong to one [Node NAME]"
        )


def _unknown_sources(document: Document, parts: Sequence[_CloudPart]) -> Iterator[Fault]:
    """Find a check of addresses that the provider does not tell."""
    for part in parts:
        if part.settings.provider in _NAMES_ONLY:
            provider = part.settings.provider
            problem = f"provider = {provider} gives only the names of its nodes: write no"
            yield document.fault("Join", "check_source", problem)


def _timing_contradictions(document: Document, timing: TimingSettings) -> Iterator[Fault]:
    if timing.settle_s > timing.settle_max_s:
        yield document.fault("Timing", "settle", "must not be longer than settle_max")
    if timing.stale_after_s <= max(timing.probe_s, timing.relist_s):
        yield document.fault("Timing", "stale_after", "must be longer than probe and relist, or all data is stale")


def _slots_named_twice(
    document: Document, flux: FluxSettings | None, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find slots of two node types, and slots with the leader's name."""
    taken = {flux.head_host: "the name of the leader (head_host)"} if flux else {}
    for name, node in nodes.items():
        for slot in node.slots:
            if slot in taken:
                problem = f'slot "{slot}" is already {taken[slot]}: give it another name'
                yield document.fault(_NODE + name, "slots", problem)
            taken.setdefault(slot, f"a slot of [Node {name}]")


def _outside_contradictions(document: Document, flux: FluxSettings, cloud: CloudSettings | None) -> Iterator[Fault]:
    if flux.simulated and flux.join is not JoinMethod.DIRECTORY:
        yield document.fault("Flux", "join", "no node joins a simulated Flux: write join = directory")
    if cloud and cloud.provider is Provider.MINICLUSTER and "join" in flux.model_fields_set:
        yield document.fault("Flux", "join", "the operator configures the pods of a MiniCluster: remove the key")
    if not flux.simulated and not flux.head_address and not (cloud and cloud.provider is Provider.MINICLUSTER):
        yield document.fault("Flux", "head_address", "must be given: the address at which nodes reach rank 0")
    if not flux.simulated and cloud and cloud.provider is Provider.SIMULATED:
        yield document.fault(
            "Cloud", "provider", "a simulated cloud has no nodes for a real Flux: choose another provider"
        )


def _provider_faults(
    document: Document, cloud: CloudSettings, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Check what only this provider needs."""
    if cloud.provider is not Provider.STATIC:
        yield from common.unsupported_keys(document, cloud, nodes, static.KEYS, f"provider = {cloud.provider}")
    if cloud.provider not in _HAS_GROUPS:
        yield from common.unsupported_placement(document, nodes, f"provider = {cloud.provider}")
    match cloud.provider:
        case Provider.EC2:
            yield from ec2.faults(document, cloud, nodes)
        case Provider.OPENSTACK:
            yield from openstack.faults(document, cloud, nodes)
        case Provider.GCE:
            yield from gce.faults(document, cloud, nodes)
        case Provider.AZURE:
            yield from azure.faults(document, cloud, nodes)
        case Provider.MINICLUSTER:
            yield from minicluster.faults(document, cloud, nodes)
        case Provider.STATIC:
            yield from static.faults(document, cloud, nodes)
        case Provider.LOCAL | Provider.SIMULATED:
            pass


# --- allowed, but probably a mistake ----------------------------------------------------------------------


def site_warnings(site: Site) -> tuple[str, ...]:
    """Warn about probable mistakes in a valid site, one text each."""
    return (*_unaffordable_types(site), *_unguarded_types(site))


def _unaffordable_types(site: Site) -> Iterator[str]:
    price_max = site.limits.price_per_hour_max
    for node_type in site.node_types:
        if node_type.price_per_hour > price_max:
            yield (
                f"[Node {node_type.name}] will never be bought: its price_per_hour = {node_type.price_per_hour} "
                f"is above price_per_hour_max = {price_max}. Raise the limit, or remove the type."
            )


def _unguarded_types(site: Site) -> Iterator[str]:
    """Warn about expensive types: Flux's simple scheduler gives a one-core job any rank with a free core."""
    cores_least = min(node_type.cores for node_type in site.node_types)
    cores_most = max(node_type.cores for node_type in site.node_types)
    gpus_everywhere = all(node_type.gpus for node_type in site.node_types)
    for node_type in site.node_types:
        if node_type.properties:
            continue
        if node_type.gpus and not gpus_everywhere:
            kind = "GPU"
        elif node_type.cores == cores_most > cores_least:
            kind = "large"
        else:
            continue
        yield (
            f"[Node {node_type.name}] is a {kind} type without a property: Flux may start small jobs on it. "
            "Give it a property, and let jobs or a queue require it."
        )
