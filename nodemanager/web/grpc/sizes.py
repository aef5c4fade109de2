"""The node manager of a MiniCluster asks the gRPC service of its ensemble to change the size."""

from __future__ import annotations

from typing import Any

from nodemanager.cloud.minicluster.client import Conflict
from nodemanager.cloud.minicluster.objects import MiniCluster
from nodemanager.cloud.minicluster.port import SizeDenied
from nodemanager.cloud.minicluster.resize import Allowance, Resize
from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from nodemanager.ensemble.operator import (
    OUTDATED,
    ChangeDenied,
    ChangeFailed,
    SizeChange,
    make_resize,
    read_resize,
)
from nodemanager.web.grpc.client import MEMBER, open_channel
from nodemanager.web.grpc.material import MaterialUnusable, MemberMaterial, member_material, read_address
from nodemanager.web.grpc.messages import SERVICE, GrpcMissing, load_grpc, load_messages
from nodemanager.web.listen import TcpAddress

_KINDS = {
    "UNAUTHENTICATED": FailureKind.CREDENTIALS,
    "RESOURCE_EXHAUSTED": FailureKind.THROTTLED,
    "UNIMPLEMENTED": FailureKind.CONFIG,
}


class EnsembleSizes:
    """:class:`nodemanager.cloud.minicluster.port.SizeService` by gRPC. ``material`` None is without TLS and token.

    Making one raises ``GrpcMissing``. Any thread may call it.
    """

    def __init__(self, address: TcpAddress, material: MemberMaterial | None, *, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._messages = load_messages()
        self._ask: Any = open_channel(address, material).unary_unary(
            f"/{SERVICE}/RequestAction",
            request_serializer=self._messages.action_request.SerializeToString,
            response_deserializer=self._messages.response.FromString,
        )

    def change(self, found: MiniCluster, change: Resize) -> None:
        annotations = (change.patch or {}).get("metadata", {}).get("annotations", {})
        asked = SizeChange(
            found.name, change.size - found.size, change.size - 1, found.resource_version, annotations
        )
        action, payload = make_resize(asked)
        reply = self._call(
            self._messages.action_request(member=MEMBER, name=found.name, action=action, payload=payload)
        )
        try:
            read_resize(reply.status, reply.payload)
        except ChangeDenied as denied:
            nodes = denied.nodes if denied.nodes is not None else found.size - 1
            raise SizeDenied(Allowance(1 + nodes, str(denied))) from denied
        except ChangeFailed as failed:
            if failed.kind == OUTDATED:
                raise Conflict(str(failed)) from failed
            kind = FailureKind(failed.kind) if failed.kind in set(FailureKind) else FailureKind.TRANSIENT
            raise CloudError(kind, f"the ensemble service: {failed}") from failed

    def _call(self, request: Any) -> Any:
        try:
            return self._ask(request, timeout=self._timeout_s)
        except load_grpc().RpcError as error:
            fault: Any = error
            # Without an answer, nobody knows whether the size has changed.
            kind = _KINDS.get(fault.code().name, FailureKind.AMBIGUOUS)
            where = f"the ensemble service {self._address.host}:{self._address.port}"
            raise CloudError(kind, f"{where}: {str(fault.details())[:300]}") from error


def connect_sizes(site: Site) -> EnsembleSizes:
    """Return the connection to the service of ``[Cloud] service``. Raises :class:`CloudError`."""
    cloud = site.cloud
    try:
        load_grpc()
        address = read_address(cloud.service, plaintext=False)
        material = member_material(cloud.service_material)
    except GrpcMissing as error:
        raise CloudError(FailureKind.CONFIG, str(error)) from error
    except MaterialUnusable as error:
        raise CloudError(FailureKind.CREDENTIALS, str(error)) from error
    return EnsembleSizes(address, material, timeout_s=cloud.call_timeout_s)
