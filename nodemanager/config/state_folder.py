"""Whether the service could write its files to ``state_dir``: found out by writing one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PROBE_BYTES = 4096  # a block: a full disk has not even that
STATE_DIR_EFFECT = (
    "The service could not write its token, so nobody could steer it and it would buy no node; nor could it write"
    " its history"
)


def why_not_writable(folder: Path) -> str:
    """Why no file can be written to the folder; "" if one can. Nothing stays there.

    If the folder does not exist yet, this tries to make one where the service would.
    """
    try:
        if not folder.is_dir():
            existing = next(it for it in folder.parents if it.exists())
            with tempfile.TemporaryDirectory(dir=existing, prefix=".flux-node-manager."):
                return ""
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
    return ""
