"""Faults that are injected into calls on their way to moto, and the record of those calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Parameters = Mapping[str, str]
Rewrite = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Received:
    """One call as it arrived."""

    action: str
    method: str
    query: str
    headers: Mapping[str, str]
    parameters: Parameters


@dataclass
class Fault:
    """A fault in the next ``times`` calls of an action.

    ``code``: the call is refused and has no effect. ``lost``: the call takes effect without an answer. ``rewrite``:
    the reply is replaced.
    """

    action: str
    code: str = ""
    status: int = 400
    times: int = 1
    zone: str = ""
    size: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False
    rewrite: Rewrite | None = None
    where: Parameters = field(default_factory=dict)  # applies only to calls with these parameters

    def concerns(self, parameters: Parameters) -> bool:
        return (
            self.action in ("", parameters["Action"])
            and self.zone in ("", parameters.get("Placement.AvailabilityZone"))
            and self.size in ("", parameters.get("InstanceType"))
            and self.where.items() <= parameters.items()
        )


class Refused(Exception):
    def __init__(
        self, code: str, message: str, status: int = 400, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code)
        self.code, self.message, self.status, self.headers = code, message, status, headers or {}
