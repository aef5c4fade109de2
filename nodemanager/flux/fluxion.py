"""What differs with Fluxion, Flux's other scheduler: the queues in which it denies jobs, and how it chooses nodes.

With ``fcfs``, its default queue policy, Fluxion checks whether a job can ever run, and counts only the nodes
that are up. It denies a larger job for good (flux-sched 0.54, ``request_feasible``), before a node can be bought
for it. With its other policies such a job waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemanager.core.jobs import NodeOrder
from nodemanager.flux.parse.json_fields import list_at, object_at

QMANAGER = "sched-fluxion-qmanager"
PARAMS = "sched-fluxion-resource.params"
_DEFAULT_POLICY = "fcfs"  # Fluxion also uses it for a policy that it does not know
_WAITING_POLICIES = ("easy", "hybrid", "conservative")
_DEFAULT_QUEUE = "default"  # the queue of an instance that configures none

QUEUES_REMEDY = (
    'Set queue-policy = "easy" in [sched-fluxion-qmanager]: with fcfs Fluxion denies jobs for more nodes than are'
    " up, so no nodes can be bought for them"
)
_ORDER_OF_POLICY = {
    "first": NodeOrder.EMPTY_FIRST,
    "firstnode": NodeOrder.EMPTY_FIRST,  # of firstnodex
    "high": NodeOrder.MOST_FREE,
    "low": NodeOrder.LEAST_USED,
    "lonode": NodeOrder.LOWEST,
    "hinode": NodeOrder.HIGHEST,
}


def queues_that_deny(module_list: object, config: object) -> tuple[str, ...]:
    """List the queues in which jobs cannot wait for nodes, from replies to ``module.list`` and ``config.get``.

    Empty if Fluxion is not loaded, or if jobs can wait in every queue.
    """
    if not is_loaded(module_list):
        return ()
    tables = object_at(config, "config.get")
    settings = _table(tables, QMANAGER)
    policy = settings.get("queue-policy", _DEFAULT_POLICY)
    own = dict(
        pair.split(":", 1) for pair in str(settings.get("queue-policy-per-queue", "")).split() if ":" in pair
    )
    queues = _table(tables, "queues") or (_DEFAULT_QUEUE,)
    return tuple(name for name in queues if own.get(name, policy) not in _WAITING_POLICIES)


def is_loaded(module_list: object) -> bool:
    """Whether Fluxion is the scheduler, by a reply to ``module.list``."""
    modules = list_at(object_at(module_list, "module.list").get("mods"), "module.list.mods")
    return QMANAGER in {object_at(module, "module.list.mods[]").get("name") for module in modules}


def match_policy(params: object) -> str:
    """Return the policy by which Fluxion chooses nodes, from a reply to ``sched-fluxion-resource.params``."""
    values = object_at(object_at(params, PARAMS).get("params"), f"{PARAMS}.params")
    return str(values.get("policy") or "first")


def node_order_of(policy: str) -> NodeOrder | None:
    """Which node Fluxion gives to a job with this match policy; None if the planner does not model it."""
    return _ORDER_OF_POLICY.get(policy.removesuffix("x") if policy.endswith("nodex") else policy)


def planned_by(policy: str) -> str:
    """Say how nodes are planned with this match policy."""
    order = node_order_of(policy)
    if order is None:
        return "this match policy is not modelled: nodes are planned as if the most free one were used first"
    if policy.endswith("nodex"):
        return "jobs take whole nodes, and nodes are bought as if jobs shared them: the rest is bought later"
    return f"nodes are planned by this match policy: {order}"


def is_followed(policy: str) -> bool:
    """Whether nodes are bought as jobs with this match policy will use them."""
    return node_order_of(policy) is not None and not policy.endswith("nodex")


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name)
    return table if isinstance(table, dict) else {}
