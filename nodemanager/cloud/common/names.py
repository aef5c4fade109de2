"""Names for resources that a provider identifies by name: valid as host names, unique to their launch."""

from __future__ import annotations

import hashlib
import re

from nodemanager.core.nodes import LaunchId

NAME_MAX_CHARS = 60  # the name becomes the host name


def launch_digest(launch: LaunchId) -> str:
    """Return 32 hexadecimal digits that identify a launch, for places that restrict the characters of an id."""
    return hashlib.sha256(launch.encode()).hexdigest()[:32]


def unique_name(name: str, launch: LaunchId) -> str:
    """Return a name such as ``ada-node-1-9d1b9e22``: letters, digits and "-", with no "-" at either end."""
    valid = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")
    return f"{valid[: NAME_MAX_CHARS - 9].strip('-')}-{launch_digest(launch)[:8]}"
