"""The providers of nodes. A new one is a folder of its own and one line here (CONTRIBUTING.md, A new provider)."""

from __future__ import annotations

# By the name that a site writes: the module whose ``PROVIDER`` declares everything else. It is imported when a site
# has such a cloud, so that a process has the libraries of its own providers only.
PROVIDERS: dict[str, str] = {
    "local": "nodemanager.cloud.local.provider",  # nodes are processes on this machine
    "simulated": "nodemanager.cloud.simulated",
    "ec2": "nodemanager.cloud.ec2.provider",
    "openstack": "nodemanager.cloud.openstack.provider",
    "gce": "nodemanager.cloud.gce.provider",
    "azure": "nodemanager.cloud.azure.provider",
    "flux": "nodemanager.cloud.outer_flux",  # nodes are jobs of an outer instance
    "minicluster": "nodemanager.cloud.minicluster.provider",  # nodes are pods of a Flux Operator MiniCluster
    "static": "nodemanager.cloud.static.provider",  # nodes are own hosts, woken and put to sleep by commands
}
