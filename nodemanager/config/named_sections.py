"""Read the sections with names: node types, peers, ensembles and schedules."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.config.defaults import absolute, with_absolute_uri
from nodemanager.config.sections import ENSEMBLE, NODE, PEER, SCHEDULE, Sections
from nodemanager.config.text.ini import nearest_name
from nodemanager.config.text.settings import EnsembleSettings, NodeSettings, PeerSettings, ScheduleSettings
from nodemanager.core.slots import TypeName

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
