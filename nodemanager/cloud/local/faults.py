"""What goes wrong at the local cloud, on demand: knobs on the driver, and in a file beside its nodes.

The file is read at each call, so that a running service can be disturbed from outside:
``echo '{"lost_reply": 1}' > STATE/faults.json``. A knob that the file names wins over the driver's.
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
    """The knobs. ``None`` for a limit is no limit."""

    boot_delay_s: Seconds = 0.0  # pending for so long
    p_boot_fail: Probability = 0.0  # of all boots: terminated, Server.InternalError
    p_boot_hang: Probability = 0.0  # of all boots: running for the cloud, user-data never runs
    nodes_max: Count | None = None  # more than that: InsufficientInstanceCapacity
    quota_max: Count | None = None  # more than that: InstanceLimitExceeded
    lost_reply: Count = 0  # the next so many creates are carried out and never answered
    throttle: Count = 0  # the next so many calls are refused
    api_latency_s: Seconds = 0.0  # each call takes so long


class FaultsUnreadableError(ValueError):
    """The file of knobs does not hold knobs."""


class FaultBoard:
    """The knobs of one driver and of the file, as one. To be used under the lock of the file's directory."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        self._faults = faults

    def current(self) -> Faults:
        """What is disturbed now. Raises :class:`FaultsUnreadableError`."""
        return replace(self._faults, **self._in_file())

    def count_down(self, countdown: Countdown) -> bool:
        """Whether this call is one of those counted, and count it."""
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
            # An empty file is one that is just being written.
            named = json.loads(text or "{}")
            known = _FAULTS_ADAPTER.dump_python(_FAULTS_ADAPTER.validate_python(named))
        except ValueError as error:
            raise FaultsUnreadableError(f"{self._path}: {_why_invalid(error)}; mend it or remove it") from error
        unknown = sorted(named.keys() - known.keys())
        if unknown:
            raise FaultsUnreadableError(
                f"{self._path}: no such knob: {', '.join(unknown)}; there are {', '.join(known)}"
            )
        return {name: known[name] for name in named}

    def _write(self, knobs: dict[str, Any]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(knobs), encoding="utf-8")
        new.replace(self._path)


def _why_invalid(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return str(error)


_FAULTS_ADAPTER = TypeAdapter(Faults)
