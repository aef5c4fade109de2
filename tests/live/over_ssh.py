"""A manager whose ssh is a script: ``python -m tests.live.over_ssh --ssh=SCRIPT --config SITE``."""

from __future__ import annotations

import os
import sys

from nodemanager.cli.main import main

SCRIPT = """#!/bin/sh
# ssh [-p PORT] HOST COMMAND...
while [ "${1#-}" != "$1" ]; do shift 2; done
shift
exec sh -c "$*"
"""

if __name__ == "__main__":
    (option,) = [it for it in sys.argv if it.startswith("--ssh=")]
    os.environ["FLUX_SSH"] = option.removeprefix("--ssh=")
    sys.exit(main([it for it in sys.argv[1:] if it != option]))
