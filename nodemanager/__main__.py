"""``python -m nodemanager``: the command line."""

from __future__ import annotations

import sys

from nodemanager.cli.main import main

sys.exit(main())
