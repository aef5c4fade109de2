"""The messages of the published service, declared here instead of generated, and the way to import gRPC.

Source: ensemble-python 0.0.16, ``protos/ensemble-service.proto``. A test compares the declaration with the one that
ensemble-python publishes. Its descriptors are in a pool of their own, so both can be in one process.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from nodemanager.ensemble.operator import ReplyStatus

PACKAGE = "convergedcomputing.org.grpc.v1"
SERVICE = f"{PACKAGE}.EnsembleOperator"
FILE = "ensemble-service.proto"
_STRING, _ENUM = 9, 14  # FieldDescriptorProto.Type
_OPTIONAL = 1  # FieldDescriptorProto.Label
_FIELDS = {
    "StatusRequest": {"member": 1, "name": 2},
    "ActionRequest": {"member": 1, "name": 2, "action": 3, "payload": 4},
    "Response": {"payload": 1, "status": 4},
}


class GrpcMissing(Exception):
    """The extra ``ensemble`` is not installed. The message says how to get it."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The classes of the three messages. They carry no types."""

    status_request: Any
    action_request: Any
    response: Any


def load_grpc() -> Any:
    """Import gRPC, which takes 0.2 s and 20 MB. Raises ``GrpcMissing``."""
    try:
        return import_module("grpc")
    except ImportError as error:
        raise GrpcMissing(
            f"gRPC cannot be imported: {error}. Install it: pip install 'flux-node-manager[ensemble]'"
        ) from error


def load_messages() -> Messages:
    """Make the messages' classes. Raises ``GrpcMissing``."""
    try:
        pools, factory = (
            import_module("google.protobuf.descriptor_pool"),
            import_module("google.protobuf.message_factory"),
        )
    except ImportError as error:
        raise GrpcMissing(
            f"protobuf cannot be imported: {error}. Install it: pip install 'flux-node-manager[ensemble]'"
        ) from error
    pool = pools.DescriptorPool()
    pool.Add(declare())
    made = [factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS]
    return Messages(*made)


def declare() -> Any:
    """Return the declaration of the file, a ``FileDescriptorProto``."""
    file = import_module("google.protobuf.descriptor_pb2").FileDescriptorProto(
        name=FILE, package=PACKAGE, syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number in fields.items():
            message.field.add(name=field, number=number, type=_STRING, label=_OPTIONAL)
    status = message.field[-1]
    status.type, status.type_name = _ENUM, f".{PACKAGE}.Response.ResultType"
    kinds = message.enum_type.add(name="ResultType")
    for kind in ReplyStatus:
        kinds.value.add(name=kind.name, number=kind)
    service = file.service.add(name="EnsembleOperator")
    for method, request in (("RequestStatus", "StatusRequest"), ("RequestAction", "ActionRequest")):
        service.method.add(name=method, input_type=f".{PACKAGE}.{request}", output_type=f".{PACKAGE}.Response")
    return file
