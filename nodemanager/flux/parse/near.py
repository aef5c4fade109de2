"""Read where a job's data is: ``node-manager.near`` and ``node-manager.data`` of its attributes.

An attribute that cannot be read does not refuse the job. It counts as if it were not there, and ``explain job``
says why. Whether the site has a cloud of that name is known to the planner only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.core.jobs import Near
from nodemanager.core.notation import escape_unprintable, parse_bytes
from nodemanager.core.slots import CloudName
from nodemanager.delegation.jobspec import DATA, NEAR
from nodemanager.flux.parse.json_fields import wrong_value

NAME_MAX = 64  # characters
SIZE_TEXT_MAX = 40
DATA_BYTES_MAX = 2**60
DATA_BITS = 6  # sizes differ in these leading bits only: jobs of similar sizes are planned together
FAULT_MAX = 200  # characters


def read_near(wish: Mapping[str, Any]) -> tuple[Near | None, str]:
    """Read the cloud of a job's data and the data's size, and what is wrong with them ("" if nothing is)."""
    cloud, data = wish.get(NEAR), wish.get(DATA)
    if cloud is None:
        return None, "data: there is no near, which names the cloud of the data" if data is not None else ""
    if not isinstance(cloud, str) or not 0 < len(cloud) <= NAME_MAX or not cloud.isprintable():
        return None, _fault(wrong_value(NEAR, f"the name of a cloud, of at most {NAME_MAX} characters", cloud))
    near = Near(CloudName(cloud))
    try:
        return (near if data is None else Near(near.cloud, _read_size(data))), ""
    except ValueError as error:
        return near, _fault(error)


def _read_size(data: object) -> int:
    """Read a size, in bytes, rounded up by at most 3 %."""
    if not isinstance(data, str) or len(data) > SIZE_TEXT_MAX:
        raise wrong_value(DATA, 'how much the job reads, such as "200GiB"', data)
    try:
        size_bytes = parse_bytes(data)
    except ValueError as error:
        raise ValueError(f"{DATA}: {error}") from error
    if not 0 < size_bytes <= DATA_BYTES_MAX:
        raise wrong_value(DATA, "a size from 1 to 2^60 bytes", data)
    step = 1 << max(0, size_bytes.bit_length() - DATA_BITS)
    return -(-size_bytes // step) * step


def _fault(error: ValueError) -> str:
    return escape_unprintable(str(error))[:FAULT_MAX]
