"""The description of the HTTP API for machines (OpenAPI 3.0), made from the list of endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

STATUS_DESCRIPTIONS: Mapping[int, str] = {
    200: "The answer",
    202: "Accepted, not yet on record",
    400: "The request is not valid",
    401: "The token is needed",
    403: "The token may not steer",
    404: "Nothing has that name",
    409: "Not possible at the moment",
    413: "The body is too large",
    503: "Not available at the moment",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation. ``location``: path or query."""

    name: str
    location: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. ``secured``: it may need the token."""

    method: str
    path: str
    summary: str
    parameters: Sequence[Parameter]
    statuses: Sequence[int]
    secured: bool
    body: Mapping[str, Any] | None


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "flux-node-manager",
            "version": version("flux-node-manager"),
            "description": "Names of times end in _at (seconds since the epoch), names of durations in _s. "
            "Money is an estimate.",
        },
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "summary": operation.summary,
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.location,
                "required": parameter.location == "path",
                "description": parameter.description,
                "schema": parameter.schema,
            }
            for parameter in operation.parameters
        ],
        "responses": {str(status): {"description": STATUS_DESCRIPTIONS[status]} for status in operation.statuses},
    }
    if operation.body is not None:
        made["requestBody"] = {"content": {"application/json": {"schema": operation.body}}}
    if operation.secured:
        made["security"] = [{"token": []}]
    return made
