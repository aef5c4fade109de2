"""The verb ``cloud-test``: create one node of the cheapest type, find it, repeat the create, and destroy it.

The test uses the service's own port, but a cluster name of its own, so a running service ignores the node. However
the test ends, also by Ctrl-C, it destroys the node and waits until it is gone. If that fails, it names what may be
left: by the replies and lists it has seen, and by the cluster's name. As a last resort, the node's own script shuts
it down after half an hour.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import TypeVar

from nodemanager.config.site import Site, cluster_of_test
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Launch, LaunchId, Leftover, ProviderId
from nodemanager.core.ports import Clock, CloudError, CloudPort, unforeseen_as_cloud_error
from nodemanager.core.slots import NodeType, Rank, SlotName
from nodemanager.planner.billing import cost

LIFE_MAX_MIN = 30
POLL_S = 2.0
WAIT_MAX_S = 900.0

# The node shuts itself down if the test cannot end it. A local node, a process on this machine, must not do so: it
# would shut this machine down.
USER_DATA = f"""#!/bin/sh
# A test of flux-node-manager: does nothing, and ends by itself.
shutdown -h +{LIFE_MAX_MIN} || (sleep {LIFE_MAX_MIN * 60} && poweroff) &
"""
USER_DATA_OF_A_PROCESS = f"""#!/bin/sh
exec sleep {LIFE_MAX_MIN * 60}
"""
# A host of the site's own must not shut down. It may count as awake only while the unit of its client is active.
USER_DATA_OF_A_HOST = f"""#!/bin/sh
# A test of flux-node-manager: a unit that does nothing, with the name of the one that keeps a node in Flux.
[ -d /run/systemd/system ] || exit 0
cat >/etc/systemd/system/flux-node-join.service <<'EOF'
[Unit]
Description=Does nothing: a test of flux-node-manager

[Service]
ExecStart=/bin/sleep {LIFE_MAX_MIN * 60}

[Install]
WantedBy=multi-user.target
EOF
systemctl daemon-reload && systemctl restart flux-node-join.service
"""

Say = Callable[[str], None]
_T = TypeVar("_T")


class CloudTestFailed(Exception):
    """The provider did not behave as the port promises. The message says how."""


def user_data(site: Site) -> str:
    """The node's script: do nothing, and end after half an hour."""
    if site.rules.own_hosts:
        return USER_DATA_OF_A_HOST
    return USER_DATA_OF_A_PROCESS if site.rules.is_this_machine else USER_DATA


def make_test_site(site: Site) -> Site:
    """The site with a cluster name and UUID of its own, so that no service sees the test's node."""
    return replace(site, cluster=cluster_of_test(site.cluster), cluster_uuid=str(uuid.uuid4()))


@dataclass
class CloudTest:
    """One test. ``site`` comes from :func:`make_test_site`, and ``port`` was made for it.

    ``pause`` waits for a number of seconds. ``run`` raises :class:`CloudTestFailed` or ``CloudError``, after it has
    cleaned up.
    """

    site: Site
    port: CloudPort
    clock: Clock
    pause: Callable[[float], None]
    say: Say
    keep: bool = False
    wait_max_s: float = WAIT_MAX_S
    _created_s: float | None = field(default=None, init=False)
    _create_sent: bool = field(default=False, init=False)
    _last_trouble: str = field(default="", init=False)  # the last error printed while cleaning up

    def __post_init__(self) -> None:
        self.wait_max_s = max(self.wait_max_s, self.site.timing.boot_timeout_s)
        self._is_own_host = self.site.rules.own_hosts
        self.made_nodes = MadeNodes(self.site.timing.create_grace_s)
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
        """Run the test, and clean up unless ``keep``."""
        try:
            self._steps()
        except (CloudError, CloudTestFailed) as error:
            self.say(f"  {error}")  # at once: cleaning up may take long, and fail too
            raise
        finally:
            if self._create_sent and self.keep:
                self._say_kept()
            elif self._create_sent:
                self._clean_up()

    def _steps(self) -> None:
        price = self.node_type.price_per_hour
        where = f" in {self.launch.zone}" if self.launch.zone else ""
        self.say(
            f"cluster {self.site.cluster}, node type {self.node_type.name} ({self.node_type.size}{where}), "
            f"{price} an hour by the site's price"
        )
        with self._step("list"), unforeseen_as_cloud_error():
            seen = self.port.list_nodes()
        self._say_earlier_leftovers(seen)
        with self._step("create"):
            self._create_sent = True
            self._created_s = self.clock.monotonic_s()
            created = self._create()
        with self._step("listed, with its tags"):
            self._wait_for("the node in the list", lambda: self._is_listed(created.provider_id))
        with self._step("running"):
            self._wait_for("the node running", lambda: self._state(created.provider_id) is CloudState.RUNNING)
        with self._step("created again for the same launch: the same node"):
            again = self._create_once()
            if again.provider_id != created.provider_id:
                raise CloudTestFailed(
                    f"the repeated create made a second node: {again.provider_id}, besides {created.provider_id}"
                )

    def _create(self) -> CloudNode:
        try:
            made = self._create_once()
        except CloudError as error:
            if error.kind is not FailureKind.AMBIGUOUS:
                raise
            self.say(f"  the reply was lost ({error.detail}): looking for the node")
            made = self._wait_for("the node of the lost reply", lambda: next(iter(self._list_own()), None))
            self.made_nodes.note_create_answered(made.provider_id)
        self.say(f"  made: {made.provider_id}")
        return made

    def _create_once(self) -> CloudNode:
        self.made_nodes.note_create_sent(self.clock.monotonic_s())
        try:
            with unforeseen_as_cloud_error(creating=True):
                made = self.port.create(self.launch, self.node_type)
        except CloudError as error:
            if error.kind is not FailureKind.AMBIGUOUS:
                self.made_nodes.note_create_answered(None)
            raise
        self.made_nodes.note_create_answered(made.provider_id)
        return made

    # --- lists ---

    def _list_own(self) -> tuple[CloudNode, ...]:
        """List the nodes of this test."""
        with unforeseen_as_cloud_error():
            listed = self.port.list_nodes()
        ours = tuple(
            node
            for node in listed
            if node.identity is not None
            and (node.identity.cluster_uuid, node.identity.launch) == (self.site.cluster_uuid, self.launch.id)
        )
        self.made_nodes.note_listed(ours)
        return ours

    def _is_listed(self, provider_id: ProviderId) -> bool:
        ours = self._list_own()
        if len(ours) > 1:
            raise CloudTestFailed(f"one create made {len(ours)} nodes: {', '.join(n.provider_id for n in ours)}")
        if not ours:
            return False
        (node,) = ours
        if node.provider_id != provider_id:
            raise CloudTestFailed(f"created as {provider_id}, but listed as {node.provider_id}")
        if node.created_at is None:
            raise CloudTestFailed(f"{provider_id} is listed without its creation time")
        return True

    def _state(self, provider_id: ProviderId) -> CloudState | None:
        node = next((node for node in self._list_own() if node.provider_id == provider_id), None)
        if node is not None and node.state in (CloudState.FAILED, CloudState.TERMINATED):
            raise CloudTestFailed(f"{provider_id} is {node.state}: {node.died_because or 'no reason given'}")
        return node.state if node is not None else None

    def _say_earlier_leftovers(self, seen: tuple[CloudNode, ...]) -> None:
        left = [node for node in seen if node.identity is not None and node.state not in GONE_STATES]
        for node in left:
            if node.identity is None or node.identity.cluster != self.site.cluster:
                continue
            if self._is_own_host:
                self._end_earlier(node)
            else:
                self.say(f"  left by an earlier test, destroy it by hand: {node.provider_id}")

    def _end_earlier(self, node: CloudNode) -> None:
        """Put a host of an earlier test to sleep: nothing else would, and the service could not use it."""
        age_s = self.clock.wall_at() - (node.created_at or 0.0)
        if age_s < LIFE_MAX_MIN * 60:
            self.say(f"  another test has it, or left it less than {LIFE_MAX_MIN} minutes ago: {node.provider_id}")
            return
        try:
            self.port.destroy(node.provider_id)
        except CloudError as error:
            self.say(f"  left by an earlier test, and not put to sleep: {error}")
        else:
            self.say(f"  left by an earlier test, and put to sleep now: {node.provider_id}")

    # --- cleaning up ---

    def _clean_up(self) -> None:
        """Destroy the nodes that were created until lists show them gone. Name those that may be left."""
        try:
            with self._step("destroyed, and seen gone"):
                self._destroy_all()
        except BaseException as error:
            if not isinstance(error, CloudTestFailed):  # which names them already; this is a Ctrl-C or a bug
                self.say(f"  {self._leftover_text()}")
            raise
        self._sweep()
        if self._created_s is not None:
            lived_s = self.clock.monotonic_s() - self._created_s
            spent: Decimal = cost(self.node_type, lived_s)
            self.say(f"the node lived {lived_s:.0f} s: about {spent:.4f} by the site's price")

    def _destroy_all(self) -> None:
        # Lists may show a node late, so its absence counts only after several lists. If a create was not answered,
        # or its node was never listed, it counts only after the grace period, as in the service.
        absent = 0
        began_s = self.clock.monotonic_s()
        if self.made_nodes.is_in_doubt(began_s):
            self.say(f"  a create was not answered: looking for its node for up to {self.made_nodes.grace_s:g} s")
        while absent < self.site.timing.absences or self.made_nodes.is_in_doubt(self.clock.monotonic_s()):
            lasted_s = self.clock.monotonic_s() - began_s
            if lasted_s > self._patience_s:
                raise CloudTestFailed(f"not gone after {lasted_s:.0f} s. {self._leftover_text()}")
            absent = 0 if self._destroy_once() else absent + 1
            self.pause(POLL_S)

    @property
    def _patience_s(self) -> float:
        return self.wait_max_s + self.made_nodes.grace_s

    def _destroy_once(self) -> bool:
        """Destroy all nodes that may be running. Return False if a list succeeded and there are none."""
        listed = self._attempt(self._list_own)
        running = self.made_nodes.maybe_running(self.clock.monotonic_s())
        for provider_id in running:
            self._attempt(partial(self.port.destroy, provider_id))
        return bool(running) or not listed

    def _attempt(self, call: Callable[[], object]) -> bool:
        try:
            with unforeseen_as_cloud_error():
                call()
        except CloudError as error:  # retried after the next list
            if str(error) != self._last_trouble:
                self.say(f"  {error}: retrying for up to {self._patience_s:g} s")
            self._last_trouble = str(error)
            return False
        return True

    def _sweep(self) -> None:
        """Delete what the node left behind, such as disks: no service looks for resources of this test."""
        swept: list[Leftover] = []
        try:
            for _ in range(2):  # the second sweep deletes what the first one found
                with unforeseen_as_cloud_error():
                    swept += self.port.sweep()
                self.pause(POLL_S)
        except CloudError as error:
            self.say(f"  cannot find or delete what the node left behind: {error}")
        for leftover in swept:
            self.say(f"  deleted a leftover: {leftover.kind} {leftover.provider_id}")

    def _say_kept(self) -> None:
        with suppress(CloudError):  # on a failure, report what was seen before
            self._list_own()
        known = ", ".join(self.made_nodes.not_known_gone) or "no node that is known"
        if self._is_own_host:
            self.say(f"kept: {known}. A cloud-test after {LIFE_MAX_MIN} minutes puts it to sleep")
            return
        self.say(
            f"kept: {known}. It costs money until you destroy it and everything else named {self.site.cluster}"
        )

    def _leftover_text(self) -> str:
        known = ", ".join(self.made_nodes.not_known_gone) or "no node that is known"
        if self._is_own_host:
            return f"Left, and maybe awake: {known}. A cloud-test after {LIFE_MAX_MIN} minutes runs sleep again"
        return (
            f"Left, and maybe costing money: {known}. Destroy it by hand, and everything else named "
            f"{self.site.cluster} at the provider"
        )

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
                raise CloudTestFailed(f"waited {self.wait_max_s:g} s without success for {what}")
            self.pause(POLL_S)


# --- the nodes that ``cloud-test`` may have created, and which of them must still be destroyed ------------


GONE_STATES = (CloudState.TERMINATED,)


@dataclass
class MadeNodes:
    """The nodes that one test may have created, by the replies to its creates and by the lists since.

    Times are monotonic. ``grace_s``: how long after a create a list may lack its node.
    """

    grace_s: float
    _states: dict[ProviderId, CloudState | None] = field(default_factory=dict, init=False)  # None: never listed
    _unanswered: bool = field(default=False, init=False)
    _absence_counts_from_s: float = field(
        default=0.0, init=False
    )  # an absence from a list counts from this time on

    def note_create_sent(self, now_s: float) -> None:
        """Note that a create is about to be sent."""
        self._unanswered = True
        self._absence_counts_from_s = now_s + self.grace_s

    def note_create_answered(self, made: ProviderId | None) -> None:
        """Note the answer to a create: a node, or None for a refusal that proves that there is none."""
        self._unanswered = False
        if made is not None:
            self._states.setdefault(made, None)

    def note_listed(self, nodes: Iterable[CloudNode]) -> None:
        """Take the nodes in a complete list. A node in an earlier list that is missing from this one is gone."""
        now = {node.provider_id: node.state for node in nodes}
        if now.keys() - self._states.keys():
            self._unanswered = False  # the new node is that of the open create
        for provider_id, state in self._states.items():
            if state is not None:
                self._states[provider_id] = CloudState.TERMINATED
        self._states.update(now)

    def maybe_running(self, now_s: float) -> list[ProviderId]:
        """The nodes that may exist: those in the last list, and for a time those that no list has shown yet."""
        late = CloudState.PENDING if now_s < self._absence_counts_from_s else CloudState.TERMINATED
        return [provider_id for provider_id, state in self._states.items() if (state or late) not in GONE_STATES]

    def is_in_doubt(self, now_s: float) -> bool:
        """Whether a create without an answer may have made a node."""
        return self._unanswered and now_s < self._absence_counts_from_s

    @property
    def not_known_gone(self) -> list[ProviderId]:
        """The nodes that are not known to be gone."""
        return [provider_id for provider_id, state in self._states.items() if state not in GONE_STATES]
