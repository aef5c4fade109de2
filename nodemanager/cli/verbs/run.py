"""The verb ``run``: the service itself."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.verbs.failures import report_failure
from nodemanager.cli.verbs.site_warnings import print_warnings

if TYPE_CHECKING:
    from nodemanager.config.site import Site
    from nodemanager.service.floors import Floors
    from nodemanager.service.outputs import Outputs
    from nodemanager.service.service import Companion


def run(site: Site, chosen: argparse.Namespace) -> int:
    """Run the service in the foreground until SIGTERM or SIGINT."""
    load_structlog_without_rich()
    from nodemanager.flux.bindings import BindingsMissing
    from nodemanager.join.open_files import FILES_MAX, raise_file_limit
    from nodemanager.service import logs, service
    from nodemanager.service.assembly.cluster import NotInitialised, record_cluster_name, with_cluster_uuid
    from nodemanager.service.assembly.ports import NodesCannotJoin, make_ports
    from nodemanager.service.outputs import Outputs

    del chosen
    raise_file_limit(FILES_MAX)
    logs.configure()
    print_warnings(site)
    try:
        site = with_cluster_uuid(site)
        record_cluster_name(site)
        outputs = Outputs(site)
        floors, companions = _ensembles(site, outputs)
        ports = make_ports(site, outputs.info, floors.answer)
    except (BindingsMissing, NotInitialised, NodesCannotJoin) as error:
        return report_failure(error)
    return service.serve(site, ports, outputs, floors, companions)


def load_structlog_without_rich() -> None:
    """Keep Rich out of the service: 4 MB. Structlog loads it if it can, for tracebacks that we do not show."""
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment] # how Python says that there is no such module
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def _ensembles(site: Site, outputs: Outputs) -> tuple[Floors, list[Companion]]:
    """Return what keeps nodes for ensembles, and what runs those of the site and serves those elsewhere."""
    from nodemanager.service.ensemble_costs import COSTS_FILE, DayCosts
    from nodemanager.service.floors import Floors

    floors = Floors(time.monotonic, site.limits.nodes_max, costs=DayCosts(site.state_dir / COSTS_FILE))
    companions: list[Companion] = []
    may_run = site.acts and not site.flux.simulated
    # Only sites that use them pay for these modules.
    if site.ensembles:
        from nodemanager.service.ensembles import Ensembles, terms_of

        floors.terms = terms_of(site)
        companions += [Ensembles(site, outputs.board.show_ensemble, outputs.record_ensemble)] if may_run else []
    if may_run and site.web.grpc_listen != "off":
        from nodemanager.service.members import MembersService

        companions.append(MembersService(site))
    return floors, companions


RUN = Verb(name="run", act=run, is_service=True)
