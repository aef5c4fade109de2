"""Reads of the KVS and submissions, on a handle that records what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

from nodemanager.flux import kvs
from nodemanager.flux.bindings import Handle
from nodemanager.flux.submit import submit


class Answer:
    """A future that has its answer."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """As a future's."""

    def wait(self, timeout_s: float) -> Self:
        assert timeout_s > 0
        return self

    def get(self) -> Any:
        return self._value


class Recorder:
    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = values or {}
        self.submitted: list[tuple[object, object]] = []

    def lookup(self, key: str) -> Answer:
        return Answer(self._values.get(key))

    def submit(self, jobspec: object, urgency: object) -> Answer:
        self.submitted.append((jobspec, urgency))
        return Answer(7)


def test_every_key_that_exists_is_read_however_many_there_are() -> None:
    for count in (0, 1, 256, 257, 600):
        values = {f"key{number}": str(number) for number in range(count)}
        handle = cast("Handle", Recorder(values))
        assert kvs.read(handle, [*values, "missing"], timeout_s=1.0) == values


def test_a_job_is_submitted_with_flux_s_default_urgency() -> None:
    recorder, jobspec = Recorder(), {"version": 1}
    assert submit(cast("Handle", recorder), jobspec, timeout_s=1.0) == 7
    assert recorder.submitted == [(jobspec, 16)]
