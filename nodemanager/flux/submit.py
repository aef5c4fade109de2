"""Submit a job, and read and write job ids.

This uses the C API that the bindings wrap, because ``flux.job`` imports PLY, which an installation may lack.
Sources: flux-core's ``flux.job.submit`` and ``flux.job.JobID``; RFC 19 (job ids).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from nodemanager.flux.bindings import CallFailed, Future, Handle, checked_future, flux_call, flux_module
from nodemanager.flux.reactor import Reactor

_URGENCY = 16  # RFC 30's default
_F58_MAX = 64


def submit(handle: Handle, jobspec: Mapping[str, Any], *, timeout_s: float) -> int:
    """Submit a jobspec (RFC 14) and return the job's id. Raises ``CallFailed``."""
    _, raw = _c_api()
    with flux_call("job submission"):
        sent = raw.flux_job_submit(handle, json.dumps(jobspec).encode(), _URGENCY, 0)
        with checked_future(flux_module("flux.future").Future(sent)) as future:
            future.wait_for(timeout_s)
            return _read_answer(future)


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
    _, raw = _c_api()

    def send() -> Future:
        return flux_module("flux.future").Future(
            raw.flux_job_submit(reactor.handle, json.dumps(jobspec).encode(), urgency, 0)
        )

    reactor.take_later("job submission", send, _read_answer, on_answer, on_failure, timeout_s=timeout_s)


def _read_answer(future: Future) -> int:
    """Return the new job's id. Raises ``OSError`` with the words of the validator that refused the job, if any."""
    ffi, raw = _c_api()
    job_id = ffi.new("flux_jobid_t[1]")
    try:
        raw.flux_job_submit_get_id(future, job_id)
    except OSError as error:
        raise OSError(error.errno, future.error_string() or error.strerror) from error
    return int(job_id[0])


def parse_id(text: str) -> int:
    """Read a job id in any notation. Raises ``CallFailed`` if the text is not a job id."""
    ffi, raw = _c_api()
    with flux_call(f"job id {text}"):
        job_id = ffi.new("flux_jobid_t[1]")
        raw.flux_job_id_parse(text.encode(), job_id)
        return int(job_id[0])


def format_id(job_id: int) -> str:
    """Write a job id as Flux shows it (F58)."""
    ffi, raw = _c_api()
    with flux_call(f"job id {job_id}"):
        text = ffi.new("char[]", _F58_MAX)
        raw.flux_job_id_encode(job_id, b"f58", text, _F58_MAX)
        return str(ffi.string(text).decode())


def _c_api() -> tuple[Any, Any]:
    core = flux_module("_flux._core")
    return core.ffi, flux_module("flux.wrapper").Wrapper(core.ffi, core.lib, prefixes=["flux_job_"])
