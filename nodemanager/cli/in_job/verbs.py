"""The verbs ``data-safe`` and ``release-idle``, with their options."""

from __future__ import annotations

import argparse

from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb, positive
from nodemanager.core.notation import NotationError, parse_fsd


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


def _duration(text: str) -> float:
    try:
        return parse_fsd(text)
    except NotationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _release_idle(parser: Parser) -> None:
    once_or_always = parser.add_mutually_exclusive_group()
    once_or_always.add_argument(
        "--most", type=positive, metavar="N", help="give back at most N nodes (default: all idle ones)"
    )
    once_or_always.add_argument(
        "--follow",
        action="store_true",
        help="run until the instance ends, and give back each node that was idle for long while no job waits",
    )
    parser.add_argument(
        "--idle-timeout",
        type=_duration,
        default=300.0,
        metavar="TIME",
        help="with --follow: give back nodes that were idle for so long (default: 5m)",
    )
    parser.add_argument(
        "--nodes-min",
        type=positive,
        default=1,
        metavar="N",
        help="with --follow: keep at least N nodes, the first one included (default: 1)",
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
