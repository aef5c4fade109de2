"""How many creates may be sent now: single ones, and calls that create several nodes each."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf

from nodemanager.core.orders import CreateNode, key_of_call
from nodemanager.core.slots import CloudName
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot


@dataclass(slots=True)
class CreateCalls:
    """The create calls of one plan to one cloud. ``credit``: how many more may begin now."""

    nodes_per_call: int
    credit: float
    _places: dict[Hashable, int] = field(default_factory=dict)  # free in the last call for nodes of each kind

    def fits(self, order: CreateNode) -> bool:
        """Whether a call of this plan can create the node."""
        return self.credit >= 1.0 or self._places.get(key_of_call(order), 0) > 0

    def take(self, order: CreateNode) -> None:
        """Give the node a place in a call, and begin another call if there is none."""
        if self.credit == inf:
            return
        key = key_of_call(order)
        places = self._places.get(key, 0)
        if not places:
            self.credit -= 1.0
            places = self.nodes_per_call
        self._places[key] = places - 1


def create_calls(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> CreateCalls:
    """The create calls that may begin now: those that the provider's bucket of requests has room for."""
    account, calls = snapshot.account_of(cloud), policy.calls_of(cloud)
    if calls.create_calls_burst is None:
        return CreateCalls(calls.nodes_per_create, inf)
    credit = calls.create_calls_burst
    if account.create_credit_s is not None:
        gained = (snapshot.now_s - account.create_credit_s) * calls.create_calls_per_s
        credit = min(credit, account.create_calls_credit + gained)
    return CreateCalls(calls.nodes_per_create, credit)


def create_credit(snapshot: Snapshot, policy: Policy, cloud: CloudName) -> float:
    """The tokens in a cloud's bucket for creates: each create takes one."""
    account, calls = snapshot.account_of(cloud), policy.calls_of(cloud)
    if account.create_credit_s is None:
        return float(calls.creates_burst)
    gained = (snapshot.now_s - account.create_credit_s) * calls.creates_per_s
    return min(float(calls.creates_burst), account.create_credit + gained)
