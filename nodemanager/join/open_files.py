"""Raises the number of files that this process may open."""

from __future__ import annotations

import resource
from contextlib import suppress

FILES_MAX = 8192  # enough for every bound on connections


def raise_file_limit(wanted: int) -> int | None:
    """Raise the limit of open files to ``wanted``, as far as the system allows. Return it; None is no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != soft < wanted:
        new_soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
