"""The service, killed by its own hand at one call of a port.

``python -m tests.live.killed --config site.ini CALL before|after N``: SIGKILL right before the Nth call of that
name is made, or right after it was carried out, before anybody hears of it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from nodemanager.config.load import load_site
from nodemanager.core.ports import CloudPort, FluxPort
from nodemanager.service import logs, service
from nodemanager.service.assembly.cluster import with_cluster_uuid
from nodemanager.service.assembly.ports import make_ports
from nodemanager.service.outputs import Outputs


@dataclass(frozen=True, slots=True)
class Moment:
    """When to die. Calls are counted over all ports of the process, which live in several threads."""

    call: str
    after: bool
    nth: int
    counted: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def around(self, method: Callable[..., Any], *arguments: Any) -> Any:
        doomed = next(self.counted) == self.nth
        if doomed and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return method(*arguments)
        finally:
            if doomed:
                os.kill(os.getpid(), signal.SIGKILL)


class DoomedPort:
    """Any port; every call goes through."""

    def __init__(self, port: object, moment: Moment) -> None:
        self._port = port
        self._moment = moment

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name != self._moment.call:
            return method
        return lambda *arguments: self._moment.around(method, *arguments)


def doomed_cloud(make: Callable[[], CloudPort], moment: Moment) -> CloudPort:
    return cast("CloudPort", DoomedPort(make(), moment))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("call")
    parser.add_argument("when", choices=("before", "after"))
    parser.add_argument("nth", type=int)
    chosen = parser.parse_args()
    moment = Moment(chosen.call, chosen.when == "after", chosen.nth)
    logs.configure()
    site = with_cluster_uuid(load_site(chosen.config))
    outside = make_ports(site)
    return service.serve(
        site,
        replace(
            outside,
            flux=lambda: cast("FluxPort", DoomedPort(outside.flux(), moment)),
            clouds={name: partial(doomed_cloud, port, moment) for name, port in outside.clouds.items()},
        ),
        Outputs(site),
    )


if __name__ == "__main__":
    sys.exit(main())
