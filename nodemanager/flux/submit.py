"""Submit a job. Source: flux-core's ``flux.job.submit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.flux.bindings import CallFailed, Handle, flux_call
from nodemanager.flux.reactor import Reactor

_URGENCY = 16  # RFC 30's default


def submit(handle: Handle, jobspec: Mapping[str, Any], *, timeout_s: float) -> int:
    """Submit a jobspec (RFC 14) and return the job's id. Raises ``CallFailed``."""
    with flux_call("job submission"), handle.submit(jobspec, _URGENCY) as future:
        return int(future.wait(timeout_s).get())


def submit_later(
    reactor: Reactor,
    jobspec: Mapping[str, Any],
    urgency: int,
    on_answer: Callable[[int], None],
    on_failure: Callable[[CallFailed], None],
    *,
    timeout_s: float,
) -> None:
    """Submit a jobspec, and call ``on_answer`` with the job's id or ``on_failure`` from the reactor."""
    reactor.take_later(
        "job submission",
        lambda: reactor.handle.submit(jobspec, urgency),
        on_answer,
        on_failure,
        timeout_s=timeout_s,
    )
