"""Opens the workload that the argument WORKLOAD names."""

from __future__ import annotations

import sys
from pathlib import Path

from nodemanager.config.site import Site
from nodemanager.history.store.schema import HISTORY_FILE
from nodemanager.whatif.workload.event_log import open_event_log
from nodemanager.whatif.workload.flux_jobs import open_flux_jobs, open_running_instance
from nodemanager.whatif.workload.from_history import open_service_history
from nodemanager.whatif.workload.swf import open_swf
from nodemanager.whatif.workload.synthetic import open_synthetic
from nodemanager.whatif.workload.workload import Processors, Workload, WorkloadError


def open_workload(name: str, site: Site, each: Processors) -> Workload:
    """Open a workload by its name. Raises :class:`WorkloadError`.

    - a trace: ``.swf``, ``.swf.gz``
    - Flux's own job list: ``.json``; "-" for standard input; "flux" for the site's running instance
    - the history of the service: ``.sqlite``, ``journal:PATH``; "journal" for the site's own
    - the event log of an earlier run: ``.jsonl``
    - a synthetic workload: ``lublin:...``, ``poisson:...``
    """
    path = Path(name)
    if name == "-":
        return open_flux_jobs(Path("standard input"), sys.stdin)
    if name == "flux":
        return open_running_instance(site.flux.uri)
    if name.endswith((".swf", ".swf.gz")):
        return open_swf(path, each)
    kept = history_path(name, site)
    if kept is not None:
        return open_service_history(kept)
    if path.suffix == ".jsonl":
        return open_event_log(path)
    if path.suffix == ".json":
        return open_flux_jobs(path)
    if ":" in name:
        return open_synthetic(name, _site_processors(site, each), each)
    raise WorkloadError(
        f'{name}: not a workload. Give a file .swf, .swf.gz, .json (from "flux jobs -a --json"), .jsonl (from '
        '--journal) or .sqlite (from the service), "-" (standard input), "flux" (the jobs of the running '
        'instance), "journal" (the jobs that the service saw end), lublin:jobs=1000,seed=1 or poisson:jobs=1000'
    )


def history_path(name: str, site: Site) -> Path | None:
    """Return the path of the service's history that WORKLOAD names; None if it names something else."""
    if name == "journal":
        return site.state_dir / HISTORY_FILE
    if Path(name).suffix == ".sqlite" or name.startswith("journal:"):
        return Path(name.removeprefix("journal:"))
    return None


def _site_processors(site: Site, each: Processors) -> int:
    """The most processors that the site may have at once."""
    cores = sorted((node_type.cores for node_type in site.node_types for _ in node_type.slots), reverse=True)
    there = cores[: site.limits.nodes_max]
    return len(there) if each is Processors.NODES else sum(there)
