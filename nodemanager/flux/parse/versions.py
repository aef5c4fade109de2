"""What differs between the versions of flux-core that we support, and the release that made each difference.

Everything else is alike in them. ``doc/measurements/flux.md`` lists those that were tried.
"""

from __future__ import annotations

import re

Version = tuple[int, int]

# The oldest supported one: 0.72 brought the service ``resource.journal``, without which no news of ranks arrives.
FLOOR: Version = (0, 72)
# From 0.82 on the attribute ``hostname`` gives a broker its host name. Before, FLUX_FAKE_HOSTNAME did.
HOSTNAME_ATTRIBUTE: Version = (0, 82)
# Before 0.84 sched-simple knew no GPUs: Flux fails every job that asks for one.
GPUS_IN_SCHED_SIMPLE: Version = (0, 84)
# Before 0.84 sched-simple does not go on when the first job is held or cancelled. It looks at the queue again at
# the next submission, at the end of a job, or when a node joins. When a node joins, it starts one job only.
GOES_ON_AFTER_HOLD: Version = (0, 84)
# Before 0.84 an exception carries no wait status: a running job that one ends has ended by signal 15.
WAIT_STATUS_OF_EXCEPTION: Version = (0, 84)

_VERSION = re.compile(r"\b(\d+)\.(\d+)\.\d+")


def parse_version(text: str) -> Version | None:
    """Read the first version in a text, such as "0.88.0-8-g1234"; None if there is none."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found is not None else None


def why_too_old(text: str) -> str:
    """Say that a version is below the floor, and what to do; "" if it is not, or unknown."""
    version = parse_version(text)
    if version is None or version >= FLOOR:
        return ""
    return (
        f"this is flux-core {version[0]}.{version[1]}, and the node manager needs {FLOOR[0]}.{FLOOR[1]} or later:"
        " install a newer flux-core on this machine and in the nodes' image, or put its bin directory first on PATH"
    )


def named_broker(flux: str, host: str, version: Version | None) -> tuple[list[str], list[str]]:
    """Return the beginning and the end of the command of a broker with this host name."""
    if version is not None and version < HOSTNAME_ATTRIBUTE:
        return ["env", f"FLUX_FAKE_HOSTNAME={host}", flux, "broker"], []
    return [flux, "broker"], [f"-Shostname={host}"]


def no_gpus_text(version: Version) -> str:
    """Say that sched-simple of this version knows no GPUs."""
    first = f"{GPUS_IN_SCHED_SIMPLE[0]}.{GPUS_IN_SCHED_SIMPLE[1]}"
    return (
        f"sched-simple of flux-core {version[0]}.{version[1]} knows no GPUs, and Flux fails every job that asks for"
        f" one: use flux-core {first} or later, or Fluxion"
    )
