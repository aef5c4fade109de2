"""The instances of Compute Engine: what a request says of them, and how a listed one is read.

The API: ``Instance``, ``InstanceProperties`` and ``BulkInsertInstanceResource`` in
https://cloud.google.com/compute/docs/reference/rest/v1.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from libcloud.compute.base import Node, NodeDriver
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.request import (
    TAG_BATCH,
    TAG_CLUSTER,
    TAG_LAUNCH,
    NodeRequest,
    batch_from_tags,
    identity_in_batch,
    launch_digest,
    unique_name,
)
from nodemanager.cloud.common.transport import malformed_reply
from nodemanager.core.nodes import Batch, Identity, LaunchId
from nodemanager.core.slots import Market, SlotName

# Labels allow no capitals and no dots, so the identity of a node is in its metadata, and labels serve to find it.
LABEL_CLUSTER = "fnm-cluster"
LABEL_LAUNCH = "fnm-launch"
LABEL_BATCH = "fnm-batch"  # instead, for instances created by one call

# What an account may do is limited by its roles. Google advises this scope for every account of that kind.
_NODE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PARSE_ERRORS = (KeyError, TypeError, ValueError, AttributeError)

_STATES: Mapping[str, NodeState] = MappingProxyType(
    {
        "PROVISIONING": NodeState.PENDING,
        "STAGING": NodeState.PENDING,
        "STOPPING": NodeState.STOPPING,
        # Powered off or preempted. Its disk still costs money, and it stays in the list until it is deleted.
        "TERMINATED": NodeState.ERROR,
        "STOPPED": NodeState.ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class GcePlacement:
    """The network, zones and account of a node type's instances."""

    network: str  # "global/networks/NAME" or "regions/REGION/subnetworks/NAME"
    zones: tuple[str, ...]  # tried in this order
    service_account: str = ""  # its mail address; "": none


# --- requests ---------------------------------------------------------------------------------------------


def instance_name(cluster: str, slot: SlotName, launch: LaunchId) -> str:
    """Return the name of a launch's instance. No other launch has it."""
    return unique_name(f"n-{cluster}-{slot}", launch).lower()


def launch_label(launch: LaunchId) -> dict[str, str]:
    """Return the label of an instance created by a call of its own."""
    return {LABEL_LAUNCH: launch_digest(launch)}


def batch_label(stamp: str) -> dict[str, str]:
    """Return the label of instances created by one call. ``stamp``: of the plan that ordered them; "": no label."""
    return {LABEL_BATCH: launch_digest(LaunchId(stamp))} if stamp else {}


def instance_body(
    zone: str, name: str, request: NodeRequest, placement: GcePlacement, labels: Mapping[str, str], policy: str
) -> dict[str, Any]:
    """Return the request for one instance. ``policy``: the path of its placement policy, "" for none."""
    return {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{request.node_type.size}",
        **_properties(request, placement, labels, near_others=bool(policy)),
        **({"resourcePolicies": [policy]} if policy else {}),
    }


def bulk_body(
    names: Iterable[str], request: NodeRequest, placement: GcePlacement, labels: Mapping[str, str], policy: str
) -> dict[str, Any]:
    """Return the request for instances with these names, or as many of them as the zone has, but at least one.

    Unlike in a request for one instance, the machine type and the placement policy are given by their names.
    """
    named: dict[str, Any] = {name: {} for name in names}
    return {
        "count": str(len(named)),
        "minCount": "1",
        "perInstanceProperties": named,
        "instanceProperties": {
            "machineType": request.node_type.size,
            **_properties(request, placement, labels, near_others=bool(policy)),
            **({"resourcePolicies": [policy.rpartition("/")[2]]} if policy else {}),
        },
    }


def request_id(*parts: str) -> str:
    """Return the UUID by which Google knows a repeated request. The same parts always give the same one."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def _properties(
    request: NodeRequest, placement: GcePlacement, labels: Mapping[str, str], *, near_others: bool
) -> dict[str, Any]:
    node_type, network = request.node_type, placement.network
    items = {
        "startup-script": request.user_data,
        **{_metadata_key(tag): value for tag, value in request.tags.items()},
    }
    properties: dict[str, Any] = {
        "labels": dict(labels),
        "metadata": {"items": [{"key": key, "value": value} for key, value in items.items()]},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": node_type.image}}],
        "networkInterfaces": [{"subnetwork" if "/subnetworks/" in network else "network": network}],
    }
    if placement.service_account:
        properties["serviceAccounts"] = [{"email": placement.service_account, "scopes": [_NODE_SCOPE]}]
    if node_type.gpus or near_others:
        # An instance with GPUs or near others cannot migrate to another host. The request must say so.
        properties["scheduling"] = {"onHostMaintenance": "TERMINATE"}
    if node_type.market is Market.SPOT:
        properties["scheduling"] = {
            "provisioningModel": "SPOT",
            "instanceTerminationAction": "DELETE",
            "automaticRestart": False,
            "onHostMaintenance": "TERMINATE",
        }
    return properties


# --- lists ------------------------------------------------------------------------------------------------


def read_instance(found: Mapping[str, Any], driver: NodeDriver) -> Node:
    """Convert an instance to libcloud's node, without the extra calls that libcloud would make."""
    try:
        zone = str(found["zone"]).rpartition("/")[2]
        interfaces = found.get("networkInterfaces") or []
        accesses = [access for interface in interfaces for access in interface.get("accessConfigs") or []]
        items = (found.get("metadata") or {}).get("items") or []
        return Node(
            f"{zone}/{found['name']}",
            found["name"],
            _STATES.get(found["status"], NodeState.RUNNING),
            [access["natIP"] for access in accesses if access.get("natIP")],
            [interface["networkIP"] for interface in interfaces if interface.get("networkIP")],
            driver,
            extra={
                "metadata": {_tag_of_key(item["key"]): str(item.get("value", "")) for item in items},
                "status": found["status"],
                "instance_type": str(found.get("machineType") or "").rpartition("/")[2],
                "policies": [str(it) for it in found.get("resourcePolicies") or []],
            },
            # libcloud would leave this empty and put the time into ``extra`` only.
            created_at=datetime.fromisoformat(found["creationTimestamp"]),
        )
    except _PARSE_ERRORS as error:
        raise malformed_reply(f"an instance lacks a required field ({error!r})", sorted(found)) from error


def identity_by_name(name: str, tags: Mapping[str, str]) -> Identity | None:
    """Return the identity of an instance that one call created with others, None for any other instance.

    ``tags`` name the whole batch, and the instance's name tells which of its launches it is.
    """
    if TAG_BATCH not in tags or TAG_LAUNCH in tags:
        return None
    batch = batch_from_tags(tags)
    index = _indexes(tags.get(TAG_CLUSTER, ""), batch).get(name) if batch is not None else None
    return identity_in_batch(tags, str(index)) if index is not None else None


@lru_cache(maxsize=256)
def _indexes(cluster: str, batch: Batch) -> Mapping[str, int]:
    """Return the index of each instance in its batch, by its name."""
    return {instance_name(cluster, slot, batch.launch(index)): index for index, slot in enumerate(batch.slots)}


def _metadata_key(tag: str) -> str:
    """Convert a tag to a metadata key, which allows no colon: ``fnm:slot`` becomes ``fnm-slot``."""
    return tag.replace(":", "-", 1)


def _tag_of_key(key: str) -> str:
    """Reverse :func:`_metadata_key`."""
    return key.replace("-", ":", 1) if key.startswith("fnm-") else key
