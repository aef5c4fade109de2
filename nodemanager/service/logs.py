"""Structured lines: readable on a terminal, JSON elsewhere. They go to standard error.

A bug is told with where it was met, never with the values that were in the variables there.
In systemd's journal, which stamps each line, a line has no time of its own; its level stands first (sd-daemon(3)).
"""

from __future__ import annotations

import logging
import sys

import structlog

from nodemanager.service.systemd import writes_to_systemd_journal

LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog's


def configure(level: int = logging.INFO) -> None:
    """Set the process's logging up. Called once, by the command line."""
    on_terminal = sys.stderr.isatty()
    in_journal = writes_to_systemd_journal(sys.stderr)
    shared: list[structlog.typing.Processor] = [structlog.processors.add_log_level]
    if not in_journal:
        shared.append(structlog.processors.TimeStamper(fmt="iso", utc=not on_terminal))
    rendering: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if on_terminal
        else [_traceback_renderer(), structlog.processors.JSONRenderer(default=str)]
    )
    if in_journal:
        rendering.append(_prefix_level)
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Pykka tells of an actor's death through the standard library.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


def _traceback_renderer() -> structlog.typing.Processor:
    """Without what the variables held, which structlog shows by itself: in a cloud call they hold its keys."""
    return structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def _prefix_level(_logger: object, level: str, line: object) -> str:
    return f"<{LEVELS.get(level, LEVELS['error'])}>{line}"
