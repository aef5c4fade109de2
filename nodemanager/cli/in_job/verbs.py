"""The verbs ``data-safe`` and ``release-idle``, with their options."""

from __future__ import annotations

import argparse

from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb, positive


def _data_safe(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOBID", help="the job whose data was copied off its nodes")
    parser.add_argument(
        "ranks",
        nargs="?",
        default="",
        metavar="RANKS",
        help='on rank 0: the ranks that are done, such as 1-3, or "all"; default: the rank of this machine, and '
        "on rank 0 all",
    )
    parser.add_argument("--uri", default="", help="the Flux instance (default: the enclosing one)")


def data_safe(chosen: argparse.Namespace) -> int:
    """Say that the data of a job was copied off its nodes, from housekeeping or an epilog."""
    from nodemanager.cli.in_job import command

    return command.data_safe(chosen)


def _release_idle(parser: Parser) -> None:
    parser.add_argument(
        "--most", type=positive, metavar="N", help="give back at most N nodes (default: all idle ones)"
    )
    parser.add_argument("--uri", default="", help="the instance that gives nodes back (default: the enclosing one)")


def release_idle(chosen: argparse.Namespace) -> int:
    """Give idle nodes of a batch job's own instance back before the job ends."""
    from nodemanager.cli.in_job import command

    return command.release_idle(chosen)


DATA_SAFE = Verb(
    name="data-safe",
    act=data_safe,
    add_options=_data_safe,
    example="$FLUX_JOB_ID",
    has_site=False,
)
RELEASE_IDLE = Verb(
    name="release-idle",
    act=release_idle,
    add_options=_release_idle,
    example="--most 2",
    has_site=False,
)
