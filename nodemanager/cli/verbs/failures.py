"""How a verb that talks to Flux ends when it cannot do its work."""

from __future__ import annotations

import sys

from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_FAILED, EXIT_UNAVAILABLE


def report_failure(error: Exception) -> int:
    """Print why a verb failed. Return its exit status: Flux cannot be used here, the site lacks something, or 1."""
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service.assembly.cluster import NotInitialised
    from nodemanager.service.assembly.ports import NodesCannotJoin

    print(error, file=sys.stderr)
    if isinstance(error, BindingsMissing):
        return EXIT_UNAVAILABLE
    return EXIT_CONFIG if isinstance(error, NotInitialised | NodesCannotJoin) else EXIT_FAILED
