"""Machines for moto and for a real Nova, which have none: processes that run the user-data of a node."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.cloud.ec2.moto_front import MotoFront
from tests.cloud.openstack.nova.process import Nova
from tests.live.host_command import cut_power, wake
from tests.live.processes import END_WITHIN_S

LOOK_EVERY_S = 0.5


class Machines:
    """Boots a machine for each running instance and active server, once, and cuts its power when that has ended."""

    def __init__(self, folder: Path, front: MotoFront, nova: Nova) -> None:
        self._folder, self._front, self._nova = folder, front, nova
        self._inits: dict[str, psutil.Popen] = {}
        self._ended: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow both clouds; at the end cut the power of all machines."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._thread.join()
            self._end(self._inits.keys() - self._ended)
            for name in self._inits:
                print(f"--- {name}", (self._folder / name / "console.log").read_text(encoding="utf-8"))

    def _follow(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            running = {**self._instances(), **self._servers()}
            for name in running.keys() - self._inits.keys():
                init = wake(self._folder / name, running[name])
                assert init is not None
                self._inits[name] = init
            self._end(self._inits.keys() - running.keys() - self._ended)

    def _end(self, names: set[str]) -> None:
        for name in names:
            cut_power(self._folder / name)
            self._inits[name].wait(END_WITHIN_S)
        self._ended |= names

    def _instances(self) -> Mapping[str, str]:
        """The user-data of moto's running instances."""
        running = [made.id for made in self._front.standing() if made._state.name == "running"]
        return {id_: self._front.user_data(id_).decode() for id_ in running}

    def _servers(self) -> Mapping[str, str]:
        """The user-data of Nova's active servers."""
        listed = self._nova.administer("GET", "/servers/detail?all_tenants=1&status=ACTIVE")["servers"]
        return {it["id"]: base64.b64decode(it["OS-EXT-SRV-ATTR:user_data"]).decode() for it in listed}
