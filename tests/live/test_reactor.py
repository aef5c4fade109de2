"""A reactor on a real instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.reactor import Reactor
from tests.live.instance import why_no_flux
from tests.live.pair import SoloInstance


def test_to_cancel_a_stream_that_has_ended_does_nothing(tmp_path: Path) -> None:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    instance = SoloInstance(tmp_path, "b")
    ended: list[CallFailed] = []
    try:
        instance.start()
        with Reactor(instance.uri) as reactor:

            def cancel_and_stop() -> None:
                cancel()
                reactor.stop()

            def take_end(failure: CallFailed) -> None:
                ended.append(failure)
                reactor.after(0.0, cancel_and_stop)  # by then the stream's future is destroyed

            watch = {"id": 5, "path": "guest.output", "flags": 0}
            cancel: Callable[[], None] = reactor.subscribe(
                "job-info.eventlog-watch", watch, lambda _: None, take_end
            )
            reactor.run()
    finally:
        instance.reap()
    assert len(ended) == 1
