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


@dataclass
class InstanceBucket:
    """EC2's token buckets for RunInstances: one for requests, one for the instances that they ask for.

    Source: "Request throttling for the Amazon EC2 API" in AWS's developer guide.
    """

    now_s: Callable[[], float]
    size: float = 1_000.0
    refill_per_s: float = 2.0
    requests_size: float = 5.0
    requests_refill_per_s: float = 2.0
    throttled: int = 0

    def __post_init__(self) -> None:
        self._left, self._requests_left, self._at_s = self.size, self.requests_size, self.now_s()

    def take(self, count: int) -> bool:
        """Take the tokens of one request for ``count`` instances. A refused request takes none."""
        passed_s, self._at_s = self.now_s() - self._at_s, self.now_s()
        self._left = min(self.size, self._left + passed_s * self.refill_per_s)
        self._requests_left = min(self.requests_size, self._requests_left + passed_s * self.requests_refill_per_s)
        if self._left < count or self._requests_left < 1:
            self.throttled += 1
            return False
        self._left -= count
        self._requests_left -= 1
        return True
