"""Load ``site.ini`` into a :class:`Site`, or report every fault of the file at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from pydantic import SecretStr

from nodemanager.config import clouds as several
from nodemanager.config.clouds import CloudSection
from nodemanager.config.defaults import (
    absolute,
    complete_cloud,
    complete_flux,
    complete_join,
    complete_web,
    with_absolute_uri,
    with_default_misfit,
)
from nodemanager.config.key_faults import unsupported_keys, unsupported_placement
from nodemanager.config.price_list import PriceTable, SizeExpander, read_price_list, sizes_on_both_markets
from nodemanager.config.provider import provider_named, rules_of, zones_of
from nodemanager.config.sections import ENSEMBLE, NODE, PEER, SCHEDULE, Sections, without_credentials
from nodemanager.config.site import ConfigError, Site, name_file, uuid_file
from nodemanager.config.text import credentials
from nodemanager.config.text.flux_toml import (
    ConfigFile,
    FluxConfigError,
    read_promises,
    read_slot_types,
    with_promises,
)
from nodemanager.config.text.ini import Document, Fault, nearest_name, read_ini
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.config.text.settings import (
    NEVER,
    BudgetSettings,
    CloudSettings,
    DisruptionSettings,
    EnsembleSettings,
    FluxSettings,
    JoinMethod,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    NodeSettings,
    NotifySettings,
    PeerSettings,
    PolicySettings,
    ScheduleSettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    WebSettings,
)
from nodemanager.core.slots import CloudName, Market, NodePlacement, NodeType, OnlyFor, Size, TypeName
from nodemanager.core.upkeep.rules import fingerprint_of


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
    return _SiteLoader(document if with_credentials else without_credentials(document), with_credentials).load()


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
        self._sections = Sections(document)
        self._faults = self._sections.faults

    def load(self) -> Site:
        site = self._sections.read("Site", SiteSettings)
        flux = self._sections.read("Flux", FluxSettings)
        limits = self._sections.read("Limits", LimitsSettings)
        timing = self._sections.read("Timing", TimingSettings)
        policy = self._sections.read("Policy", PolicySettings)
        join = self._sections.read("Join", JoinSettings)
        budget = self._sections.read("Budget", BudgetSettings)
        disruption = self._sections.read("Disruption", DisruptionSettings)
        web = self._sections.read("Web", WebSettings)
        journal = self._sections.read("Journal", JournalSettings)
        notify = self._sections.read("Notify", NotifySettings)
        simulation = self._sections.read("Simulation", SimulationSettings)
        nodes = read_nodes(self._sections)
        peers = read_peers(self._sections)
        ensembles = read_ensembles(self._sections)
        schedules = read_schedules(self._sections, nodes)
        parts = self._cloud_parts(nodes)
        cloud = parts[0].settings if parts else None
        state_dir = absolute(self._folder / site.state_dir) if site else self._folder
        cluster_uuid = self._cluster_uuid(site.cluster_uuid, state_dir) if site else ""
        if site:
            self._check_cluster_name(site.cluster, state_dir)
        self._check(
            flux=flux, limits=limits, timing=timing, policy=policy, join=join, web=web, nodes=nodes, parts=parts
        )
        by_name = {it.name: it for part in parts for it in part.node_types}
        node_types = tuple(by_name[name] for name in nodes if name in by_name)  # they number the slots
        flux = complete_flux(flux, cloud, self._folder, state_dir) if flux else None
        if flux and not flux.simulated:
            node_types = with_configured_slots(self._sections, node_types, flux)
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
            currency=site.currency,
            flux=flux,
            cloud=complete_cloud(cloud, self._folder),
            credentials=MappingProxyType({}),
            limits=limits,
            timing=timing,
            policy=with_default_misfit(policy, *(part.settings for part in parts)),
            join=join,
            budget=budget,
            disruption=disruption,
            web=complete_web(web, self._folder, state_dir),
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
        return self._with_clouds(site_of_all, parts)

    def _check(
        self,
        *,
        flux: FluxSettings | None,
        limits: LimitsSettings | None,
        timing: TimingSettings | None,
        policy: PolicySettings | None,
        join: JoinSettings | None,
        web: WebSettings | None,
        nodes: Mapping[TypeName, NodeSettings],
        parts: Sequence[_CloudPart],
    ) -> None:
        """Add a fault for each contradiction between sections. None: a section with faults of its own."""
        only = parts[0].settings if len(parts) == 1 else None
        self._faults += contradictions(
            self._document, flux=flux, cloud=only, limits=limits, timing=timing, nodes=nodes
        )
        if web and web.exposes_plaintext:
            self._sections.fault(
                "Web", "grpc_plaintext", "grpc_listen must then be an address of the loopback interface"
            )
        clouds = {part.section: part.settings for part in parts}
        if flux:
            self._faults += simulated_clouds(self._document, flux, clouds)
        if len(parts) > 1:
            secrets = {part.section.name: part.secrets for part in parts}
            self._faults += several.faults_of_several(self._document, clouds, secrets)
        if join and join.check_source and flux and flux.join is JoinMethod.SERVICE:
            self._faults += unknown_sources(self._document, list(clouds.values()))
        if policy and policy.wait_for_data != NEVER:
            self._check_property(policy.wait_for_data, nodes)

    def _with_clouds(self, site: Site, parts: Sequence[_CloudPart]) -> Site:
        """Return the site with its clouds. The fields of several clouds describe the first."""
        sites = {part.section.name: self._site_of(part, site) for part in parts}
        first = next(iter(sites.values()))
        if len(sites) == 1:
            return first
        complete = {it.name: it for one in sites.values() for it in one.node_types}
        networks = {name: network for one in sites.values() for name, network in one.networks.items()}
        return replace(
            first,
            node_types=tuple(complete[it.name] for it in site.node_types),
            networks=MappingProxyType(networks),
            nodes=site.nodes,
            parts=MappingProxyType(sites),
        )

    def _cloud_parts(self, nodes: Mapping[TypeName, NodeSettings]) -> list[_CloudPart]:
        """Read the clouds, and check each as if it were the only one. One with faults of its own is left out."""
        sections = several.cloud_sections(self._document)
        self._faults += several.name_faults(self._document, sections)
        homes, faults = several.find_homes(self._document, nodes, sections)
        self._faults += faults
        read = {it: self._read_cloud(it.section) for it in sections}
        return [self._cloud_part(it, cloud, nodes, homes) for it, cloud in read.items() if cloud]

    def _read_cloud(self, section: str) -> CloudSettings | None:
        provider = self._document.section(section).entries.get("provider")
        name = provider.text if provider and provider.text else ""
        return self._sections.read(section, provider_named(name).settings if name in PROVIDERS else CloudSettings)

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
        needed = (*faults, *provider_faults(document, complete_cloud(cloud, self._folder), here))
        known = len(self._faults)
        self._faults += (it for it in needed if self._with_credentials or it.section != credentials.SECTION)
        node_types = node_types_of(self._sections, here, cloud, document)
        self._faults[known:] = [several.in_own_words(fault, section) for fault in self._faults[known:]]
        node_types = tuple(replace(it, cloud=section.name, priority=cloud.priority) for it in node_types)
        return _CloudPart(section, document, cloud, here, secrets, node_types)

    def _site_of(self, part: _CloudPart, site: Site) -> Site:
        """The site as if this cloud were the only one."""
        cloud = complete_cloud(part.settings, self._folder)
        join = complete_join(site.join, site.flux, cloud, self._folder, site.state_dir)
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
            self._sections.fault(
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
            self._sections.fault(
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
            self._sections.fault("Policy", "wait_for_data", problem, nearest_name(name, known))


# --- find keys of a site that contradict each other, or that a provider needs or does not know ------------


OWN_HOST_KEYS = ("wake", "sleep", "probe", "hosts")


def contradictions(
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
    for name, node in nodes.items():
        if node.only_for is OnlyFor.GPU and not node.gpus:
            yield document.fault(NODE + name, "only_for", "the type has no GPUs: give gpus, or remove the key")
    yield from _hosts_named_twice(document, flux.head_host if flux else "", nodes)


def _join_contradictions(
    document: Document, flux: FluxSettings, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find what the chosen way to join cannot do."""
    if flux.join is JoinMethod.FLUB and len(nodes) > 1:
        yield document.fault(
            "Flux", "join", "with flub a node gets any free rank, so all slots must belong to one [Node NAME]"
        )


def unknown_sources(document: Document, clouds: Sequence[CloudSettings]) -> Iterator[Fault]:
    """Find a check of addresses that the provider does not tell."""
    for cloud in clouds:
        if rules_of(cloud).gives_names_only:
            problem = f"provider = {cloud.provider} gives only the names of its nodes: write no"
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
                yield document.fault(NODE + name, "slots", problem)
            taken.setdefault(slot, f"a slot of [Node {name}]")


def _hosts_named_twice(
    document: Document, head_host: str, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Find hosts of two node types, each of which would wake the other's, and rank 0's, which must stay on."""
    taken = {head_host: "the host of rank 0 (head_host)"}
    for name, node in nodes.items():
        for host in node.hosts:
            if host in taken:
                problem = f'host "{host}" is already {taken[host]}: a host has one type'
                yield document.fault(NODE + name, "hosts", problem)
            taken.setdefault(host, f"one of [Node {name}]")


def _outside_contradictions(document: Document, flux: FluxSettings, cloud: CloudSettings | None) -> Iterator[Fault]:
    if flux.simulated and flux.join is not JoinMethod.DIRECTORY:
        yield document.fault("Flux", "join", "no node joins a simulated Flux: write join = directory")
    configured_by = rules_of(cloud).configures_nodes if cloud else ""
    if configured_by and "join" in flux.model_fields_set:
        yield document.fault("Flux", "join", f"{configured_by}: remove the key")
    if not flux.simulated and not flux.head_address and not configured_by:
        yield document.fault("Flux", "head_address", "must be given: the address at which nodes reach rank 0")


def simulated_clouds(
    document: Document, flux: FluxSettings, clouds: Mapping[CloudSection, CloudSettings]
) -> Iterator[Fault]:
    """Find simulated clouds for a real Flux."""
    for section, cloud in clouds.items():
        if rules_of(cloud).is_simulated and not flux.simulated:
            problem = "a simulated cloud has no nodes for a real Flux: choose another provider"
            yield document.fault(section.section, "provider", problem)


def provider_faults(
    document: Document, cloud: CloudSettings, nodes: Mapping[TypeName, NodeSettings]
) -> Iterator[Fault]:
    """Check what only this provider needs."""
    rules = rules_of(cloud)
    if not rules.own_hosts:
        yield from unsupported_keys(document, cloud, nodes, OWN_HOST_KEYS, f"provider = {cloud.provider}")
    if not rules.has_groups:
        yield from unsupported_placement(document, nodes, f"provider = {cloud.provider}")
    yield from rules.faults(document, cloud, nodes)


# --- fingerprints -----------------------------------------------------------------------------------------
#
# Compute the fingerprint of what the nodes of each type are made from: image, size, network, user-data.


# The settings of which a node's user-data is made. Keys that only the service reads are left out, and so is what
# differs from node to node. What a digest covers must not change (``core.upkeep.rules``).
_FLUX_KEYS = ("join", "head_host", "head_address", "port", "bootstrap_dir", "image_start", "boot_server")
_JOIN_KEYS = (
    "addresses", "flux_version", "renew_s", "client", "flux", "node_user", "node_dir", "hosts_file", "poweroff",
    "systemd",
)  # fmt: skip
_NETWORK_KEYS = ("network", "subnets", "security_groups", "key_name", "instance_profile")


def with_fingerprints(
    node_types: Sequence[NodeType],
    nodes: Mapping[TypeName, NodeSettings],
    cloud: CloudSettings,
    flux: FluxSettings,
    join: JoinSettings,
) -> tuple[NodeType, ...]:
    """Return the types, each with the fingerprint of what its nodes are made from now."""
    user_data = [str(getattr(flux, key)) for key in _FLUX_KEYS] + [str(getattr(join, key)) for key in _JOIN_KEYS]
    return tuple(
        replace(
            node_type,
            made_from=fingerprint_of(
                {
                    "image": node_type.image,
                    "size": node_type.size if not node_type.sizes else "",  # any of them serves
                    "network": [
                        *(str(getattr(nodes[node_type.name], key) or getattr(cloud, key)) for key in _NETWORK_KEYS),
                        # Only if it is set: the digests of other sites stay as they were.
                        *([node_type.placement] if node_type.placement is not NodePlacement.ANYWHERE else []),
                        *([cloud.node_service_account] if cloud.node_service_account else []),
                    ],
                    "user-data": user_data,
                }
            ),
        )
        for node_type in node_types
    )


# --- read the sections with names: node types, peers, ensembles and schedules -----------------------------


ANY_PEER = "any"  # --dependency=delegate:any


def read_nodes(sections: Sections) -> dict[TypeName, NodeSettings]:
    """Read the sections of node types. A site without any has a fault."""
    if not any(name.startswith(NODE) for name in sections.document.sections):
        sections.fault("", "", "at least one [Node NAME] section must be given")
    nodes = {TypeName(name): node for name, node in sections.named(NODE, NodeSettings).items()}
    for name, node in nodes.items():
        if node.prepaid and node.sizes:
            sections.fault(NODE + name, "prepaid", "a contract names one size: leave out sizes, or give it a type")
    return nodes


def read_peers(sections: Sections) -> dict[str, PeerSettings]:
    """Read the peers. Each has a name and an instance of its own."""
    found: dict[str, PeerSettings] = {}
    for name, peer in sections.named(PEER, PeerSettings).items():
        if name == ANY_PEER:
            sections.fault(PEER + name, "", f"{ANY_PEER} means all peers: give this one another name")
        for other, known in found.items():
            if known.uri == peer.uri:
                sections.fault(PEER + name, "uri", f"[Peer {other}] has the same uri: one instance is one peer")
        found[name] = with_absolute_uri(peer, sections.folder)
    return found


def read_ensembles(sections: Sections) -> dict[str, EnsembleSettings]:
    """Read the ensembles that the service runs."""
    found = sections.named(ENSEMBLE, EnsembleSettings)
    for name, ensemble in found.items():
        if ensemble.nodes_max is not None and ensemble.nodes_min > ensemble.nodes_max:
            sections.fault(ENSEMBLE + name, "nodes_min", f"must not be above nodes_max = {ensemble.nodes_max}")
    return {
        name: ensemble.model_copy(update={"file": absolute(sections.folder / ensemble.file)})
        for name, ensemble in found.items()
    }


def read_schedules(sections: Sections, nodes: Mapping[TypeName, NodeSettings]) -> dict[str, ScheduleSettings]:
    """Read the schedules, which name node types of the site."""
    found = sections.named(SCHEDULE, ScheduleSettings)
    for name, schedule in found.items():
        section = SCHEDULE + name
        if not schedule.when:
            sections.fault(section, "when", "must name a window such as Mon-Fri 08:00-18:00 Europe/Berlin")
        for node_type in schedule.node_types:
            if node_type not in nodes:
                sections.fault(
                    section, "node_types", f"there is no [Node {node_type}]", nearest_name(node_type, nodes)
                )
        if schedule.nodes_max == 0 and not schedule.node_types:
            sections.fault(section, "nodes_max", "0 closes a node type: name it in node_types, or write 1 or more")
        for of in schedule.node_types if schedule.nodes_min else ():
            if of in nodes and len(nodes[TypeName(of)].slots) < (schedule.nodes_min or 0):
                sections.fault(section, "nodes_min", f"[Node {of}] has only {len(nodes[TypeName(of)].slots)} slots")
        nodes_min, nodes_max = schedule.nodes_min, schedule.nodes_max
        if nodes_min is not None and nodes_max is not None and nodes_min > nodes_max:
            sections.fault(section, "nodes_min", f"must not be above nodes_max = {nodes_max}")
    return found


# --- make node types of the sections ``[Node NAME]``: with sizes, prices and the slots of the instance ----


def node_types_of(
    sections: Sections, nodes: Mapping[TypeName, NodeSettings], cloud: CloudSettings, document: Document
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
                    sections.faults.append(read)
                    return ()
                table = read
            sizes = _sizes(sections, name, node, cloud, table)
        elif node.price_per_hour is None:
            sections.fault(NODE + name, "price_per_hour", "must be given: a price of 0 or more")
        elif node.market is None:
            sizes = sizes_on_both_markets(name, node)
            if not sizes:
                sections.fault(NODE + name, "spot_price_per_hour", "must be given with market = any")
        if sizes or not node.sizes:
            node_types.append(_unbilled(_node_type(name, node, cloud, sizes)))
    return tuple(node_types)


def _sizes(
    sections: Sections, name: TypeName, node: NodeSettings, cloud: CloudSettings, table: PriceTable
) -> tuple[Size, ...]:
    """Return the sizes of a node type, or none and add a fault."""
    regions = rules_of(cloud).regions(cloud, node.zones or cloud.zones)
    if len(regions) > 1:
        where = ", ".join(regions)
        sections.fault(
            NODE + name, "sizes", f"the zones must be in one region, for its prices; they are in {where}"
        )
        return ()
    only = next(iter(table.prices), "") if len(table.prices) == 1 else ""
    expander = SizeExpander(sections.document, name, node, table, "".join(regions) or only)
    sizes = expander.expand()
    if node.size:
        sections.fault(NODE + name, "size", "give size or sizes, not both")
    sections.faults += expander.faults
    return sizes


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
        zones=zones_of(node) or zones_of(cloud),
        placement=node.placement,
        spares=node.spares,
        sizes=sizes,
        max_age_s=node.max_age_s,
        prepaid=node.prepaid,
        prepaid_until_at=node.prepaid_until_at,
        price_until_at=node.price_until_at,
        only_for=node.only_for,
    )


def _unbilled(node_type: NodeType) -> NodeType:
    """The type without its prices if it is not billed: its nodes cost nothing, so no limit counts them."""
    if node_type.billing.window_s > 0:
        return node_type
    sizes = tuple(replace(it, price_per_hour=Decimal(0)) for it in node_type.sizes)
    return replace(node_type, price_per_hour=Decimal(0), sizes=sizes)


def with_configured_slots(
    sections: Sections, node_types: tuple[NodeType, ...], flux: FluxSettings
) -> tuple[NodeType, ...]:
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
        sections.faults.append(Fault(flux.bootstrap_dir / "conf.d", str(error)))
        return node_types
    unknown = set(slot_types.values()) - {node_type.name for node_type in node_types}
    if unknown and node_types:
        name = min(unknown)
        sections.faults.append(
            Fault(file.path, f"it has slots of type {name}: keep [Node {name}] until they have another type")
        )
    known = {slot: node_type.name for node_type in node_types for slot in node_type.slots} | slot_types
    return tuple(
        replace(node_type, slots=tuple(slot for slot, name in known.items() if name == node_type.name))
        for node_type in node_types
    )
