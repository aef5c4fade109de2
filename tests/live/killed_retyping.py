"""The service, killed by its own hand right after one step of a change of the slots.

``python -m tests.live.killed_retyping --config site.ini STEP``: SIGKILL once that step was carried out, before
anybody hears of it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodemanager.config.load import load_site
from nodemanager.config.text.flux_toml import ConfigFile
from nodemanager.flux import retype
from nodemanager.flux.port import _RetypingCalls
from nodemanager.service import logs, service
from nodemanager.service.assembly.cluster import with_cluster_uuid
from nodemanager.service.assembly.ports import make_ports
from nodemanager.service.outputs import Outputs

# In their order.
STEPS = (
    "resource.drain",
    "file",
    "marker",
    "config.load",
    "module.remove scheduler",
    "module.remove resource",
    "module.load resource",
    "module.load scheduler",
    "resource.undrain",
    "answer",
)


def _role(module: str) -> str:
    """Flux's own scheduler is one module, Fluxion several: the one that has the service."""
    return "scheduler" if module in ("sched-simple", "sched-fluxion-qmanager") else module


class Doom:
    """It waits for its step."""

    def __init__(self, step: str) -> None:
        self._step = step

    def done(self, step: str) -> None:
        if step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def lie_in_wait(self) -> None:
        ask, commit, write = _RetypingCalls.ask, _RetypingCalls.commit, ConfigFile.write

        def doomed_ask(
            calls: _RetypingCalls, topic: str, payload: Any = None, *, timeout_s: float | None = None
        ) -> Any:
            answer = ask(calls, topic, payload, timeout_s=timeout_s)
            self.done(f"{topic} {_role(payload['name'])}" if topic.startswith("module.") and payload else topic)
            return answer

        def doomed_commit(calls: _RetypingCalls, changes: Mapping[str, str | None]) -> None:
            commit(calls, changes)
            self.done("marker" if changes.get(retype.MARKER_KEY) else "answer")

        def doomed_write(file: ConfigFile, text: str) -> None:
            write(file, text)
            self.done("file")

        for owner, name, doomed in (
            (_RetypingCalls, "ask", doomed_ask),
            (_RetypingCalls, "commit", doomed_commit),
            (ConfigFile, "write", doomed_write),
        ):
            setattr(owner, name, doomed)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("step", choices=STEPS)
    chosen = parser.parse_args()
    Doom(chosen.step).lie_in_wait()
    logs.configure()
    site = with_cluster_uuid(load_site(chosen.config))
    return service.serve(site, make_ports(site), Outputs(site))


if __name__ == "__main__":
    sys.exit(main())
