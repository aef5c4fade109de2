"""Load ``site.ini`` into a :class:`Site`, or report every fault of the file at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from uuid import UUID

from pydantic import SecretStr

from nodemanager.config import clouds as several
from nodemanager.config.clouds import CloudSection
from nodemanager.config.contradictions import contradictions, provider_faults, simulated_clouds, unknown_sources
from nodemanager.config.defaults import (
    absolute,
    complete_cloud,
    complete_flux,
    complete_join,
    complete_web,
    with_default_misfit,
)
from nodemanager.config.fingerprints import with_fingerprints
from nodemanager.config.named_sections import read_ensembles, read_nodes, read_peers, read_schedules
from nodemanager.config.node_types import node_types_of, with_configured_slots
from nodemanager.config.sections import Sections, without_credentials
from nodemanager.config.site import ConfigError, Site, name_file, uuid_file
from nodemanager.config.text import credentials
from nodemanager.config.text.ini import Document, Fault, nearest_name, read_ini
from nodemanager.config.text.settings import (
    NEVER,
    BudgetSettings,
    CloudSettings,
    DisruptionSettings,
    FluxSettings,
    JoinMethod,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    NodeSettings,
    NotifySettings,
    PolicySettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    WebSettings,
)
from nodemanager.core.slots import CloudName, NodeType, TypeName


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
        read = {it: self._sections.read(it.section, CloudSettings) for it in sections}
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
