"""RunInstances: all that is asked of EC2 when a node is made, as the parameters of its query API."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nodemanager.cloud.common.libcloud_port import NodeRequest
from nodemanager.cloud.ec2.replies import Disk
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Market

TOKEN_MAX_CHARS = 64  # and ASCII: what EC2 takes for a ClientToken
TAG_VALUE_MAX_CHARS = 256

# What is made with an instance, and tagged as it is: so it is found if it stays behind.
_TAGGED_RESOURCES = ("instance", "volume", "network-interface")


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ec2Placement:
    """Where and as what the nodes of one type are put. ``subnets``: one a zone, in the order of the site.

    ``instance_profile`` is a name or an ARN. "" and empty leave it to the account's defaults.
    """

    subnets: Mapping[str, str] = field(default_factory=_empty)
    security_groups: tuple[str, ...] = ()
    key_name: str = ""
    instance_profile: str = ""


def run_instances(request: NodeRequest, placement: Ec2Placement, disks: Sequence[Disk]) -> dict[str, str]:
    """The parameters that make one node. ``disks``: the volumes that its image brings.

    The same request gives the same parameters: EC2 refuses a token that comes again with others.
    """
    return {
        "ImageId": request.node_type.image,
        "InstanceType": request.node_type.size,
        "MinCount": "1",
        "MaxCount": "1",
        "ClientToken": client_token(request.client_token),
        "UserData": base64.b64encode(request.user_data.encode()).decode(),
        # A node ends its own cost by powering off, also when nobody can tell it to.
        "InstanceInitiatedShutdownBehavior": "terminate",
        # The user-data and the role's keys are given to nobody but root on the node itself, by a session (IMDSv2).
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpEndpoint": "enabled",
        "MetadataOptions.HttpPutResponseHopLimit": "1",
        **_market(request),
        **_zone_and_subnet(request, placement),
        **_numbered("SecurityGroupId", placement.security_groups),
        **({"KeyName": placement.key_name} if placement.key_name else {}),
        **_profile(placement.instance_profile),
        **_disks(disks),
        **_tags(request),
    }


def client_token(token: str) -> str:
    """The token as EC2 takes it: one that is too long, or not ASCII, by its digest."""
    if len(token) <= TOKEN_MAX_CHARS and token.isascii():
        return token
    return hashlib.sha256(token.encode()).hexdigest()


def _market(request: NodeRequest) -> dict[str, str]:
    if request.node_type.market is not Market.SPOT:
        return {}
    return {
        "InstanceMarketOptions.MarketType": "spot",
        # Once, and gone when it is taken away: what is to come instead is ours to decide.
        "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
        "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
    }


def _zone_and_subnet(request: NodeRequest, placement: Ec2Placement) -> dict[str, str]:
    """A subnet lies in one zone, so it says the zone too. Without a zone the first one of the type is meant."""
    zone, subnets = request.zone or next(iter(request.node_type.zones), ""), placement.subnets
    if not subnets:
        return {"Placement.AvailabilityZone": zone} if zone else {}
    if zone and zone not in subnets:
        raise CloudError(
            FailureKind.CONFIG,
            f"no subnet is given for zone {zone}, in which {request.name} was to be made; there are "
            f"{', '.join(subnets)}",
        )
    return {"SubnetId": subnets[zone] if zone else next(iter(subnets.values()))}


def _profile(instance_profile: str) -> dict[str, str]:
    if not instance_profile:
        return {}
    kind = "Arn" if instance_profile.startswith("arn:") else "Name"
    return {f"IamInstanceProfile.{kind}": instance_profile}


def _disks(disks: Sequence[Disk]) -> dict[str, str]:
    """An image may say that its volumes outlive the instance. Ours do not."""
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
        parameters[f"TagSpecification.{number}.ResourceType"] = resource
        for place, (key, value) in enumerate(tags.items(), start=1):
            parameters[f"TagSpecification.{number}.Tag.{place}.Key"] = key
            parameters[f"TagSpecification.{number}.Tag.{place}.Value"] = value
    return parameters


def _numbered(name: str, values: Sequence[str]) -> dict[str, str]:
    return {f"{name}.{number}": value for number, value in enumerate(values, start=1)}
