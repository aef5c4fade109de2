"""``provider = openstack``: the cloud port on Nova.

Nova has no idempotency token. So a node carries its identity in its metadata and in two server tags, by which it
is looked for before its create is sent: one that was carried out and not answered is found, not repeated. Whether
there is room shows only after the create was taken: a server that ends in ERROR says why in its fault.
"""

from __future__ import annotations

import base64
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.libcloud_port import TAG_LAUNCH, NodeRequest, UserDataSource, cloud_error
from nodemanager.cloud.common.names import launch_digest, unique_name
from nodemanager.cloud.common.retrying_port import RetryingPort, Sleep
from nodemanager.cloud.openstack.driver import NovaDriver, OpenStackAccount
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, LaunchId, ProviderId
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import TypeName

_QUOTA_WORDS = re.compile(r"quota|maximum number of (?!retries)|limit exceeded", re.IGNORECASE)
_FORBIDDEN, _TOO_LARGE = 403, 413


@dataclass(frozen=True, slots=True)
class OpenStackPlacement:
    """What the servers of a node type get beside flavor and image."""

    networks: tuple[str, ...]  # by id or name; Nova takes no server without
    security_groups: tuple[str, ...] = ()
    key_name: str = ""
    config_drive: bool = False


class OpenStackCloud(RetryingPort):
    """One project in one region, and the servers in it that carry our cluster's tag."""

    def __init__(
        self,
        account: OpenStackAccount,
        placements: Mapping[TypeName, OpenStackPlacement],
        cluster: str,
        cluster_uuid: str,
        user_data: UserDataSource,
        clock: Clock,
        *,
        call_timeout_s: float = 60.0,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.driver = NovaDriver(account, call_timeout_s)
        super().__init__(
            self.driver, cluster, cluster_uuid, user_data, clock, call_timeout_s=call_timeout_s, sleep=sleep
        )
        self._placements = placements
        self._ids: dict[tuple[str, str], str] = {}  # of flavors, images and networks, by kind and name

    def destroy(self, provider_id: ProviderId) -> None:
        if _is_uuid(provider_id):  # nothing at Nova has an id of another form
            super().destroy(provider_id)

    def _fetch_nodes(self) -> Sequence[Node]:
        return self.driver.tagged_servers((cluster_tag(self._cluster),))

    def _create_node(self, request: NodeRequest) -> Node:
        started_s = self._clock.monotonic_s()
        made = self._find_existing(LaunchId(request.tags[TAG_LAUNCH]))
        if made is not None:
            return made
        server = self._server_body(request)
        self._refuse_late_create(started_s)
        server_id = self._post_server(server)
        try:
            return self._read_with_retries(lambda: self.driver.server(server_id))
        except CloudError:
            # It exists: what is not known of it now, the next list will say.
            return Node(server_id, request.name, NodeState.PENDING, [], [], self.driver, extra=_extra(request.tags))

    def _find_existing(self, launch: LaunchId) -> Node | None:
        tags = (cluster_tag(self._cluster), launch_tag(launch))
        found = self._read_with_retries(lambda: self.driver.tagged_servers(tags))
        return next((node for node in found if self._was_made_for(node, launch)), None)

    def _server_body(self, request: NodeRequest) -> dict[str, Any]:
        """The body of the create, everything looked up that the site has by name."""
        node_type, launch = request.node_type, LaunchId(request.tags[TAG_LAUNCH])
        placement = self._placements[node_type.name]
        wanted = {
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
        return {key: value for key, value in wanted.items() if value or key == "networks"}

    def _look_up_id(self, kind: str, name: str, look_up: Callable[[str], str]) -> str:
        if kind != "flavor" and _is_uuid(name):
            return name
        if (kind, name) not in self._ids:
            self._ids[kind, name] = self._read_with_retries(lambda: look_up(name))
        return self._ids[kind, name]

    def _post_server(self, server: Mapping[str, Any]) -> str:
        try:
            with self._as_cloud_errors(creating=True):
                return self.driver.post_server(server)
        except CloudError as error:
            if error.kind is FailureKind.CONFIG:
                self._ids.clear()  # what was looked up may be there anew, under its old name
            raise

    def _tags(self, node: Node) -> Mapping[str, str]:
        metadata = node.extra["metadata"]
        return metadata if isinstance(metadata, dict) else {}

    def _died_because(self, node: Node) -> str:
        if node.state != NodeState.ERROR:
            return ""
        fault = node.extra.get("fault")
        message = fault.get("message") if isinstance(fault, dict) else None
        return str(message or "").strip() or "in state ERROR, and no fault is shown"

    def _cloud_node(self, node: Node) -> CloudNode:
        seen = super()._cloud_node(node)
        if node.extra.get("task_state") == "deleting":
            return replace(seen, state=CloudState.STOPPING)
        if seen.state is not CloudState.FAILED:
            return seen
        # Another type may be had, and this one again later: so it is with whatever a host or the scheduler says.
        of_quota = _QUOTA_WORDS.search(seen.died_because) is not None
        return replace(seen, died_of=FailureKind.QUOTA if of_quota else FailureKind.CAPACITY)

    def _to_cloud_error(self, error: BaseHTTPError | LibcloudError | OSError, *, creating: bool) -> CloudError:
        failed = super()._to_cloud_error(error, creating=creating)
        status = getattr(error, "code", None)
        if status == _FORBIDDEN and _QUOTA_WORDS.search(failed.detail):
            kind = FailureKind.QUOTA
        elif status == _TOO_LARGE:  # of old it said that too much was asked, at once or at all
            kind = FailureKind.THROTTLED if failed.retry_after_s else FailureKind.QUOTA
        else:
            return failed
        return cloud_error(kind, failed.detail, failed.retry_after_s)


def cluster_tag(cluster: str) -> str:
    """The server tag of all nodes of a cluster's name. Tags have 60 characters at the most, and no "," or "/"."""
    return f"fnm-cluster-{cluster}"


def launch_tag(launch: LaunchId) -> str:
    """The server tag of one launch."""
    return f"fnm-launch-{launch_digest(launch)}"


def _extra(metadata: Mapping[str, str]) -> dict[str, object]:
    return {"metadata": dict(metadata)}


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
