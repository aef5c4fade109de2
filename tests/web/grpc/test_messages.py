"""The declared messages are those that ensemble-python publishes."""

from __future__ import annotations

import pytest

from nodemanager.ensemble.operator import ReplyStatus
from nodemanager.web.grpc.messages import declare, load_messages

pytest.importorskip("google.protobuf", reason="the extra ensemble is not installed")

# What ensemble-python 0.0.16 publishes (its ensemble_service_pb2.py), without the option go_package.
PUBLISHED = (
    b"\n\x16ensemble-service.proto\x12\x1econvergedcomputing.org.grpc.v1"
    b'"-\n\rStatusRequest\x12\x0e\n\x06member\x18\x01 \x01(\t\x12\x0c\n\x04name\x18\x02 \x01(\t'
    b'"N\n\rActionRequest\x12\x0e\n\x06member\x18\x01 \x01(\t\x12\x0c\n\x04name\x18\x02 \x01(\t'
    b"\x12\x0e\n\x06action\x18\x03 \x01(\t\x12\x0f\n\x07payload\x18\x04 \x01(\t"
    b'"\xaf\x01\n\x08Response\x12\x0f\n\x07payload\x18\x01 \x01(\t\x12C\n\x06status\x18\x04 \x01(\x0e'
    b'23.convergedcomputing.org.grpc.v1.Response.ResultType"M\n\nResultType\x12\x0f\n\x0bUNSPECIFIED\x10\x00'
    b"\x12\x0b\n\x07SUCCESS\x10\x01\x12\t\n\x05ERROR\x10\x02\x12\n\n\x06DENIED\x10\x03\x12\n\n\x06EXISTS\x10\x04"
    b"2\xe6\x01\n\x10EnsembleOperator\x12h\n\rRequestStatus\x12-.convergedcomputing.org.grpc.v1.StatusRequest"
    b"\x1a(.convergedcomputing.org.grpc.v1.Response\x12h\n\rRequestAction"
    b"\x12-.convergedcomputing.org.grpc.v1.ActionRequest\x1a(.convergedcomputing.org.grpc.v1.Response"
    b"b\x06proto3"
)


def test_the_declaration_is_the_published_one_byte_for_byte() -> None:
    assert declare().SerializeToString(deterministic=True) == PUBLISHED


def test_a_request_of_the_published_client_is_read() -> None:
    # As ensemble-python's client sent it.
    sent = b'\n\x0cminiclusters\x12\x04mini\x1a\x04grow"\x0b{"grow": 2}'
    request = load_messages().action_request.FromString(sent)
    assert (request.member, request.name, request.action, request.payload) == (
        "miniclusters", "mini", "grow", '{"grow": 2}',
    )  # fmt: skip


def test_the_status_has_the_published_number_and_field() -> None:
    response = load_messages().response(payload="p", status=int(ReplyStatus.DENIED))
    assert response.SerializeToString() == b"\n\x01p\x20\x03"
