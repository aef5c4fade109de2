"""The cluster's UUID and name, by which its nodes are known at the provider."""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from nodemanager.config.site import Site, name_file, uuid_file


class NotInitialised(Exception):
    """The site has no cluster UUID, which tells our nodes from others."""


def with_cluster_uuid(site: Site) -> Site:
    """Return the site with a cluster UUID. A simulated site's UUID comes from its seed, a real one's from ``init``.

    Raises ``NotInitialised``.
    """
    if site.cluster_uuid:
        return site
    if site.flux.simulated:
        return replace(site, cluster_uuid=str(uuid.UUID(int=site.simulation.seed)))
    raise NotInitialised(
        f"{site.path}: cluster {site.cluster} has no UUID: run flux-node-manager init, or give the cluster_uuid of"
        f" the instance under [Site] (it is kept in {uuid_file(site.state_dir)})"
    )


def record_cluster_name(site: Site) -> None:
    """Record the cluster's name before the first node carries it, so that a later change of name is noticed."""
    if site.flux.simulated or name_file(site.state_dir).exists():
        return
    try:
        site.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=site.state_dir, prefix=".cluster-name.") as draft:
            draft.write(site.cluster + "\n")
            draft.flush()
            with suppress(FileExistsError):  # another process has just recorded it
                os.link(draft.name, name_file(site.state_dir))  # whole or not at all
    except OSError as error:
        log: Any = structlog.get_logger()
        log.warning("cluster_name_not_kept", file=str(name_file(site.state_dir)), why=error.strerror)
