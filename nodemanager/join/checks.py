"""The part of the verb ``check`` that concerns joining: the effect of powering off."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# By the provider's name. At some providers a node that powers itself off still costs money.
POWEROFF_EFFECTS: Mapping[str, str] = MappingProxyType(
    {
        "local": "a node that powers itself off is gone: it consists only of processes",
        "flux": "a node that powers itself off is gone: its job ends with its broker",
        "minicluster": "a pod that ends is started again: only a smaller size removes it",
        "simulated": "nodes are simulated and cost nothing",
        "ec2": "a node that powers itself off costs no more: it is created to terminate on shutdown",
        "openstack": "a node that powers itself off (SHUTOFF) may still cost money until a manager destroys it",
        "gce": "a node that powers itself off still costs money for its disk until a manager destroys it",
        "azure": "a node that powers itself off still costs money until a manager destroys it",
    }
)
