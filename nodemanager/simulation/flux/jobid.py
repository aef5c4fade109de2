"""Job ids as Flux shows them: F58 (RFC 19), base 58 with the letter f in front."""

from __future__ import annotations

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import format_job_id, parse_job_id


def format_f58(job_id: JobId) -> str:
    """Format an id in the ASCII form of F58: ``fLqTPgb``."""
    return format_job_id(job_id)


def parse_f58(text: str) -> JobId:
    """Read an id in the ``f`` or ``ƒ`` form. Raises ValueError."""
    if not text.startswith(("ƒ", "f")):
        raise ValueError(f"{text!r} is not a job id: give its F58 form, such as fLqTPgb")
    return JobId(parse_job_id(text))
