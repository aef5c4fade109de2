"""``provider = static``: own hosts, which commands of the site wake and put to sleep.

A create takes a free host of the node type and wakes it; a destroy puts it to sleep. Which host serves which launch
is in a file (``store``). Of the free hosts, one whose last wake failed is taken last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nodemanager.cloud.common.libcloud_port import UserDataSource, checked_user_data, refuse_late_create
from nodemanager.cloud.static.commands import HostCommands
from nodemanager.cloud.static.store import HostStore, HostUse, Phase, Uses
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Identity, Launch, Leftover, ProviderId
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, TypeName

ASLEEP_LOOKS = 2  # in a row, before a host that should be awake counts as dead: one ping may be lost
_STATES = {
    Phase.WAKING: CloudState.PENDING,
    Phase.WOKEN: CloudState.PENDING,
    Phase.AWAKE: CloudState.RUNNING,
    Phase.SLEEPING: CloudState.STOPPING,
    Phase.ENDED: CloudState.TERMINATED,
}


class StaticHosts:
    """``CloudPort`` of own hosts. An object belongs to one thread; several may share a directory."""

    def __init__(
        self,
        directory: Path,
        hosts_of: Callable[[TypeName], Sequence[str]],
        commands: HostCommands,
        cluster: str,
        cluster_uuid: str,
        user_data: UserDataSource,
        clock: Clock,
        *,
        call_timeout_s: float,
    ) -> None:
        self.hosts_of = hosts_of
        self.commands = commands
        self._store = HostStore(directory)
        self._cluster = cluster
        self._cluster_uuid = cluster_uuid
        self._user_data = user_data
        self._clock = clock
        self._call_timeout_s = call_timeout_s

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        script = checked_user_data(self._user_data(launch, node_type), launch.slot)
        use = self._take_host(launch, node_type)
        return _cloud_node(self._wake(use, script) if use.phase is Phase.WAKING else use)

    def list_nodes(self) -> tuple[CloudNode, ...]:
        with self._store.locked():
            known = self._store.read()
        probed = (Phase.WOKEN, Phase.AWAKE, Phase.SLEEPING)
        awake = self.commands.probe_all([use.host for use in known.uses if use.phase in probed])
        with self._store.locked():
            before = self._store.read()
            now_at = self._clock.wall_at()
            # A use that changed while its host was probed is looked at again by the next list.
            seen = [
                _with_look(use, awake[use.host], now_at) if use in known.uses and use.host in awake else use
                for use in before.uses
            ]
            after = replace(before, uses=tuple(seen)).without_old(now_at)
            if after != before:
                self._store.write(after)
        return tuple(map(_cloud_node, after.uses))

    def destroy(self, provider_id: ProviderId) -> None:
        with self._store.locked():
            use = self._store.read().find(lambda it: it.id == provider_id)
        if use is None or use.phase is Phase.ENDED:
            return
        if use.phase is Phase.SLEEPING and not self.commands.probe_all([use.host]).get(use.host):
            return  # it went to sleep, or whether it did is not known
        ran = self.commands.run_sleep(use.host)
        if ran.status != 0:
            raise CloudError(FailureKind.TRANSIENT, ran.describe("sleep", use.host))
        self._note_sleep(use)

    def sweep(self) -> tuple[Leftover, ...]:
        return ()  # a host leaves nothing behind

    # --- creating ---

    def _take_host(self, launch: Launch, node_type: NodeType) -> HostUse:
        """Return the use of the launch. If it has none, write one for a free host."""
        started_s = self._clock.monotonic_s()
        with self._store.locked():
            refuse_late_create(self._clock, started_s, self._call_timeout_s)
            uses = self._store.read()
            identity = Identity(
                self._cluster, self._cluster_uuid, launch.id, launch.slot, launch.type_name, launch.made_from
            )
            if (known := uses.find(lambda it: it.serves(identity))) is not None:
                return known
            free = self._free_hosts(node_type.name, uses)
            if not free:
                count = len(self.hosts_of(node_type.name))
                raise CloudError(FailureKind.CAPACITY, f"all {count} hosts of {node_type.name} are in use")
            number = uses.count + 1
            use = HostUse(f"{free[0]}.{number}", free[0], identity, node_type.size, self._clock.wall_at())
            self._store.write(replace(uses, count=number, uses=(*uses.uses, use)))
            return use

    def _free_hosts(self, type_name: TypeName, uses: Uses) -> list[str]:
        """Return the type's hosts that serve no launch: those that never failed first, in the site's order."""
        taken = {use.host for use in uses.uses if use.phase is not Phase.ENDED}
        free = [host for host in self.hosts_of(type_name) if host not in taken]
        return sorted(free, key=lambda host: uses.failed_at.get(host, 0.0))

    def _wake(self, use: HostUse, script: str) -> HostUse:
        try:
            ran = self.commands.run_wake(use.host, script)
        except CloudError:  # nothing was started
            self._give_back(use)
            raise
        if ran.status is None:
            raise CloudError(FailureKind.AMBIGUOUS, ran.describe("wake", use.host))
        if ran.status != 0:
            # It may have woken the host all the same, and the launch is tried again on another one.
            with suppress(CloudError):
                self.commands.run_sleep(use.host)
            others = self._give_back(use)
            kind = FailureKind.TRANSIENT if others else FailureKind.CAPACITY
            raise CloudError(kind, ran.describe("wake", use.host))
        try:
            return self._change(use, Phase.WOKEN if self.commands.probe else Phase.AWAKE)
        except CloudError as error:
            raise CloudError(FailureKind.AMBIGUOUS, error.detail) from error

    def _give_back(self, use: HostUse) -> bool:
        """Forget a use whose host was not woken. Return whether another host of the type has not failed."""
        with self._store.locked():
            uses = self._store.read()
            failed_at = {**uses.failed_at, use.host: self._clock.wall_at()}
            uses = replace(uses, uses=tuple(it for it in uses.uses if it.id != use.id), failed_at=failed_at)
            self._store.write(uses)
            return any(host not in failed_at for host in self._free_hosts(use.identity.type_name, uses))

    # --- what becomes of a use ---

    def _change(self, use: HostUse, phase: Phase) -> HostUse:
        """Write that a host was woken, unless its use has changed meanwhile. Return the use as it is then."""
        with self._store.locked():
            uses = self._store.read()
            now = uses.find(lambda it: it.id == use.id) or use
            if now.phase is not use.phase:
                return now
            failed_at = {host: at for host, at in uses.failed_at.items() if host != use.host}
            changed = replace(now, phase=phase)
            self._store.write(replace(uses.with_use(changed), failed_at=failed_at))
            return changed

    def _note_sleep(self, use: HostUse) -> None:
        """Write that a host was put to sleep. Without a probe it sleeps from now on."""
        with self._store.locked():
            uses = self._store.read()
            now = uses.find(lambda it: it.id == use.id)
            if now is None or now.phase is Phase.ENDED:
                return
            changed = replace(now, phase=Phase.SLEEPING)
            self._store.write(
                uses.with_use(changed if self.commands.probe else _ended(changed, self._clock.wall_at()))
            )


def _with_look(use: HostUse, is_awake: bool, now_at: float) -> HostUse:
    """Return the use as a probe of its host shows it."""
    match use.phase:
        case Phase.WOKEN if is_awake:
            return replace(use, phase=Phase.AWAKE)
        case Phase.AWAKE if is_awake:
            return replace(use, asleep_looks=0)
        case Phase.AWAKE:
            looks = use.asleep_looks + 1
            dead = looks >= ASLEEP_LOOKS
            return _ended(use, now_at, "the probe finds it asleep") if dead else replace(use, asleep_looks=looks)
        case Phase.SLEEPING if not is_awake:
            return _ended(use, now_at)
        case _:
            return use


def _ended(use: HostUse, now_at: float, why: str = "") -> HostUse:
    return replace(use, phase=Phase.ENDED, ended_at=now_at, why_ended=why or "put to sleep on request")


def _cloud_node(use: HostUse) -> CloudNode:
    return CloudNode(
        provider_id=ProviderId(use.id),
        state=_STATES[use.phase],
        identity=use.identity,
        created_at=use.created_at,
        addresses=(use.host,),
        died_because=use.why_ended,
        size=use.size,
    )
