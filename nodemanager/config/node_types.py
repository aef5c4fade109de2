"""Make node types of the sections ``[Node NAME]``: with sizes, prices and the slots of the instance."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from nodemanager.config.price_list import PriceTable
from nodemanager.config.providers import ec2
from nodemanager.config.sections import NODE, Sections
from nodemanager.config.sizes import SizeExpander, read_price_list, regions_of, sizes_on_both_markets
from nodemanager.config.text.flux_toml import (
    ConfigFile,
    FluxConfigError,
    read_promises,
    read_slot_types,
    with_promises,
)
from nodemanager.config.text.ini import Document, Fault
from nodemanager.config.text.settings import CloudSettings, FluxSettings, NodeSettings
from nodemanager.core.slots import Market, NodeType, Size, TypeName


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
            node_types.append(_node_type(name, node, cloud, sizes))
    return tuple(node_types)


def _sizes(
    sections: Sections, name: TypeName, node: NodeSettings, cloud: CloudSettings, table: PriceTable
) -> tuple[Size, ...]:
    """Return the sizes of a node type, or none and add a fault."""
    regions = regions_of(cloud, node.zones or cloud.zones)
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
        zones=ec2.zones_of(node) or ec2.zones_of(cloud),
        placement=node.placement,
        spares=node.spares,
        sizes=sizes,
        max_age_s=node.max_age_s,
        prepaid=node.prepaid,
        prepaid_until_at=node.prepaid_until_at,
        price_until_at=node.price_until_at,
    )


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
