"""``provider = local``: the cloud port whose nodes are processes on this machine."""

from __future__ import annotations

from pathlib import Path

from libcloud.compute.base import Node, NodeImage, NodeSize

from nodemanager.cloud.common.libcloud_port import LibcloudPort, NodeRequest, UserDataSource
from nodemanager.cloud.local.driver import LocalNodeDriver
from nodemanager.cloud.local.faults import Faults
from nodemanager.core.ports import Clock

_MIB = 2**20


class LocalCloud(LibcloudPort):
    """The cloud port of the nodes in ``directory``.

    To inject faults, set ``driver.faults`` or write ``directory/faults.json``.
    """

    def __init__(
        self,
        directory: Path,
        cluster: str,
        cluster_uuid: str,
        user_data: UserDataSource,
        clock: Clock,
        *,
        boot_delay_s: float = 0.0,
        terminated_ttl_s: float = 60.0,
    ) -> None:
        self.driver = LocalNodeDriver(
            directory,
            wall_at=clock.wall_at,
            faults=Faults(boot_delay_s=boot_delay_s),
            terminated_ttl_s=terminated_ttl_s,
        )
        super().__init__(self.driver, cluster, cluster_uuid, user_data, clock)

    def _create_node(self, request: NodeRequest) -> Node:
        node_type = request.node_type
        ram_mib = node_type.memory_bytes // _MIB
        price = float(node_type.price_per_hour)
        return self.driver.create_node(
            request.name,
            NodeSize(node_type.size, node_type.size, ram_mib, 0, 0, price, self.driver),
            NodeImage(node_type.image, node_type.image, self.driver),
            ex_userdata=request.user_data,
            ex_metadata=request.tags,
            ex_clienttoken=request.client_token,
        )
