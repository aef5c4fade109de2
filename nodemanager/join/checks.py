"""What ``check`` says of joining: who is not served, and which node can end its own cost."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nodemanager.config.site import Site
from nodemanager.join.key_material import MaterialError, why_multi_user

# By the provider's name. A node that powers itself off is not gone at every provider.
POWEROFF_EFFECTS: Mapping[str, str] = MappingProxyType(
    {
        "local": "a node that ends itself is gone: its processes are all there is of it",
        "flux": "a node that ends itself is gone: the job that it is ends with its broker",
        "simulated": "nodes are values, and cost nothing",
        "ec2": "a node that powers itself off ends its cost: it is created to terminate on shutdown",
        "openstack": "a node that powers itself off may go on costing (SHUTOFF), until a manager destroys it",
        "gce": "a node that powers itself off goes on costing for its disk, until a manager destroys it",
        "azure": "a node that powers itself off goes on costing, until a manager destroys it",
    }
)


def multi_user_refusal(site: Site) -> str:
    """Why the join service does not serve this instance; "" where it does, or where there is none yet."""
    if not (site.flux.bootstrap_dir / "conf.d").is_dir():
        return ""
    try:
        why = why_multi_user(site.flux.bootstrap_dir)
    except MaterialError as error:
        return str(error)
    return f"join = service serves instances of one user; {why}" if why else ""
