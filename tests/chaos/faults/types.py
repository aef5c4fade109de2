"""The types of fault functions. A fault changes a run, and may return a function that ends it."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.run.run import Run
from tests.chaos.run.script import Act

EndFault = Callable[[], None]
FaultAction = Callable[[Run, Act], EndFault | None]
