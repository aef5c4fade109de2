"""What the process of the service loads."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from nodemanager.cli.verbs import run
run.load_structlog_without_rich()
from nodemanager.service import logs, outputs, service
logs.configure()
assert "structlog" in sys.modules
print(sorted(name for name in sys.modules if name.partition(".")[0] == "rich"))
import rich.console  # a verb that shows something can still load it
"""


def test_the_service_does_without_rich() -> None:
    """It is 4 MB of code for terminals, in a process that has none."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
