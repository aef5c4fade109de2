"""``provider = openstack``: the cloud port for Nova.

Nova has no idempotency token. So each node carries its identity in its metadata, and two server tags to find it by.
Before a create, the port looks for a server with the launch's tags. If an earlier create succeeded and its reply
was lost, the port finds that server instead of creating a second one. Nova reports a lack of capacity only after it
has accepted a create: the server ends in state ERROR, and its fault gives the reason.
"""

from __future__ import annotations

import base64
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.leftovers import KnownGroups
from nodemanager.cloud.common.libcloud_port import LibcloudPort, cloud_error
from nodemanager.cloud.common.request import TAG_LAUNCH, NodeRequest, PortSettings, launch_digest, unique_name
from nodemanager.cloud.openstack.driver import Login, NovaDriver
from nodemanager.config.site import Site
from nodemanager.core.nodes import (
    CloudNode,
    CloudState,
    FailureKind,
    Launch,
    LaunchId,
    Leftover,
    LeftoverKind,
    ProviderId,
    group_prefix,
)
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType, TypeName

_QUOTA_WORDS = re.compile(r"quota|maximum number of (?!retries)|limit exceeded", re.IGNORECASE)
_FORBIDDEN, _TOO_LARGE = 403, 413


@dataclass(frozen=True, slots=True)
class OpenStackPlacement:
    """The settings of a node type's servers other than flavor and image."""

    networks: tuple[str, ...]  # ids or names; Nova requires at least one
    security_groups: tuple[str, ...] = ()
    key_name: str = ""
    config_drive: bool = False


class OpenStackCloud(LibcloudPort):
    """The cloud port of one project in one region. It sees only servers with the cluster's tag."""

    def __init__(
        self,
        login: Login,
        settings: PortSettings,
        placements: Mapping[TypeName, OpenStackPlacement],
        making_group: threading.Lock | None = None,
    ) -> None:
        """``making_group``: shared by a process's ports. Nova makes two groups of one name if it is asked twice."""
        self.driver = NovaDriver(login, settings.call_timeout_s)
        super().__init__(self.driver, settings)
        self._placements = placements
        self._making_group = making_group or threading.Lock()
        self._groups = KnownGroups(self._make_group, _names_missing_group)
        self._ids: dict[tuple[str, str], str] = {}  # cache: (kind, name) of a flavor, image or network -> id

    def destroy(self, provider_id: ProviderId) -> None:
        """Delete a server. One that no longer exists is no error. Raises :class:`CloudError`."""
        if _is_uuid(provider_id):  # no server can have another form of id
            super().destroy(provider_id)

    def _leftovers(self) -> frozenset[Leftover]:
        """Return the cluster's server groups without servers."""
        groups = self._unless_forbidden(self._empty_groups)
        return frozenset(Leftover(LeftoverKind.GROUP, ProviderId(id_)) for id_ in groups)

    def _empty_groups(self) -> Mapping[str, str]:
        """Return the names of the cluster's server groups without members, by id."""
        return {str(it["id"]): str(it.get("name")) for it in self._our_groups() if not it.get("members")}

    def _our_groups(self) -> list[dict[str, Any]]:
        prefix = group_prefix(self._cluster_uuid)
        return [it for it in self.driver.groups() if str(it.get("name")).startswith(prefix)]

    def _remove(self, leftover: Leftover) -> None:
        with self._ignoring_gone():
            self.driver.delete_group(leftover.provider_id)

    def _make_group(self, group: str) -> str:
        """Return the id of the server group of this name. Make it if there is none."""
        with self._making_group:
            found = self._read_with_retries(self._our_groups)
            ids = sorted(str(it["id"]) for it in found if it.get("name") == group)
            if ids:
                return ids[0]
            with self._as_cloud_errors():
                return self.driver.post_group(group)

    def _fetch_nodes(self) -> Sequence[Node]:
        return self.driver.tagged_servers((cluster_tag(self._cluster),))

    def _create_node(self, request: NodeRequest) -> Node:
        started_s = self._clock.monotonic_s()
        existing = self._find_existing(LaunchId(request.tags[TAG_LAUNCH]))
        if existing is not None:
            return existing
        server = self._server_body(request)

        def post(group_id: str) -> str:
            self._settings.refuse_late_create(started_s)
            return self._post_server(server, group_id)

        server_id = self._groups.create_in(request.group, post)
        try:
            return self._read_with_retries(lambda: self.driver.server(server_id))
        except CloudError:
            # The server exists. The next list shows its details.
            return Node(server_id, request.name, NodeState.PENDING, [], [], self.driver, extra=_extra(request.tags))

    def look_up(self, launch: Launch, node_type: NodeType) -> None:
        """Look up everything that a create would name. Raises :class:`CloudError` if something does not exist."""
        self._server_body(self._settings.request(launch, node_type))

    def limits(self) -> Mapping[str, Any]:
        """Return Nova's absolute limits of the project. Raises :class:`CloudError`."""
        return self._read_with_retries(self.driver.limits)

    def _find_existing(self, launch: LaunchId) -> Node | None:
        tags = (cluster_tag(self._cluster), launch_tag(launch))
        found = self._read_with_retries(lambda: self.driver.tagged_servers(tags))
        return next((node for node in found if self._was_made_for(node, launch)), None)

    def _server_body(self, request: NodeRequest) -> dict[str, Any]:
        """Return the body of the create. Looks up the ids of everything that the site names."""
        node_type, launch = request.node_type, LaunchId(request.tags[TAG_LAUNCH])
        placement = self._placements[node_type.name]
        body = {
            "name": unique_name(request.name, launch),
            "flavorRef": self._look_up_id("flavor", node_type.size, self.driver.flavor_id),
            "imageRef": self._look_up_id("image", node_type.image, self.driver.image_id),
            "networks": [
                {"uuid": self._look_up_id("network", name, self.driver.network_id)} for name in placement.networks
            ],
            "metadata": dict(request.tags),
            "tags": [cluster_tag(self._cluster), launch_tag(launch)],
            "user_data": base64.b64encode(request.user_data.encode()).decode("ascii"),
            "security_groups": [{"name": name} for name in placement.security_groups],
            "key_name": placement.key_name,
            "config_drive": placement.config_drive,
            "availability_zone": request.zone or next(iter(node_type.zones), ""),
        }
        return {key: value for key, value in body.items() if value or key == "networks"}

    def _look_up_id(self, kind: str, name: str, look_up: Callable[[str], str]) -> str:
        if kind != "flavor" and _is_uuid(name):
            return name
        if (kind, name) not in self._ids:
            self._ids[kind, name] = self._read_with_retries(lambda: look_up(name))
        return self._ids[kind, name]

    def _post_server(self, server: Mapping[str, Any], group_id: str) -> str:
        try:
            with self._as_cloud_errors(creating=True):
                return self.driver.post_server(server, group_id)
        except CloudError as error:
            if error.kind is FailureKind.CONFIG:
                self._ids.clear()  # a name may refer to a new id by now
            raise

    def _tags(self, node: Node) -> Mapping[str, str]:
        metadata = node.extra["metadata"]
        return metadata if isinstance(metadata, dict) else {}

    def _died_because(self, node: Node) -> str:
        if node.state != NodeState.ERROR:
            return ""
        fault = node.extra.get("fault")
        message = fault.get("message") if isinstance(fault, dict) else None
        return str(message or "").strip() or "in state ERROR, without a fault"

    def _cloud_node(self, node: Node) -> CloudNode:
        seen = super()._cloud_node(node)
        if node.extra.get("task_state") == "deleting":
            return replace(seen, state=CloudState.STOPPING)
        if seen.state is not CloudState.FAILED:
            return seen
        # Treat every fault but a quota as a lack of capacity: another type may work, and so may this one later.
        is_quota = _QUOTA_WORDS.search(seen.died_because) is not None
        return replace(seen, died_of=FailureKind.QUOTA if is_quota else FailureKind.CAPACITY)

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        failed = super()._to_cloud_error(error, creating=creating)
        status = getattr(error, "code", None)
        if status == _FORBIDDEN and _QUOTA_WORDS.search(failed.detail):
            kind = FailureKind.QUOTA
        elif status == _TOO_LARGE:  # old services answer 413 for both throttling and quota
            kind = FailureKind.THROTTLED if failed.retry_after_s else FailureKind.QUOTA
        else:
            return failed
        return cloud_error(kind, failed.detail, failed.retry_after_s)


def _names_missing_group(error: CloudError) -> bool:
    return "Instance group" in error.detail and "could not be found" in error.detail


def cluster_tag(cluster: str) -> str:
    """Return the server tag for all nodes of a cluster. Nova allows 60 characters in a tag, and no "," or "/"."""
    return f"fnm-cluster-{cluster}"


def launch_tag(launch: LaunchId) -> str:
    """Return the server tag for the node of one launch."""
    return f"fnm-launch-{launch_digest(launch)}"


def _extra(metadata: Mapping[str, str]) -> dict[str, object]:
    return {"metadata": dict(metadata)}


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


# --- the ports of a site ----------------------------------------------------------------------------------


def ports_of(site: Site, settings: PortSettings) -> Callable[[], OpenStackCloud]:
    """Return a factory of ports. Each port logs in on its own."""
    login, placements = login_of(site), placements_of(site)
    making_group = threading.Lock()
    return lambda: OpenStackCloud(login, settings, placements, making_group)


def login_of(site: Site) -> Login:
    """Return the login in the site's credentials."""
    login = Login.from_credentials(site.cloud.auth_url, site.cloud.region, site.secrets)
    return replace(login, microversion=site.cloud.microversion)


def placements_of(site: Site) -> dict[TypeName, OpenStackPlacement]:
    """Return each node type's placement: the keys in its own section, or else those in ``[Cloud]``."""
    cloud = site.cloud
    return {
        name: OpenStackPlacement(
            networks=tuple((node.network or cloud.network).split(",")),
            security_groups=node.security_groups or cloud.security_groups,
            key_name=node.key_name or cloud.key_name,
            config_drive=cloud.config_drive,
        )
        for name, node in site.nodes.items()
    }
