"""Own hosts under seeded faults: hosts lose power, do not wake, do not heed a sleep; probes lie, commands hang.

Each seed is a story of creates, destroys, lists, crashes, and people who use hosts. Whatever happens, no host
that the port has woken is awake and forgotten, no host serves two launches, and nobody else's host is put to sleep.
In the end the faults stop, and every host of ours goes to sleep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.static import port as static_port
from nodemanager.cloud.static.commands import Ran
from nodemanager.cloud.static.port import ASLEEP_OVER_S, StaticHosts
from nodemanager.core.nodes import CloudNode, CloudState
from nodemanager.core.ports import CloudError
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_script, a_type

SEEDS = range(120)
STEPS = 60
CALL_TIMEOUT_S = 60.0
HOSTS = tuple(f"host{number}" for number in range(5))


class Killed(BaseException):
    """The manager's process ended in the middle of a call."""


@dataclass
class Faults:
    """Each is a probability for one command."""

    wake: float = 0.2  # the wake fails; half of the time the host wakes all the same
    hang: float = 0.1  # the wake or the sleep is killed; half of the time it has worked
    sleep: float = 0.3
    unheeded: float = 0.2  # the sleep succeeds, and the host stays on
    lost: float = 0.2  # for a while, a probe finds a host asleep that is awake
    unknown: float = 0.1
    killed: float = 0.05  # before or after a command


@dataclass
class Rack:
    """The hosts and their commands: what ``HostCommands`` is to the port."""

    draws: Random
    has_probe: bool
    faults: Faults = field(default_factory=Faults)
    now_s: float = 1000.0
    awake: set[str] = field(default_factory=set)  # by us
    strange: set[str] = field(default_factory=set)  # by somebody else
    lost_until_s: dict[str, float] = field(default_factory=dict)  # until when the probes of a host are lost
    told: dict[str, bool | None] = field(default_factory=dict)  # what the last probe before a wake said

    @property
    def probe(self) -> str:
        return "probe" if self.has_probe else ""

    def happens(self, probability: float) -> bool:
        return self.draws.random() < probability

    def _may_kill(self) -> None:
        self.now_s += self.draws.uniform(0.0, 3.0)
        if self.happens(self.faults.killed):
            raise Killed

    def run_wake(self, host: str, _script: str) -> Ran:
        assert not self.told.get(host), f"{host} is somebody else's, and its probe has said so"
        self.strange.discard(host)  # its probe told nothing, and no other host was left
        self._may_kill()
        fails, hangs = self.happens(self.faults.wake), self.happens(self.faults.hang)
        if not (fails or hangs) or self.happens(0.5):
            self.awake.add(host)
        self._may_kill()
        return Ran(None, "", "ran too long") if hangs else Ran(int(fails), "")

    def run_sleep(self, host: str) -> Ran:
        self._may_kill()
        assert host not in self.strange or not self.has_probe, f"{host} is somebody else's"
        fails, hangs = self.happens(self.faults.sleep), self.happens(self.faults.hang)
        unheeded = self.has_probe and self.happens(self.faults.unheeded)
        if not (fails or hangs or unheeded) or (hangs and self.happens(0.5)):
            self.awake.discard(host)
        self._may_kill()
        return Ran(None, "", "ran too long") if hangs else Ran(int(fails), "")

    def probe_all(self, hosts: Sequence[str]) -> dict[str, bool]:
        if not self.has_probe:
            return {}
        return {
            host: host in self.awake | self.strange and not self._loses(host)
            for host in hosts
            if not self.happens(self.faults.unknown)
        }

    def _loses(self, host: str) -> bool:
        """Losses last for less than ASLEEP_OVER_S. After them the host is found awake once, at least."""
        if host in self.lost_until_s:
            return self.now_s < self.lost_until_s[host] or self.lost_until_s.pop(host) < 0
        if self.happens(self.faults.lost):
            self.lost_until_s[host] = self.now_s + self.draws.uniform(0.0, 0.95 * ASLEEP_OVER_S)
        return host in self.lost_until_s

    def is_awake(self, host: str) -> bool | None:
        unknown = not self.has_probe or self.happens(self.faults.unknown)
        self.told[host] = None if unknown else host in self.awake | self.strange
        return self.told[host]


@dataclass
class Clock:
    rack: Rack

    def monotonic_s(self) -> float:
        return self.rack.now_s

    def wall_at(self) -> float:
        return 1_700_000_000.0 + self.rack.now_s


@dataclass
class Story:
    """One seed's manager: it creates and destroys, and each of its processes may be killed."""

    seed: int
    folder: Path

    def __post_init__(self) -> None:
        self.draws = Random(self.seed)
        self.rack = Rack(self.draws, has_probe=self.seed % 3 != 0)
        self.port = self._start()
        self.launches = 0

    def _start(self) -> StaticHosts:
        return StaticHosts(
            self.folder,
            lambda _: HOSTS,
            cast("Any", self.rack),
            PortSettings(CLUSTER, CLUSTER_UUID, a_script, Clock(self.rack), call_timeout_s=CALL_TIMEOUT_S),
        )

    def standing(self) -> list[CloudNode]:
        return [it for it in self.port.list_nodes() if it.state is not CloudState.TERMINATED]

    def step(self) -> None:
        self.rack.now_s += self.draws.uniform(1.0, ASLEEP_OVER_S / 2)
        act = self.draws.choices((self._create, self._destroy, self._lose_power, self._use_by_hand), (4, 4, 1, 1))[
            0
        ]
        try:
            with suppress(CloudError):
                act()
        except Killed:
            self.port = self._start()
        self.check()

    def _create(self) -> None:
        self.launches += 1
        self.port.create(a_launch(str(self.launches)), a_type())

    def _destroy(self) -> None:
        if nodes := self.standing():
            self.port.destroy(self.draws.choice(nodes).provider_id)

    def _lose_power(self) -> None:
        if self.rack.awake:
            self.rack.awake.discard(self.draws.choice(sorted(self.rack.awake)))

    def _use_by_hand(self) -> None:
        """Somebody uses a host that serves nothing, or stops using one."""
        busy = {it.addresses[0] for it in self.standing()}
        free = [host for host in HOSTS if host not in busy]
        if self.rack.strange:
            self.rack.strange.clear()
        elif free and self.rack.has_probe:
            self.rack.strange.add(self.draws.choice(free))

    def check(self) -> None:
        in_use = [node.addresses[0] for node in self.standing()]
        assert len(set(in_use)) == len(in_use), f"a host serves two launches: {in_use}"
        assert self.rack.awake <= set(in_use), f"awake and forgotten: {self.rack.awake - set(in_use)}"

    def end(self) -> None:
        """Without faults, everything goes to sleep."""
        self.rack.faults = Faults(0, 0, 0, 0, 0, 0, 0)
        self.rack.now_s += CALL_TIMEOUT_S
        for _ in range(20):
            for node in self.standing():
                self.port.destroy(node.provider_id)
            self.rack.now_s += ASLEEP_OVER_S / 2
        assert (self.standing(), self.rack.awake) == ([], set())


@pytest.mark.parametrize("seed", SEEDS)
def test_no_host_is_awake_and_forgotten(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # it takes long, and no power is lost here
    assert play(seed, tmp_path / "cloud").launches > STEPS / 6


def play_all(folder: Path) -> None:
    for seed in SEEDS:
        play(seed, folder / str(seed))


def play(seed: int, folder: Path) -> Story:
    story = Story(seed, folder)
    for _ in range(STEPS):
        story.step()
    story.end()
    return story


def forgets_after_one_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(static_port, "ASLEEP_LOOKS", 1)
    patch.setattr(static_port, "ASLEEP_OVER_S", 0.0)


def forgets_however_its_sleep_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StaticHosts, "_put_to_sleep", lambda self, host: self.commands.run_sleep(host) and "")
    patch.setattr(StaticHosts, "_why_not_asleep", lambda *_: "")


def takes_any_free_host(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StaticHosts, "_free_hosts", lambda self, type_name, _uses: list(self.hosts_of(type_name)))


def does_not_ask_who_uses_a_host(patch: pytest.MonkeyPatch) -> None:
    is_awake = Rack.is_awake
    patch.setattr(Rack, "is_awake", lambda self, host: is_awake(self, host) and False)


@pytest.mark.parametrize(
    "mutation",
    [forgets_after_one_look, forgets_however_its_sleep_ends, takes_any_free_host, does_not_ask_who_uses_a_host],
)
def test_a_rule_that_is_broken_on_purpose_is_caught(
    mutation: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with pytest.raises(AssertionError, match=r"is somebody else's|awake and forgotten|serves two launches"):
        play_all(tmp_path)
