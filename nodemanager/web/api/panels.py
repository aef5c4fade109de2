"""Documents for panels of the dashboard: costs by day, and the ensembles that the service runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from nodemanager.actors.user_names import user_name
from nodemanager.history.cost_ledger import JOB_USE
from nodemanager.web.api.documents import Document
from nodemanager.web.state.board import Board

GROUPINGS = ("type", "user", "queue", "use", "cloud")


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
