"""``cloud-test``: one node of the cheapest type at the real provider, made, found, made again, and destroyed.

It is done as the service does it, by the same port, under a cluster name of its own: a service that runs meanwhile
takes no notice. Whatever becomes of it, also on Ctrl-C, the node is destroyed and seen gone, or named as left; and
its script turns it off after half an hour, should nobody be left to do that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeVar

from nodemanager.config import Provider, Site
from nodemanager.facts import FailureKind
from nodemanager.fleet.billing import cost
from nodemanager.model import CloudNode, CloudState, Launch, LaunchId, NodeType, ProviderId, Rank, SlotName
from nodemanager.ports import Clock, CloudError, CloudPort

LIFE_MAX_MIN = 30
POLL_S = 2.0
_CLUSTER_MAX_CHARS = 32
_SUFFIX = "-cloud-test"
_OVER = (CloudState.TERMINATED,)

# A machine ends by itself, should nobody be left to end it. A process of this machine must not try that: it would
# turn this machine off.
USER_DATA = f"""#!/bin/sh
# A test of flux-node-manager: does nothing, and ends by itself.
shutdown -h +{LIFE_MAX_MIN} || (sleep {LIFE_MAX_MIN * 60} && poweroff) &
"""
USER_DATA_OF_A_PROCESS = f"""#!/bin/sh
exec sleep {LIFE_MAX_MIN * 60}
"""

Say = Callable[[str], None]
_T = TypeVar("_T")


class CloudTestFailed(Exception):
    """A promise of the port that the provider did not keep, in words."""


def user_data(site: Site) -> str:
    """What the node runs: nothing, and its own end after half an hour."""
    return USER_DATA_OF_A_PROCESS if site.cloud.provider is Provider.LOCAL else USER_DATA


def site_of_the_test(site: Site) -> Site:
    """The same account and node types, under a name that no service looks at."""
    cluster = site.cluster[: _CLUSTER_MAX_CHARS - len(_SUFFIX)].rstrip("-") + _SUFFIX
    return replace(site, cluster=cluster, cluster_uuid=str(uuid.uuid4()))


@dataclass
class CloudTest:
    """One run. ``site`` is that of :func:`site_of_the_test`, and ``port`` was made for it.

    ``pause`` waits that many seconds. ``run`` raises :class:`CloudTestFailed` or ``CloudError`` once it has
    cleaned up.
    """

    site: Site
    port: CloudPort
    clock: Clock
    pause: Callable[[float], None]
    say: Say
    keep: bool = False
    wait_max_s: float = 900.0
    _made_s: float | None = field(default=None, init=False)
    _asked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.node_type: NodeType = min(self.site.node_types, key=lambda it: (it.price_per_hour, it.name))
        name = uuid.uuid4().hex[:12]
        self.launch = Launch(
            id=LaunchId(f"cloud-test-{name}"),
            slot=SlotName(f"cloud-test-{name}"),
            rank=Rank(0),
            type_name=self.node_type.name,
            client_token=f"cloud-test-{name}",
            requested_at=self.clock.wall_at(),
            zone=self.node_type.zones[0] if self.node_type.zones else "",
        )

    def run(self) -> None:
        try:
            self._steps()
        finally:
            if self._asked and not self.keep:
                self._clean_up()
            elif self._asked:
                self.say(f"kept: {', '.join(self._standing_ids()) or 'nothing'}; it costs until it is destroyed")

    def _steps(self) -> None:
        price = self.node_type.price_per_hour
        where = f" in {self.launch.zone}" if self.launch.zone else ""
        self.say(
            f"cluster {self.site.cluster}, node type {self.node_type.name} ({self.node_type.size}{where}), "
            f"{price} an hour by the site"
        )
        with self._step("list"):
            seen = self.port.list_nodes()
        self._say_strangers(seen)
        with self._step("create"):
            self._asked = True
            self._made_s = self.clock.monotonic_s()
            created = self._create()
        with self._step("listed, with its tags"):
            self._wait_for("the node in the list", lambda: self._listed(created.provider_id))
        with self._step("running"):
            self._wait_for("the node running", lambda: self._state(created.provider_id) is CloudState.RUNNING)
        with self._step("created again by the same launch: the same node"):
            again = self.port.create(self.launch, self.node_type)
            if again.provider_id != created.provider_id:
                raise CloudTestFailed(f"a second node came: {again.provider_id} beside {created.provider_id}")

    def _create(self) -> CloudNode:
        try:
            return self.port.create(self.launch, self.node_type)
        except CloudError as error:
            if error.kind is not FailureKind.AMBIGUOUS:
                raise
            self.say(f"  the reply was lost ({error.detail}): looking for the node")
            return self._wait_for("the node of the lost reply", lambda: next(iter(self._ours()), None))

    # --- looking ---

    def _ours(self) -> tuple[CloudNode, ...]:
        """What the list shows of this run."""
        return tuple(
            node
            for node in self.port.list_nodes()
            if node.identity is not None
            and (node.identity.cluster_uuid, node.identity.launch) == (self.site.cluster_uuid, self.launch.id)
        )

    def _listed(self, provider_id: ProviderId) -> bool:
        ours = self._ours()
        if len(ours) > 1:
            raise CloudTestFailed(f"one create made {len(ours)} nodes: {', '.join(n.provider_id for n in ours)}")
        if not ours:
            return False
        (node,) = ours
        if node.provider_id != provider_id:
            raise CloudTestFailed(f"created {provider_id}, and listed as {node.provider_id}")
        if node.created_at is None:
            raise CloudTestFailed(f"{provider_id} is listed without the time of its creation")
        return True

    def _state(self, provider_id: ProviderId) -> CloudState | None:
        node = next((node for node in self._ours() if node.provider_id == provider_id), None)
        if node is not None and node.state in (CloudState.FAILED, CloudState.TERMINATED):
            raise CloudTestFailed(f"{provider_id} is {node.state}: {node.died_because or 'no reason given'}")
        return node.state if node is not None else None

    def _standing_ids(self) -> list[ProviderId]:
        return [node.provider_id for node in self._ours() if node.state not in _OVER]

    def _say_strangers(self, seen: tuple[CloudNode, ...]) -> None:
        left = [node for node in seen if node.identity is not None and node.state not in _OVER]
        for node in left:
            if node.identity is not None and node.identity.cluster == self.site.cluster:
                self.say(f"  left by an earlier test, to be destroyed by hand: {node.provider_id}")

    # --- the end ---

    def _clean_up(self) -> None:
        """Destroy whatever the create made, until the list shows it gone."""
        with self._step("destroyed, and seen gone"):
            # A create whose reply was lost may show late: an empty list is believed after several looks only.
            absent = 0
            deadline_s = self.clock.monotonic_s() + self.wait_max_s
            while absent < self.site.timing.absences:
                if self.clock.monotonic_s() > deadline_s:
                    raise CloudTestFailed(
                        f"still there after {self.wait_max_s:g} s, and costing: {', '.join(self._standing_ids())}. "
                        "Destroy it by hand"
                    )
                absent = 0 if self._destroy_once() else absent + 1
                self.pause(POLL_S)
        if self._made_s is not None:
            lived_s = self.clock.monotonic_s() - self._made_s
            spent: Decimal = cost(self.node_type, lived_s)
            self.say(f"the node lived {lived_s:.0f} s: about {spent:.4f} by the site's price")

    def _destroy_once(self) -> bool:
        """Ask for the end of what is there. False: nothing was."""
        with suppress(CloudError):  # asked again at the next look
            standing = self._standing_ids()
            for provider_id in standing:
                self.port.destroy(provider_id)
            return bool(standing)
        return True

    # --- steps ---

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        began_s = self.clock.monotonic_s()
        try:
            yield
        except BaseException:
            self.say(f"  FAILED {self.clock.monotonic_s() - began_s:6.1f} s  {what}")
            raise
        self.say(f"  ok     {self.clock.monotonic_s() - began_s:6.1f} s  {what}")

    def _wait_for(self, what: str, reached: Callable[[], _T | None]) -> _T:
        deadline_s = self.clock.monotonic_s() + self.wait_max_s
        while True:
            try:
                found = reached()
            except CloudError as error:
                if error.kind not in (FailureKind.TRANSIENT, FailureKind.THROTTLED):
                    raise
                found = None
            if found:
                return found
            if self.clock.monotonic_s() > deadline_s:
                raise CloudTestFailed(f"waited {self.wait_max_s:g} s in vain for {what}")
            self.pause(POLL_S)
