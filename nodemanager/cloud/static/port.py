"""``provider = static``: own hosts, which commands of the site wake and put to sleep.

A create takes a free host of the node type and wakes it; a destroy puts it to sleep. Which host serves which launch
is in a file (``store``). Of the free hosts, one whose last wake failed is taken last. A host that is awake although
it serves nothing is used by somebody else, and is not taken.

A use of a host is forgotten only if the host is proven asleep: no wake command may be running, the sleep command
ended well and, with a probe, the probe finds it asleep several times in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.static.commands import HostCommands, Ran, commands_of
from nodemanager.cloud.static.store import HostStore, HostUse, Phase, Uses
from nodemanager.config.site import Site
from nodemanager.core.nodes import CloudNode, CloudState, FailureKind, Identity, Launch, Leftover, ProviderId
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType, TypeName

# A host is asleep once so many probes in a row say so, over at least this time: pings may be lost for a while.
ASLEEP_LOOKS = 3
ASLEEP_OVER_S = 20.0
_STATES = {
    Phase.WAKING: CloudState.PENDING,
    Phase.WOKEN: CloudState.PENDING,
    Phase.AWAKE: CloudState.RUNNING,
    Phase.FAILED: CloudState.FAILED,
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
        settings: PortSettings,
        *,
        asleep_over_s: float | None = None,
    ) -> None:
        self.hosts_of = hosts_of
        self.commands = commands
        self._store = HostStore(directory)
        self._settings = settings
        self._clock = settings.clock
        self._asleep_over_s = ASLEEP_OVER_S if asleep_over_s is None else asleep_over_s

    def create(self, launch: Launch, node_type: NodeType) -> CloudNode:
        script = self._settings.script(launch, node_type)
        use = self._take_host(launch, node_type)
        return _cloud_node(self._wake(use, script) if use.phase is Phase.WAKING else use)

    def list_nodes(self) -> tuple[CloudNode, ...]:
        with self._store.locked():
            known = self._store.read()
        standing = [use for use in known.uses if use.phase in (Phase.WOKEN, Phase.AWAKE, Phase.SLEEPING)]
        awake = self.commands.probe_all([use.host for use in standing])
        with self._store.locked():
            before = self._store.read()
            now_at = self._clock.wall_at()
            # A use that changed while its host was probed is looked at again by the next list.
            seen = [
                self._with_look(use, awake[use.host], now_at) if use in standing and use.host in awake else use
                for use in map(self._without_lost_host, before.uses)
            ]
            after = replace(before, uses=tuple(seen)).without_old(now_at)
            if after != before:
                self._store.write(after)
        return tuple(map(_cloud_node, after.uses))

    def destroy(self, provider_id: ProviderId) -> None:
        use = self._standing_use(provider_id)
        if use is not None and use.phase is Phase.SLEEPING and self.commands.probe:
            if not self.commands.is_awake(use.host):
                return  # it went to sleep, or whether it did is not known
            # A list may have ended the use meanwhile. Then the host is awake for its next launch.
            use = self._standing_use(provider_id)
        if use is None:
            return
        if problem := self._put_to_sleep(use.host):
            raise CloudError(FailureKind.TRANSIENT, problem)
        self._change(use, self._asleep)

    def _standing_use(self, provider_id: ProviderId) -> HostUse | None:
        with self._store.locked():
            use = self._store.read().find(lambda it: it.id == provider_id)
        return use if use is not None and use.phase is not Phase.ENDED else None

    def sweep(self) -> tuple[Leftover, ...]:
        return ()  # a host leaves nothing behind

    # --- creating ---

    def _take_host(self, launch: Launch, node_type: NodeType) -> HostUse:
        """Return the use of the launch. If it has none, write one for a free host that is not awake."""
        started_s = self._clock.monotonic_s()
        settings = self._settings
        identity = Identity(
            settings.cluster, settings.cluster_uuid, launch.id, launch.slot, launch.type_name, launch.made_from
        )
        told: dict[str, bool | None] = {}  # what the probe said of a host: awake, asleep, or nothing
        while True:
            with self._store.locked():
                settings.refuse_late_create(started_s)
                uses = self._store.read()
                known = uses.find(lambda it: it.serves(identity))
                free = [host for host in self._free_hosts(node_type.name, uses) if not told.get(host)]
                # A host of which nothing is known may be somebody else's, so it is taken last.
                host = min(free, key=lambda it: it in told and told[it] is None, default="")
                if known is None and not host:
                    raise CloudError(FailureKind.CAPACITY, self._why_none(node_type.name, told))
                if known is not None or host in told or not self.commands.probe:
                    return self._begin_wake(uses, known, host, identity, node_type.size)
            # Outside of the lock, as every command.
            told[host] = self.commands.is_awake(host)
            if told[host] is not False:
                self._try_last(host)

    def _begin_wake(self, uses: Uses, known: HostUse | None, host: str, identity: Identity, size: str) -> HostUse:
        """Write that a host is about to be woken. The lock is held."""
        now_at = self._clock.wall_at()
        if known is None:
            number = uses.count + 1
            known = HostUse(f"{host}.{number}", host, identity, size, now_at)
            uses = replace(uses, count=number, uses=(*uses.uses, known))
        if known.phase is Phase.WAKING:
            use = replace(known, waking_until_at=now_at + self._settings.call_timeout_s)
            self._store.write(uses.with_use(use))
            return use
        return known

    def _why_none(self, type_name: TypeName, told: Mapping[str, bool | None]) -> str:
        hosts = self.hosts_of(type_name)
        strangers = [host for host in hosts if told.get(host)]
        if not strangers:
            return f"all {len(hosts)} hosts of {type_name} are in use"
        return (
            f"no host of {type_name} is free: {len(hosts) - len(strangers)} are in use, and "
            f"{compress_hostlist(strangers)} awake although this manager did not wake them"
        )

    def _try_last(self, host: str) -> None:
        """Let the next creates try other hosts first."""
        with self._store.locked():
            uses = self._store.read()
            self._store.write(replace(uses, failed_at={**uses.failed_at, host: self._clock.wall_at()}))

    def _free_hosts(self, type_name: TypeName, uses: Uses) -> list[str]:
        """Return the type's hosts that serve no launch: those that could be used first, in the site's order."""
        taken = {use.host for use in uses.uses if use.phase is not Phase.ENDED}
        free = [host for host in self.hosts_of(type_name) if host not in taken]
        return sorted(free, key=lambda host: uses.failed_at.get(host, 0.0))

    def _wake(self, use: HostUse, script: str) -> HostUse:
        try:
            ran = self.commands.run_wake(use.host, script)
        except CloudError:  # nothing was started
            self._give_back(use)
            raise
        try:
            outcome = self._note_wake(use, ran)
        except CloudError as error:  # of the file
            raise CloudError(FailureKind.AMBIGUOUS, error.detail) from error
        if isinstance(outcome, CloudError):
            raise outcome
        return outcome

    def _note_wake(self, use: HostUse, ran: Ran) -> HostUse | CloudError:
        """Write how a wake ended. If the host must not be awake, put it to sleep."""
        why = ran.describe("wake", use.host)
        if ran.status is None:
            self._change(use, lambda it: replace(it, waking_until_at=0.0))
            return CloudError(FailureKind.AMBIGUOUS, why)
        if ran.status == 0:
            woken = self._change(use, self._woken)
            if woken.phase is not Phase.SLEEPING:
                return woken
            why = "it was put to sleep while its wake still ran"
            if not (problem := self._put_to_sleep(use.host)):
                return self._change(use, self._asleep)
        elif not (problem := self._put_to_sleep(use.host) or self._why_not_asleep(use.host)):
            # The launch is tried again on another host.
            kind = FailureKind.TRANSIENT if self._give_back(use) else FailureKind.CAPACITY
            return CloudError(kind, why)
        why = f"{why}; {problem}"
        self._change(use, lambda it: replace(it, phase=Phase.FAILED, waking_until_at=0.0, why_ended=why))
        return CloudError(FailureKind.AMBIGUOUS, why)

    def _put_to_sleep(self, host: str) -> str:
        """Run the sleep command. Return why it failed, "" if it did not."""
        try:
            ran = self.commands.run_sleep(host)
        except CloudError as error:
            return error.detail
        return "" if ran.status == 0 else ran.describe("sleep", host)

    def _why_not_asleep(self, host: str) -> str:
        """Say why a host that was put to sleep may be awake, "" if it is not."""
        try:
            is_asleep = not self.commands.probe or self.commands.is_awake(host) is False
        except CloudError as error:
            return error.detail
        return "" if is_asleep else f"after its sleep the probe does not find {host} asleep"

    def _give_back(self, use: HostUse) -> bool:
        """Forget a use whose host was not woken. Return whether another host of the type has not failed."""
        with self._store.locked():
            uses = self._store.read()
            failed_at = {**uses.failed_at, use.host: self._clock.wall_at()}
            uses = replace(uses, uses=tuple(it for it in uses.uses if it.id != use.id), failed_at=failed_at)
            self._store.write(uses)
            return any(host not in failed_at for host in self._free_hosts(use.identity.type_name, uses))

    # --- what becomes of a use ---

    def _change(self, use: HostUse, change: Callable[[HostUse], HostUse]) -> HostUse:
        """Write what has become of a use, as it is now. Return it."""
        with self._store.locked():
            uses = self._store.read()
            if (now := uses.find(lambda it: it.id == use.id)) is None:
                return use
            changed = change(now)
            failed_at = {host: at for host, at in uses.failed_at.items() if host != use.host}
            if changed.phase is Phase.FAILED:
                failed_at[use.host] = self._clock.wall_at()
            elif changed.phase not in (Phase.WOKEN, Phase.AWAKE):
                failed_at = dict(uses.failed_at)
            self._store.write(replace(uses.with_use(changed), failed_at=failed_at))
            return changed

    def _without_lost_host(self, use: HostUse) -> HostUse:
        """End a use that failed for good, once an operator has taken its host out of the site."""
        if use.phase is not Phase.FAILED or use.host in self.hosts_of(use.identity.type_name):
            return use
        return _ended(use, self._clock.wall_at(), f"{use.why_ended}; it is no host of the site any more")

    def _woken(self, use: HostUse) -> HostUse:
        """Its wake ended well. It may have been put to sleep meanwhile."""
        woken = Phase.WOKEN if self.commands.probe else Phase.AWAKE
        return replace(use, waking_until_at=0.0, phase=woken if use.phase is Phase.WAKING else use.phase)

    def _asleep(self, use: HostUse) -> HostUse:
        """Its sleep ended well. Without a probe it sleeps from now on, unless a wake may still be running."""
        now_at = self._clock.wall_at()
        if use.phase is Phase.ENDED:
            return use
        if self.commands.probe or now_at < use.waking_until_at:
            return replace(use, phase=Phase.SLEEPING)
        return _ended(use, now_at)

    def _with_look(self, use: HostUse, is_awake: bool, now_at: float) -> HostUse:
        """Return the use as a probe of its host shows it."""
        if is_awake:
            phase = Phase.AWAKE if use.phase is Phase.WOKEN else use.phase
            return replace(use, phase=phase, asleep_looks=0, asleep_since_at=0.0)
        if use.phase is Phase.WOKEN or now_at < use.waking_until_at:
            return use  # it boots, or may be about to
        since_at = use.asleep_since_at if 0 < use.asleep_since_at <= now_at else now_at
        seen = replace(use, asleep_looks=use.asleep_looks + 1, asleep_since_at=since_at)
        if seen.asleep_looks < ASLEEP_LOOKS or now_at - since_at < self._asleep_over_s:
            return seen
        return _ended(seen, now_at, "" if use.phase is Phase.SLEEPING else "the probe finds it asleep")


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


def ports_of(site: Site, settings: PortSettings) -> Callable[[], StaticHosts]:
    """Return a factory of ports. All of them share the file in the cloud's folder."""
    hosts = {name: node.hosts for name, node in site.nodes.items()}
    return lambda: StaticHosts(site.cloud_dir, lambda name: hosts.get(name, ()), commands_of(site), settings)
