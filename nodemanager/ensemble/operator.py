"""What the published gRPC service ``EnsembleOperator`` is asked and answers, as plain values.

The service is for the *members* of an ensemble-operator: processes that run an ensemble and ask for more or fewer
nodes. Protocol: ensemble-python's ``protos/ensemble-service.proto``. Each payload is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from nodemanager.core.untrusted import read_json

NODES_MAX = 1_000_000
NAME_MAX = 200  # characters
_GROW, _SHRINK = "grow", "shrink"


class ReplyStatus(IntEnum):
    """The published numbers of ``Response.ResultType``."""

    UNSPECIFIED = 0
    SUCCESS = 1
    ERROR = 2
    DENIED = 3
    EXISTS = 4


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A member's wish for ``change`` more nodes, or fewer.

    ``nodes``: how many nodes it wants with that change, so that a repeated request changes nothing. Members of
    ensemble-python do not say (None). ``version`` and ``annotations`` are of a node manager that changes the size
    of a MiniCluster: what it has read, and what it records there.
    """

    name: str
    change: int
    nodes: int | None = None
    version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def applied_to(self, nodes: int) -> int:
        """Return the nodes to keep for a member for which ``nodes`` are kept so far."""
        return self.nodes if self.nodes is not None else max(0, nodes + self.change)


class ChangeDenied(Exception):
    """A limit or another member's share stops a change, and nothing was changed. The text says which.

    ``nodes``: how many nodes the member may have now; None if the service does not say.
    """

    def __init__(self, why: str, nodes: int | None = None) -> None:
        super().__init__(why)
        self.nodes = nodes


class ChangeFailed(Exception):
    """The change could not be tried, or nobody knows whether it was made. The text says why.

    ``kind``: a ``FailureKind``, or ``OUTDATED``; "" if there is nothing to tell apart.
    """

    def __init__(self, why: str, kind: str = "") -> None:
        super().__init__(why)
        self.kind = kind


OUTDATED = "outdated"  # the member has read an older version of what it wants to change


class MembersPort(Protocol):
    """What the service acts on: the nodes and queues of its members. Any thread may call the methods."""

    def resize(self, change: SizeChange) -> int:
        """Change the nodes that are kept for a member, and return their new number.

        Raises ``ChangeDenied`` or ``ChangeFailed``.
        """
        ...

    def status(self, name: str) -> Mapping[str, Any]:
        """Return a member's state as JSON: ``nodes``, ``queue``, ``size`` and ``metrics``. Raises ``ChangeFailed``.

        A member that asks is known to live, so the nodes that are kept for it are kept on.
        """
        ...

    def keep(self) -> None:
        """Keep the members' nodes for some more minutes. Called once a minute; what fails is tried again then."""
        ...


def read_change(name: str, action: str, payload: str) -> SizeChange:
    """Read a request for an action. Raises ``ValueError`` that names the fault.

    The number is below the action's name, or 1 if it is absent or 0. The sign of ``shrink`` does not count.
    """
    if not name or len(name) > NAME_MAX:
        raise ValueError(f"the request needs a name of at most {NAME_MAX} characters")
    if action not in {_GROW, _SHRINK}:
        raise ValueError(f'"{action[:NAME_MAX]}" is not an action: use grow or shrink')
    try:
        content = read_json(payload) if payload else {}
    except ValueError as error:
        raise ValueError(f"the payload is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError('the payload must be an object such as {"grow": 2}')  # noqa: TRY004 - one kind of fault
    number = _whole(content.get(action) or 1, action)
    if action == _GROW and number < 0:
        raise ValueError("grow must be above 0")
    nodes = content.get("nodes")
    kept = None if nodes is None else _whole(nodes, "nodes")
    if kept is not None and kept < 0:
        raise ValueError("nodes must be 0 or more")
    return SizeChange(
        name, number if action == _GROW else -abs(number), kept, *_read_basis(content, needs_nodes=kept is None)
    )


def _read_basis(content: Mapping[str, Any], *, needs_nodes: bool) -> tuple[str, Mapping[str, str]]:
    """Read what a node manager adds to its request."""
    version, annotations = content.get("resourceVersion", ""), content.get("annotations", {})
    if not isinstance(version, str) or (version and needs_nodes):
        raise ValueError("resourceVersion must be a text, and needs nodes")
    if not isinstance(annotations, dict) or not all(isinstance(it, str) for it in annotations.values()):
        raise ValueError("annotations must be an object of texts")
    return version, annotations


def _whole(value: object, what: str) -> int:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > NODES_MAX:
        raise ValueError(f"{what} must be a whole number of nodes, not {str(value)[:40]}")
    return number


def make_request(change: int, nodes: int) -> tuple[str, str]:
    """Return the action and the payload that ask for a change other than 0.

    ``version`` and ``group`` are what ensemble-python's service for Kubernetes reads.
    """
    action = _GROW if change > 0 else _SHRINK
    document = {"version": "v1alpha2", "group": "flux-framework.org", action: abs(change), "nodes": nodes}
    return action, json.dumps(document)


def make_resize(change: SizeChange) -> tuple[str, str]:
    """Return the action and the payload by which a node manager changes the size of its MiniCluster."""
    action = _GROW if change.change >= 0 else _SHRINK
    document = {
        action: abs(change.change),
        "nodes": change.nodes,
        "resourceVersion": change.version,
        "annotations": dict(change.annotations),
    }
    return action, json.dumps(document)


def read_resize(status: int, payload: str) -> None:
    """Read the answer to it. Raises ``ChangeDenied`` and ``ChangeFailed``."""
    if status == ReplyStatus.SUCCESS:
        return
    try:
        content = read_json(payload)
        why, nodes, kind = str(content.get("why", "")), content.get("nodes"), str(content.get("kind", ""))
    except (ValueError, AttributeError):
        why, nodes, kind = payload[:200], None, ""
    if status == ReplyStatus.DENIED:
        raise ChangeDenied(why, nodes if isinstance(nodes, int) else None)
    raise ChangeFailed(why or f"the ensemble service answers with status {status}", kind)


def read_reply(status: int, payload: str) -> str:
    """Return why a request was not granted; "" if it was.

    ensemble-python's service without Kubernetes leaves the status unspecified, whatever it is asked.
    """
    if status not in {ReplyStatus.ERROR, ReplyStatus.DENIED}:
        return ""
    what = (
        "the ensemble service denies it"
        if status == ReplyStatus.DENIED
        else "the ensemble service reports an error"
    )
    return what + (f": {why}" if (why := _why(payload)) else "")


def _why(payload: str) -> str:
    try:
        content = read_json(payload) if payload else {}
    except ValueError:
        return payload[:1000]
    return str(content.get("why", ""))[:1000] if isinstance(content, dict) else ""


def read_kept(payload: str) -> int | None:
    """Return how many nodes a status says are kept for the member; None if it does not say."""
    try:
        nodes = read_json(payload)["size"]["asked"]
    except (ValueError, LookupError, TypeError):
        return None
    return nodes if isinstance(nodes, int) else None
