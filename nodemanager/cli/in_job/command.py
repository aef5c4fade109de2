"""The verbs that jobs, or the scripts that run after them, use: they need an instance, and no site file."""

from __future__ import annotations

import sys
from argparse import Namespace

from nodemanager.cli.parsing.exit_status import EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE, EXIT_USAGE
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import NotationError, escape_unprintable, parse_job_id
from nodemanager.core.ports import FluxError
from nodemanager.flux.bindings import BindingsMissing, connect, connection
from nodemanager.flux.in_job.data_safe import CannotSay, say_data_safe
from nodemanager.flux.in_job.release_idle import CannotRelease, release_idle_always
from nodemanager.flux.in_job.release_idle import release_idle as give_back_idle

CALL_WITHIN_S = 30.0


def data_safe(chosen: Namespace) -> int:
    """Say that the data of a job was copied off its nodes, and return the exit status."""
    try:
        job = JobId(parse_job_id(chosen.job))
    except NotationError as error:
        return _fail(f"JOBID: {error}", EXIT_USAGE)
    try:
        with connection(chosen.uri) as handle:
            print(say_data_safe(handle, job, chosen.ranks, timeout_s=CALL_WITHIN_S))
    except CannotSay as error:
        return _fail(str(error), EXIT_FAILED)
    except (BindingsMissing, FluxError) as error:
        return _fail(str(error), EXIT_UNAVAILABLE)
    return EXIT_OK


def release_idle(chosen: Namespace) -> int:
    """Give idle nodes of the instance back to the outer one, and return the exit status."""
    try:
        if chosen.follow:
            release_idle_always(
                chosen.uri, connect, chosen.idle_timeout, chosen.nodes_min, _tell, timeout_s=CALL_WITHIN_S
            )
        print(give_back_idle(chosen.uri, connect, chosen.most, timeout_s=CALL_WITHIN_S))
    except CannotRelease as error:
        return _fail(str(error), EXIT_FAILED)
    except (BindingsMissing, FluxError) as error:
        return _fail(str(error), EXIT_UNAVAILABLE)
    return EXIT_OK


def _tell(line: str) -> None:
    print(escape_unprintable(line), flush=True)


def _fail(text: str, status: int) -> int:
    print(*map(escape_unprintable, text.split("\n")), sep="\n", file=sys.stderr)  # some say how to get Flux
    return status
