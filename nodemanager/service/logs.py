"""The log: lines on standard error, readable on a terminal and JSON elsewhere.

A traceback never shows the values of variables, which may be secrets. In systemd's journal, which has its own
timestamps, a line has no time and begins with its level, as in ``<4>`` (sd-daemon(3)).
"""

from __future__ import annotations

import logging
import sys

import structlog

from nodemanager.service.systemd import writes_to_systemd_journal

LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog's


def configure(level: int = logging.INFO) -> None:
    """Configure the logging of the process. The command line calls it once."""
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
    # Pykka logs the failure of an actor through the standard library, and so do other packages.
    foreign = logging.StreamHandler(sys.stderr)
    foreign.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[foreign])
    # Uvicorn would warn of every invalid request, which any client can send by the thousand.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def _traceback_renderer() -> structlog.typing.Processor:
    """Render tracebacks without local variables, unlike structlog's default: in a cloud call they include keys."""
    return structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def _prefix_level(_logger: object, level: str, line: object) -> str:
    return f"<{LEVELS.get(level, LEVELS['error'])}>{line}"
