"""Fluxion, Flux's other scheduler: whether jobs may wait under it for nodes that are yet to come.

By its queue policy ``fcfs``, its default, it asks of each job whether it could ever run, and counts the nodes that
are up: a job for more of them than that is denied for good (flux-sched 0.54, ``request_feasible``), before any node
can come for it. By its other policies such a job waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.flux.parse.json_fields import list_at, object_at

QMANAGER = "sched-fluxion-qmanager"
_DEFAULT = "fcfs"  # also where it does not know the policy
_BY_WHICH_JOBS_WAIT = ("easy", "hybrid", "conservative")
_UNNAMED = "default"  # the queue of an instance that configures none


def queues_that_deny(module_list: object, config: object) -> tuple[str, ...]:
    """The queues in which jobs do not wait for nodes, as the instance is configured.

    From replies to ``module.list`` and ``config.get``; () where Fluxion does not schedule, or all of them wait.
    """
    modules = list_at(object_at(module_list, "module.list").get("mods"), "module.list.mods")
    if QMANAGER not in {object_at(module, "module.list.mods[]").get("name") for module in modules}:
        return ()
    tables = object_at(config, "config.get")
    settings = _table(tables, QMANAGER)
    policy = settings.get("queue-policy", _DEFAULT)
    own = dict(
        pair.split(":", 1) for pair in str(settings.get("queue-policy-per-queue", "")).split() if ":" in pair
    )
    return tuple(
        name for name in _table(tables, "queues") or (_UNNAMED,) if own.get(name, policy) not in _BY_WHICH_JOBS_WAIT
    )


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name)
    return table if isinstance(table, dict) else {}
