"""Run ``release-idle --follow``, and kill it between two steps: its first argument says where."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from nodemanager.cli import main
from nodemanager.flux.in_job import release_idle

MANAGER = Path("manager-pid")  # in the job's folder: the manager of the outer instance is killed together with it


def kill(*_: Any) -> None:
    """End this process as ``kill -9`` does."""
    if MANAGER.exists():
        os.kill(int(MANAGER.read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


WHEN = {"after-drain": (release_idle._Instance, "_stop"), "after-stop": (release_idle._Instance, "gone")}

if __name__ == "__main__":
    owner, name = WHEN[sys.argv[1]]
    before = getattr(owner, name)

    def step(self: Any, *arguments: Any) -> Any:
        """Take the step, unless ranks are drained by then."""
        if any(it.drain_reason == release_idle.DRAIN_REASON for it in self._look().values()):
            kill()
        return before(self, *arguments)

    setattr(owner, name, step)
    sys.exit(main.main(["release-idle", "--follow", *sys.argv[2:]]))
