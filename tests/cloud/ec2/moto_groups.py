"""Placement groups for the front, which moto lacks. Names, states and refusals are those of EC2's reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from xml.sax.saxutils import escape

from tests.cloud.ec2.moto_faults import Parameters, Refused

_TAG_KEY = re.compile(r"TagSpecification\.1\.Tag\.(\d+)\.Key")


class MotoGroups:
    """The placement groups of one account. ``users`` returns the groups of the instances that exist."""

    def __init__(self, namespace: str, users: Callable[[], set[str]]) -> None:
        self.tags: dict[str, Mapping[str, str]] = {}  # of each group
        self._namespace = namespace
        self._users = users

    def answer(self, parameters: Parameters) -> bytes:
        match parameters["Action"]:
            case "CreatePlacementGroup":
                return self._create(parameters)
            case "DeletePlacementGroup":
                return self._delete(parameters["GroupName"])
            case _:
                return self._describe(parameters)

    def require(self, group: str) -> None:
        if group not in self.tags:
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")

    def _create(self, parameters: Parameters) -> bytes:
        group = parameters["GroupName"]
        if group in self.tags:
            raise Refused("InvalidPlacementGroup.Duplicate", f"The Placement Group '{group}' already exists.")
        if (
            parameters["Strategy"] != "cluster"
            or parameters["TagSpecification.1.ResourceType"] != "placement-group"
        ):
            raise Refused("InvalidParameterValue", "a cluster group with tags of its own is expected")
        numbers = [found[1] for name in parameters if (found := _TAG_KEY.fullmatch(name))]
        self.tags[group] = {
            parameters[f"TagSpecification.1.Tag.{number}.Key"]: parameters[f"TagSpecification.1.Tag.{number}.Value"]
            for number in numbers
        }
        return self._reply("CreatePlacementGroup", "<return>true</return>")

    def _delete(self, group: str) -> bytes:
        self.require(group)
        if group in self._users():
            raise Refused("InvalidPlacementGroup.InUse", f"The placement group '{group}' is in use.")
        del self.tags[group]
        return self._reply("DeletePlacementGroup", "<return>true</return>")

    def _describe(self, parameters: Parameters) -> bytes:
        key, value = parameters["Filter.1.Name"].removeprefix("tag:"), parameters["Filter.1.Value.1"]
        items = "".join(
            f"<item><groupName>{escape(group)}</groupName><strategy>cluster</strategy><state>available</state></item>"
            for group, tags in self.tags.items()
            if tags.get(key) == value
        )
        return self._reply("DescribePlacementGroups", f"<placementGroupSet>{items}</placementGroupSet>")

    def _reply(self, action: str, content: str) -> bytes:
        return f'<{action}Response xmlns="{self._namespace}/">{content}</{action}Response>'.encode()
