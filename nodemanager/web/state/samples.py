"""Keeps the samples of the charts in a file, so that they go on after a restart.

The file is only for the charts. If it is lost or damaged, they begin at the restart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from nodemanager.history.follower import HistoryUpdate
from nodemanager.web.state.board import Board, Sample

SAMPLES_FILE = "charts.json"  # in the site's state_dir
KEPT_EVERY_S = 30.0
KEPT_SAMPLES: TypeAdapter[Sequence[Sample]] = TypeAdapter(Sequence[Sample])


def read_samples(path: Path) -> Sequence[Sample]:
    """Read the kept samples, oldest first; none if there are none that can be used."""
    try:
        found = KEPT_SAMPLES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as error:
        structlog.get_logger().warning("charts_not_resumed", path=str(path), why=str(error).partition("\n")[0])
        return ()
    return sorted(found, key=lambda sample: sample.at)


class SampleKeeper:
    """Writes the board's samples to a file every half a minute, and at the end. ``clock_s``: monotonic."""

    def __init__(self, board: Board, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._path = path
        self._clock_s = clock_s
        self._kept_s = clock_s()
        self._failure = ""  # of the latest write; "" if it worked

    def take_in(self, update: HistoryUpdate) -> None:
        """Keep the samples if it is time. Called by the history thread, after the board took the update in."""
        del update
        if self._clock_s() - self._kept_s >= KEPT_EVERY_S:
            self.keep()

    def keep(self) -> None:
        """Write the file. A failure is logged, and harms nothing else."""
        self._kept_s = self._clock_s()
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(json.dumps([asdict(sample) for sample in self._board.samples()]), encoding="utf-8")
            os.replace(new, self._path)  # noqa: PTH105 - as elsewhere: readers see the old file or the new one
        except OSError as error:
            if self._failure != (failure := str(error)):
                structlog.get_logger().warning("charts_not_kept", path=str(self._path), why=failure)
            self._failure = failure
            with suppress(OSError):
                new.unlink(missing_ok=True)  # a full disk leaves an empty one
        else:
            self._failure = ""
