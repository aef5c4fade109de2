"""How a verb that talks to Flux ends when it cannot do its work."""

from __future__ import annotations

from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_FAILED, EXIT_UNAVAILABLE
from nodemanager.cli.verbs.service_call import print_error


def report_failure(error: Exception, *, as_json: bool = False) -> int:
    """Print why a verb failed. Return its exit status: Flux cannot be used here, the site lacks something, or 1."""
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.service.assembly.cluster import NotInitialised
    from nodemanager.service.assembly.ports import NodesCannotJoin

    if isinstance(error, BindingsMissing):
        status = EXIT_UNAVAILABLE
    else:
        status = EXIT_CONFIG if isinstance(error, NotInitialised | NodesCannotJoin) else EXIT_FAILED
    return print_error(error, status, as_json=as_json)
