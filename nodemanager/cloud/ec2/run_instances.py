"""Builds the parameters of RunInstances, the query API call that creates a node."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodemanager.cloud.common.request import NodeRequest
from nodemanager.cloud.ec2.replies import Disk
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market

TOKEN_MAX_CHARS = 64  # EC2's limit for a ClientToken, which must also be ASCII
TAG_VALUE_MAX_CHARS = 256

# EC2 creates these together with an instance. They get the same tags, so a sweep finds them if they are left over.
_TAGGED_RESOURCES = ("instance", "volume", "network-interface")


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ec2Placement:
    """The network and access settings of one node type's nodes.

    ``subnets`` maps a zone to its subnet, in the site's order. ``instance_profile`` is a name or an ARN. An empty
    value means the account's default.
    """

    subnets: Mapping[str, str] = field(default_factory=_empty)
    security_groups: tuple[str, ...] = ()
    key_name: str = ""
    instance_profile: str = ""


def run_instances(
    request: NodeRequest, placement: Ec2Placement, disks: Sequence[Disk], count: int = 1
) -> dict[str, str]:
    """Return the parameters that create ``count`` nodes, or as many of them as EC2 has, but at least one.

    ``disks`` are the volumes that the image defines. The same request always gives the same parameters: EC2 refuses
    a repeated token with other parameters.
    """
    return {
        "ImageId": request.node_type.image,
        "InstanceType": request.node_type.size,
        "MinCount": "1",
        "MaxCount": str(count),
        "ClientToken": client_token(request.client_token),
        "UserData": base64.b64encode(request.user_data.encode()).decode(),
        # A node ends its own cost by powering off, even if the manager is gone.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # Only IMDSv2 sessions on the node itself can read the user-data and the role's keys.
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpEndpoint": "enabled",
        "MetadataOptions.HttpPutResponseHopLimit": "1",
        **_market(request),
        **_zone_and_subnet(request, placement),
        **({"Placement.GroupName": request.group} if request.group else {}),
        **_numbered("SecurityGroupId", placement.security_groups),
        **({"KeyName": placement.key_name} if placement.key_name else {}),
        **_profile(placement.instance_profile),
        **_disks(disks),
        **_tags(request),
    }


def create_placement_group(group: str, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that make a placement group whose instances are close together."""
    return {"GroupName": group, "Strategy": "cluster", **_tag_specification(1, "placement-group", tags)}


def client_token(token: str) -> str:
    """Return the token, or its digest if the token is too long for EC2 or not ASCII."""
    if len(token) <= TOKEN_MAX_CHARS and token.isascii():
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def _market(request: NodeRequest) -> dict[str, str]:
    if request.node_type.market is not Market.SPOT:
        return {}
    return {
        "InstanceMarketOptions.MarketType": "spot",
        # EC2 must not replace a reclaimed node: the manager decides about that.
        "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
        "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
    }


def _zone_and_subnet(request: NodeRequest, placement: Ec2Placement) -> dict[str, str]:
    """Return the subnet or the zone to create the node in. A subnet implies its zone.

    If the request names no zone, the type's first one is used. Raises ``CloudError`` if the zone has no subnet.
    """
    zone, subnets = request.zone or next(iter(request.node_type.zones), ""), placement.subnets
    if not subnets:
        return {"Placement.AvailabilityZone": zone} if zone else {}
    if zone and zone not in subnets:
        raise CloudError(
            FailureKind.CONFIG,
            f"no subnet is configured for zone {zone}, which {request.name} needs; the configured zones are "
            f"{', '.join(subnets)}",
        )
    return {"SubnetId": subnets[zone] if zone else next(iter(subnets.values()))}


def _profile(instance_profile: str) -> dict[str, str]:
    if not instance_profile:
        return {}
    kind = "Arn" if instance_profile.startswith("arn:") else "Name"
    return {f"IamInstanceProfile.{kind}": instance_profile}


def _disks(disks: Sequence[Disk]) -> dict[str, str]:
    """Delete every volume together with its instance, even if the image says otherwise."""
    mapping: dict[str, str] = {}
    for number, disk in enumerate(disks, start=1):
        mapping[f"BlockDeviceMapping.{number}.DeviceName"] = disk.device
        mapping[f"BlockDeviceMapping.{number}.Ebs.VolumeSize"] = disk.size_gib
        mapping[f"BlockDeviceMapping.{number}.Ebs.DeleteOnTermination"] = "true"
    return mapping


def _tags(request: NodeRequest) -> dict[str, str]:
    parameters: dict[str, str] = {}
    tags = {"Name": request.name[:TAG_VALUE_MAX_CHARS], **request.tags}
    for number, resource in enumerate(_TAGGED_RESOURCES, start=1):
        parameters |= _tag_specification(number, resource, tags)
    return parameters


def _tag_specification(number: int, resource: str, tags: Mapping[str, str]) -> dict[str, str]:
    parameters = {f"TagSpecification.{number}.ResourceType": resource}
    for index, (key, value) in enumerate(tags.items(), start=1):
        parameters[f"TagSpecification.{number}.Tag.{index}.Key"] = key
        parameters[f"TagSpecification.{number}.Tag.{index}.Value"] = value
    return parameters


def _numbered(name: str, values: Sequence[str]) -> dict[str, str]:
    return {f"{name}.{number}": value for number, value in enumerate(values, start=1)}
