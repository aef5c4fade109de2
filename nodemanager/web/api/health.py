"""The health checks: does the service decide, and on fresh data? For supervisors and load balancers."""

from __future__ import annotations

from nodemanager.web.api.documents import Document, sources
from nodemanager.web.state.board import Board

# A plan is made at least every ``actors.manager.SHOW_EVERY_S``, so a manager that is silent for this long is stuck.
DECISION_LATE_S = 15.0


def check_health(board: Board) -> tuple[bool, Document]:
    """Check that the last decision is recent and that no source is stale. After a start, sources get some time."""
    silent_s = board.silent_s
    document: Document = {"silent_s": round(silent_s, 3), "late": silent_s > DECISION_LATE_S, "stale": []}
    posted = board.latest
    if posted is not None:
        seen = sources(posted.published)
        grace_s = posted.published.policy.timing.stale_after_s
        starting = posted.posted_s - board.started_s < grace_s
        document["stale"] = [
            name for name, source in seen.items() if source["stale"] and not (starting and source["age_s"] is None)
        ]
        document["sources"] = seen
    well = not document["late"] and not document["stale"]
    return well, {"ok": well, **document}


def check_readiness(board: Board) -> tuple[bool, Document]:
    """Check that plans are made: the service holds or observes the instance, and every source has answered."""
    posted = board.latest
    if posted is None:
        return False, {"ok": False, "why": "nothing has been decided yet"}
    plan = posted.published.plan
    still = plan.stands_still
    well = still is None or plan.is_paused
    return well, {"ok": well, "why": str(still) if still is not None else ""}
