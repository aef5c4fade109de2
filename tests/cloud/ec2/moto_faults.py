"""What is done to calls on their way to moto, and how they are written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Parameters = Mapping[str, str]
Rewrite = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Received:
    """One call, as it came over the wire."""

    action: str
    method: str
    query: str
    headers: Mapping[str, str]
    parameters: Parameters


@dataclass
class Fault:
    """What is done to the next ``times`` calls of an action. ``code``: refused, and not carried out.

    ``lost``: carried out, and never answered. ``rewrite``: answered with something else.
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
    where: Parameters = field(default_factory=dict)  # of calls with these parameters only

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
