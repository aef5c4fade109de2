"""Injects faults into the local cloud. The driver's ``faults`` and a file next to its nodes set them.

Example: ``echo '{"lost_reply": 1}' > STATE/faults.json``. Every call reads the file, so you can disturb a running
service from outside. A setting in the file overrides the driver's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

Countdown = Literal["lost_reply", "throttle"]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(ge=0.0, le=86_400.0)]
Count = Annotated[int, Field(ge=0)]


@dataclass(slots=True)
class Faults:
    """The faults to inject. A limit of ``None`` means no limit."""

    boot_delay_s: Seconds = 0.0  # how long a node is pending
    p_boot_fail: Probability = 0.0  # share of boots that end terminated, with Server.InternalError
    p_boot_hang: Probability = 0.0  # share of boots that look running but never run their user-data
    nodes_max: Count | None = None  # a create beyond it fails: InsufficientInstanceCapacity
    quota_max: Count | None = None  # a create beyond it fails: InstanceLimitExceeded
    lost_reply: Count = 0  # how many of the next creates succeed without an answer
    throttle: Count = 0  # how many of the next calls are refused
    api_latency_s: Seconds = 0.0  # how long each call takes


class FaultsUnreadableError(ValueError):
    """The faults file is invalid."""


class FaultBoard:
    """Combines the faults of one driver and of the file. Call it only while you hold the directory's lock."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        self._faults = faults

    def current(self) -> Faults:
        """Return the faults in effect. Raises :class:`FaultsUnreadableError`."""
        return replace(self._faults, **self._in_file())

    def count_down(self, countdown: Countdown) -> bool:
        """Return whether the fault applies to this call, and count the call."""
        in_file = self._in_file()
        left = int(in_file.get(countdown, getattr(self._faults, countdown)))
        if left == 0:
            return False
        if countdown in in_file:
            self._write({**in_file, countdown: left - 1})
        else:
            setattr(self._faults, countdown, left - 1)
        return True

    def _in_file(self) -> dict[str, Any]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            # The file is empty for a moment while somebody writes it.
            in_file = json.loads(text or "{}")
            known = _FAULTS_ADAPTER.dump_python(_FAULTS_ADAPTER.validate_python(in_file))
        except ValueError as error:
            raise FaultsUnreadableError(f"{self._path}: {_why_invalid(error)}; correct or remove it") from error
        unknown = sorted(in_file.keys() - known.keys())
        if unknown:
            raise FaultsUnreadableError(
                f"{self._path}: unknown faults: {', '.join(unknown)}; the known ones are {', '.join(known)}"
            )
        return {name: known[name] for name in in_file}

    def _write(self, faults: dict[str, Any]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(faults), encoding="utf-8")
        new.replace(self._path)


def _why_invalid(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return str(error)


_FAULTS_ADAPTER = TypeAdapter(Faults)
