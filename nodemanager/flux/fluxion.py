"""Find the queues in which Fluxion, Flux's other scheduler, denies jobs that need more nodes than are up.

With ``fcfs``, its default queue policy, Fluxion checks whether a job can ever run, and counts only the nodes
that are up. It denies a larger job for good (flux-sched 0.54, ``request_feasible``), before a node can be bought
for it. With its other policies such a job waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.flux.parse.json_fields import list_at, object_at

QMANAGER = "sched-fluxion-qmanager"
_DEFAULT_POLICY = "fcfs"  # Fluxion also uses it for a policy that it does not know
_WAITING_POLICIES = ("easy", "hybrid", "conservative")
_DEFAULT_QUEUE = "default"  # the queue of an instance that configures none


def queues_that_deny(module_list: object, config: object) -> tuple[str, ...]:
    """List the queues in which jobs cannot wait for nodes, from replies to ``module.list`` and ``config.get``.

    Empty if Fluxion is not loaded, or if jobs can wait in every queue.
    """
    modules = list_at(object_at(module_list, "module.list").get("mods"), "module.list.mods")
    if QMANAGER not in {object_at(module, "module.list.mods[]").get("name") for module in modules}:
        return ()
    tables = object_at(config, "config.get")
    settings = _table(tables, QMANAGER)
    policy = settings.get("queue-policy", _DEFAULT_POLICY)
    own = dict(
        pair.split(":", 1) for pair in str(settings.get("queue-policy-per-queue", "")).split() if ":" in pair
    )
    queues = _table(tables, "queues") or (_DEFAULT_QUEUE,)
    return tuple(name for name in queues if own.get(name, policy) not in _WAITING_POLICIES)


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name)
    return table if isinstance(table, dict) else {}
