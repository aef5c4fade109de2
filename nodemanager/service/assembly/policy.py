"""Takes from a site file what the planner needs."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal
from typing import TypeVar

from nodemanager.config.site import (
    BATCHES_AT_ONCE,
    BATCHES_PER_S,
    Burst,
    Site,
)
from nodemanager.config.text.settings import SectionSettings
from nodemanager.core.nodes import FailureKind
from nodemanager.core.upkeep.rules import Disruption, Schedule
from nodemanager.planner.policy import BLOCK_S, Calls, CloudRules, Fixed, Limits, Policy, Rules, Timing, Upkeep
from nodemanager.planner.spending import cloud_account

# How long a refused member of an ensemble waits before it asks for pods again: at first, and at most.
SHARED_AGAIN_S = 15.0
SHARED_AGAIN_S_MAX = 120.0
_Group = TypeVar("_Group", Limits, Timing, Rules, Calls)


def policy_of(site: Site) -> Policy:
    """Take from the site what the planner needs. A manager that never acts reports all types alike."""
    return Policy(
        cluster=site.cluster,
        cluster_uuid=site.cluster_uuid,
        node_types=site.node_types,
        limits=_settings(Limits, site.limits),
        timing=_settings(Timing, site.timing),
        rules=_settings(Rules, site.policy),
        calls=_calls(site),
        upkeep=_upkeep(site),
        budgets=_budgets(site),
        observed=site.observed_types if site.acts else frozenset(),
        bursts=site.policy.burst is Burst.PEERS and bool(site.peers),
        destroy_on_replay=site.join.destroy_on_replay,
        stacked=site.rules.is_stack,
        fixed=_fixed(site),
        clouds={
            name: CloudRules(
                _calls(part), part.cloud.nodes_max, part.cloud.price_per_hour_max, part.cloud.egress_price_per_gib
            )
            for name, part in site.by_cloud.items()
        },
    )


def _fixed(site: Site) -> Fixed:
    if not site.cloud.service:
        return Fixed()
    # Pods that other members give back are free within seconds, or when their jobs end. The service forgets a wish
    # that is not repeated within five minutes.
    return Fixed(block_s={**BLOCK_S, FailureKind.QUOTA: SHARED_AGAIN_S}, probe_s_max=SHARED_AGAIN_S_MAX)


def _budgets(site: Site) -> dict[tuple[str, str], Decimal]:
    """The budgets of the site, its users, queues and clouds, by owner and period."""
    of_clouds = {
        (cloud_account(name), period): limit
        for name, part in site.by_cloud.items()
        for period, limit in (("day", part.cloud.per_day), ("month", part.cloud.per_month))
        if limit is not None
    }
    return {**site.budget.limits, **of_clouds}


def _calls(site: Site) -> Calls:
    cloud = site.cloud
    return Calls(
        cloud.call_timeout_s,
        cloud.calls_in_flight_max,
        *site.create_rate,
        nodes_per_create=cloud.nodes_per_call if site.batches else 1,
        create_calls_per_s=BATCHES_PER_S,
        create_calls_burst=BATCHES_AT_ONCE if site.batches else None,
        nodes_per_destroy=cloud.nodes_per_call if site.rules.destroys_many else 1,
    )


def _upkeep(site: Site) -> Upkeep:
    whole = site.disruption.disruption
    of_type = {
        name: Disruption(
            *(node.disruption_max if node.disruption_max is not None else (None, 1.0)),
            node.disruption_windows if node.disruption_windows is not None else whole.windows,
        )
        for name, node in site.nodes.items()
        if node.disruption_max is not None or node.disruption_windows is not None
    }
    schedules = tuple(
        Schedule(
            name,
            schedule.when,
            schedule.node_types,
            schedule.nodes_min,
            schedule.nodes_max,
            schedule.price_per_hour_max,
            schedule.spares,
            schedule.idle_timeout_s,
        )
        for name, schedule in site.schedules.items()
    )
    policy = site.policy
    return Upkeep(
        drift=policy.drift,
        disruption=whole,
        of_type=of_type,
        consolidate=policy.consolidate,
        consolidate_gain=policy.consolidate_gain,
        schedules=schedules,
        wait_for_data=policy.wait_for_data,
        data_max_s=policy.data_max_s,
    )


def _settings(group: type[_Group], section: SectionSettings) -> _Group:
    """The group's settings, which have the same names in the section of the site."""
    return group(**{it.name: getattr(section, it.name) for it in fields(group)})
