"""Compute the fingerprint of what the nodes of each type are made from: image, size, network, user-data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodemanager.config.text.settings import CloudSettings, FluxSettings, JoinSettings, NodeSettings
from nodemanager.core.slots import NodePlacement, NodeType, TypeName
from nodemanager.core.upkeep.rules import fingerprint_of

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
