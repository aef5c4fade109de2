"""A manager that kills itself right before or right after it sends one request of delegation.

``python -m tests.live.killed_delegating --config SITE --kill=STEP:WHEN``
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from nodemanager.cli.main import main
from nodemanager.delegation import ports
from nodemanager.flux.link import Link

STEPS: dict[str, Callable[[Any], bool]] = {
    "submit": lambda it: isinstance(it, ports.SubmitCopy),
    "record": lambda it: isinstance(it, ports.PostEvent) and it.event.name == "delegate::submit",
    "release": lambda it: isinstance(it, ports.ChangeUrgency),
    "start": lambda it: isinstance(it, ports.PostEvent) and it.event.name == "delegate::start",
    "hold": lambda it: isinstance(it, ports.RemoveDependency),
    "show": lambda it: isinstance(it, ports.ShowRunning),
    "output": lambda it: isinstance(it, ports.AppendOutput),
    "finish": lambda it: isinstance(it, ports.ShowFinished),
}


def kill_at(step: str, when: str) -> None:
    take = Link._take_requests

    def take_and_die(link: Any) -> None:
        due = any(STEPS[step](it) for it in link._requests)
        if due and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        take(link)
        if due:  # they were written to the broker's socket; nobody has read an answer
            os.kill(os.getpid(), signal.SIGKILL)

    Link._take_requests = take_and_die  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    (option,) = [it for it in sys.argv if it.startswith("--kill=")]
    kill_at(*option.removeprefix("--kill=").split(":"))
    sys.exit(main([it for it in sys.argv[1:] if it != option]))
