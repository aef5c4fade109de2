"""Names for what a provider calls by name: fit for a host, and unlike those of every other launch."""

from __future__ import annotations

import hashlib
import re

from nodemanager.core.nodes import LaunchId

NAME_MAX_CHARS = 60  # it becomes the host name


def launch_digest(launch: LaunchId) -> str:
    """32 hexadecimal digits for a launch, whatever characters its id has."""
    return hashlib.sha256(launch.encode()).hexdigest()[:32]


def unique_name(name: str, launch: LaunchId) -> str:
    """``ada-node-1-9d1b9e22``: letters, digits and "-" only, a letter or digit first and last."""
    fit = re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")
    return f"{fit[: NAME_MAX_CHARS - 9].strip('-')}-{launch_digest(launch)[:8]}"
