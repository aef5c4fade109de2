"""What the site's schedules set at a moment: the policy with the limits and waits of the open windows."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from nodemanager.core.slots import NodeType, TypeLimits
from nodemanager.core.upkeep.rules import Schedule
from nodemanager.core.upkeep.windows import is_open, next_change_at
from nodemanager.planner.state.policy import Policy


def scheduled_policy(policy: Policy, wall_at: float) -> Policy:
    """The policy as it applies at a moment. Of schedules that are open at once, the last one in the site counts."""
    upkeep = policy.upkeep
    expired = any(0.0 < of.prepaid_until_at <= wall_at for of in policy.node_types)
    if expired:
        types = (replace(of, prepaid=0) if 0.0 < of.prepaid_until_at <= wall_at else of for of in policy.node_types)
        policy = replace(policy, node_types=tuple(types))
    for schedule in upkeep.schedules:
        if is_open(schedule.windows, wall_at):
            policy = _with_schedule(policy, schedule)
    return policy


def schedule_changes_at(policy: Policy, wall_at: float) -> float:
    """When the passing of time changes what :func:`scheduled_policy` returns; infinity if it never does."""
    windows = [window for schedule in policy.upkeep.schedules for window in schedule.windows]
    ends = (of.prepaid_until_at for of in policy.node_types if of.prepaid_until_at > wall_at)
    return min(next_change_at(windows, wall_at), min(ends, default=inf))


def _with_schedule(policy: Policy, schedule: Schedule) -> Policy:
    types = tuple(_with_schedule_of_type(of, schedule) for of in policy.node_types)
    if schedule.node_types:
        return replace(policy, node_types=types)
    limits, rules = policy.limits, policy.rules
    nodes_max = schedule.nodes_max if schedule.nodes_max is not None else limits.nodes_max
    # Ensembles may keep more nodes than the site says: a schedule may raise that, but not take it away.
    nodes_min = limits.nodes_min
    if schedule.nodes_min is not None:
        nodes_min = max(schedule.nodes_min, policy.upkeep.nodes_min_of_ensembles)
    price = schedule.price_per_hour_max
    changed = replace(
        limits,
        nodes_max=nodes_max,
        nodes_min=min(nodes_min, nodes_max),
        price_per_hour_max=price if price is not None else limits.price_per_hour_max,
    )
    if schedule.idle_timeout_s is not None:
        rules = replace(rules, idle_timeout_s=schedule.idle_timeout_s)
    return replace(policy, limits=changed, rules=rules, node_types=types)


def _with_schedule_of_type(of: NodeType, schedule: Schedule) -> NodeType:
    if schedule.node_types and of.name not in schedule.node_types:
        return of
    spares = schedule.spares if schedule.spares is not None else of.spares
    idle_timeout_s = of.idle_timeout_s
    if schedule.idle_timeout_s is not None and schedule.node_types:
        idle_timeout_s = schedule.idle_timeout_s
    limits = _limits_of_type(of.limits, schedule) if schedule.node_types else of.limits
    return replace(of, spares=spares, idle_timeout_s=idle_timeout_s, limits=limits)


def _limits_of_type(limits: TypeLimits, schedule: Schedule) -> TypeLimits:
    nodes_max = schedule.nodes_max if schedule.nodes_max is not None else limits.nodes_max
    nodes_min = schedule.nodes_min if schedule.nodes_min is not None else limits.nodes_min
    price = schedule.price_per_hour_max
    return TypeLimits(
        nodes_min=nodes_min if nodes_max is None else min(nodes_min, nodes_max),
        nodes_max=nodes_max,
        price_per_hour_max=price if price is not None else limits.price_per_hour_max,
    )
