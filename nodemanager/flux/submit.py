"""Submitting a job, and the two ways in which its id is written.

By the C API that the bindings wrap: their own ``flux.job`` imports what an installation may lack (PLY). Sources:
flux-core's ``flux.job.submit`` and ``flux.job.JobID``; RFC 19 (job ids).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nodemanager.flux.bindings import Handle, flux_call, flux_module

_URGENCY = 16  # RFC 30's default
_F58_MAX = 64


def submit(handle: Handle, jobspec: Mapping[str, Any], *, timeout_s: float) -> int:
    """Submit a jobspec (RFC 14); the job's id. Raises ``CallFailed``."""
    ffi, raw = _c_api()
    with flux_call("job submission"):
        sent = raw.flux_job_submit(handle, json.dumps(jobspec).encode(), _URGENCY, 0)
        with flux_module("flux.future").Future(sent) as future:
            future.wait_for(timeout_s)
            job_id = ffi.new("flux_jobid_t[1]")
            raw.flux_job_submit_get_id(future, job_id)
            return int(job_id[0])


def parse_id(text: str) -> int:
    """An id in any of its notations. Raises ``CallFailed`` for what is none."""
    ffi, raw = _c_api()
    with flux_call(f"job id {text}"):
        job_id = ffi.new("flux_jobid_t[1]")
        raw.flux_job_id_parse(text.encode(), job_id)
        return int(job_id[0])


def format_id(job_id: int) -> str:
    """As Flux shows it."""
    ffi, raw = _c_api()
    with flux_call(f"job id {job_id}"):
        text = ffi.new("char[]", _F58_MAX)
        raw.flux_job_id_encode(job_id, b"f58", text, _F58_MAX)
        return str(ffi.string(text).decode())


def _c_api() -> tuple[Any, Any]:
    core = flux_module("_flux._core")
    return core.ffi, flux_module("flux.wrapper").Wrapper(core.ffi, core.lib, prefixes=["flux_job_"])
