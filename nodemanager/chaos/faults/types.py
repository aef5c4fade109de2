"""What a kind of act is in code: it does something to a run, and gives what ends that."""

from __future__ import annotations

from collections.abc import Callable

from nodemanager.chaos.run.run import Run
from nodemanager.chaos.run.script import Act

EndFault = Callable[[], None]
FaultAction = Callable[[Run, Act], EndFault | None]
