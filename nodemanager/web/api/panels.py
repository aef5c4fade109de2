"""Documents for panels of the dashboard: costs by day, the clouds, and the ensembles that the service runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodemanager.actors.manager import Publication
from nodemanager.actors.user_names import user_name
from nodemanager.core.nodes import FailureKind
from nodemanager.core.reasons import Reason
from nodemanager.core.slots import CloudName
from nodemanager.history.cost_ledger import JOB_USE
from nodemanager.planner.backoff import refusal_reason
from nodemanager.planner.billing import room_of
from nodemanager.planner.breakers import breaker_open, open_breaker
from nodemanager.planner.budget import left_by_period
from nodemanager.planner.policy import CloudRules
from nodemanager.planner.snapshot import ALL_TYPES, Scope
from nodemanager.planner.spending import cloud_account
from nodemanager.planner.trust import closed_clouds, clouds_with_nodes, stale_clouds, unsafe_clouds
from nodemanager.web.api.documents import Document, clock_of, reason_document
from nodemanager.web.state.board import Board

GROUPINGS = ("type", "user", "queue", "use", "cloud")
# The word for a cloud that refuses creates, by the kind of its last refusal. Of the others: "refuses".
REFUSES = {FailureKind.THROTTLED: "throttled"}


def costs(rows: Iterable[Mapping[str, Any]], *, with_users: bool) -> Document:
    """Costs of each day (UTC) that has one, by type, user, queue, use and cloud; estimates.

    ``rows``: of ``cost_by_day``. A cloud is "" in records of versions that did not keep it.

    Nodes without a job count for no user and no queue, but for their type. ``with_users``: users and queues too.
    """
    days: dict[float, dict[str, defaultdict[str, float]]] = {}
    for row in rows:
        day = days.setdefault(row["day_at"], {name: defaultdict(float) for name in GROUPINGS})
        day["type"][row["node_type"]] += row["cost"]
        day["use"][row["use"]] += row["cost"]
        day["cloud"][row["cloud"]] += row["cost"]
        if with_users and row["use"] == JOB_USE:
            day["user"][user_name(row["userid"])] += row["cost"]
            day["queue"][row["queue"]] += row["cost"]
    return {
        "shown": with_users,
        "days": [
            {"day_at": day_at, "cost": sum(sums["type"].values()), **{f"by_{name}": sums[name] for name in sums}}
            for day_at, sums in sorted(days.items())
        ],
    }


def ensembles(board: Board, *, shown: bool) -> Document:
    """The ensembles that the service runs, and the nodes kept for each ensemble of the instance.

    ``shown``: whether the client may see them; their groups and rules are those of the owner's jobs.
    """
    return {
        "shown": shown,
        "nodes_kept": dict(board.nodes_kept) if shown else {},
        "ensembles": [
            {
                "name": name,
                "groups": summary.get("groups", {}),
                "rules": summary.get("rules", []),
                "nodes_floor": summary.get("nodes_floor", 0),
                "begun_at": summary.get("begun_at"),
                "at": summary.get("at"),
            }
            for name, summary in sorted(board.ensembles.items())
            if shown
        ],
    }


# --- clouds -----------------------------------------------------------------------------------------------


def clouds(published: Publication) -> list[Document]:
    """All clouds, in the order of the site. Empty for a site that has a single one."""
    snapshot, policy = published.snapshot, published.policy
    names = clouds_with_nodes(snapshot, policy)
    if len(names) < 2:
        return []
    states: dict[CloudName, Counter[str]] = {name: Counter() for name in names}
    for node in snapshot.nodes.values():
        states[policy.cloud_of(node.launch)][str(node.state)] += 1
    by_owner, closed = budgets(published), _closed(published)
    troubles = {name: [*closed.get(name, ()), *_troubles(name, published)] for name in names}
    return [
        _cloud(name, published, states[name], by_owner.get(cloud_account(name), []), troubles[name])
        for name in names
    ]


def _cloud(
    name: CloudName,
    published: Publication,
    by_state: Counter[str],
    budgets: list[Document],
    troubles: list[Document],
) -> Document:
    rules = published.policy.clouds.get(name, CloudRules())
    room = room_of(name, published.snapshot, published.policy)
    most = rules.price_per_hour_max
    return {
        "name": name,
        "state": troubles[0]["state"] if troubles else "open",
        "nodes": room.nodes,  # with those that no launch owns, as its limits count them
        "by_state": dict(by_state),
        "nodes_max": rules.nodes_max,
        "price_per_hour": float(room.price_per_hour),
        "price_per_hour_max": float(most) if most is not None else None,
        "budgets": budgets,
        "troubles": troubles,
    }


def budgets(published: Publication) -> dict[str, list[Document]]:
    """What the owners of budgets (the site and its clouds, as ``planner.spending`` names them) have spent."""
    found: dict[str, list[Document]] = {}
    for (owner, period), rest in left_by_period(published.snapshot, published.policy).items():
        budget = published.policy.budgets[owner, period]
        amounts = {"budget": float(budget), "spent": float(budget - rest), "left": float(rest)}
        found.setdefault(owner, []).append({"period": period, **amounts})
    return found


def _closed(published: Publication) -> dict[CloudName, list[Document]]:
    """Why nothing at all is done in a cloud: one trouble for each that is closed."""
    snapshot, policy = published.snapshot, published.policy
    stale, unsafe = stale_clouds(snapshot, policy), unsafe_clouds(snapshot, policy)
    found: dict[CloudName, list[Document]] = {}
    for name, why in closed_clouds(snapshot, policy, stale, unsafe).items():
        account = snapshot.account_of(name)
        if name in stale:
            seen_s = account.source.seen_s
            since_s = seen_s + policy.timing.stale_after_s if seen_s is not None else None
            trouble = _trouble("stale", why, published, since_s=since_s)
        elif name in unsafe:
            trouble = _trouble("safe mode", why, published, since_s=account.unready_since_s)
        else:
            trouble = _trouble("not in the site", why, published)
        found[name] = [trouble]
    return found


def _troubles(name: CloudName, published: Publication) -> Iterator[Document]:
    """What keeps nodes from being created in a cloud that is open, the worst first."""
    snapshot, policy = published.snapshot, published.policy
    basis = published.plan.basis
    overspent = basis.placement.limits.overspent_clouds if basis is not None and policy.budgets else {}
    if name in overspent:
        yield _trouble("budget spent", overspent[name], published)
    types = {it.name for it in policy.node_types if it.cloud == name}
    for scope, block in snapshot.learned.blocks.items():
        of_cloud = scope.cloud == name if scope.type_name == ALL_TYPES else scope.type_name in types
        if of_cloud and block.until_s > snapshot.now_s:
            state, why = REFUSES.get(block.kind, "refuses"), refusal_reason(block)
            yield _trouble(state, why, published, scope, block.since_s, block.until_s)
    for node_type in policy.node_types:
        streak = open_breaker(node_type, snapshot, policy) if node_type.cloud == name else None
        if streak is not None:
            why = breaker_open(node_type, streak)
            yield _trouble("breaker open", why, published, Scope(node_type.name), streak.since_s, streak.retry_s)


def _trouble(
    state: str,
    why: Reason,
    published: Publication,
    scope: Scope | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
) -> Document:
    """``scope``: what is concerned, if it is not the whole cloud."""
    clock = clock_of(published)
    node_type = scope.type_name if scope is not None and scope.type_name != ALL_TYPES else None
    return {
        "state": state,
        "node_type": node_type,
        "zone": scope.zone if scope is not None else None,
        "since_at": clock.to_wall(since_s) if since_s is not None else None,
        "until_at": clock.to_wall(until_s) if until_s is not None else None,
        "reason": reason_document(why, clock),
    }
