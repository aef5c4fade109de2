"""What a kind of act is in code: it does something to a run, and gives what ends that."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nodemanager.chaos.script import Act

if TYPE_CHECKING:
    from nodemanager.chaos.scenario import Scenario

End = Callable[[], None]
Trouble = Callable[["Scenario", Act], End | None]
