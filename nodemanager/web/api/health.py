"""Whether the service decides, and on fresh data: for whoever restarts it, and for whoever sends it work."""

from __future__ import annotations

from nodemanager.web.api.documents import Document, sources
from nodemanager.web.state.board import Board

# A plan is made every few seconds (``planner/pace.py``): a brain that is silent for so long stands still.
DECISION_LATE_S = 15.0


def check_health(board: Board) -> tuple[bool, Document]:
    """Not where the last decision is long ago, or a source is stale. A source gets its time after the start."""
    silent_s = board.silent_s
    document: Document = {"silent_s": round(silent_s, 3), "late": silent_s > DECISION_LATE_S, "stale": []}
    posted = board.latest
    if posted is not None:
        seen = sources(posted.published)
        grace_s = posted.published.policy.stale_after_s
        starting = posted.posted_s - board.started_s < grace_s
        document["stale"] = [
            name for name, source in seen.items() if source["stale"] and not (starting and source["age_s"] is None)
        ]
        document["sources"] = seen
    well = not document["late"] and not document["stale"]
    return well, {"ok": well, **document}


def check_readiness(board: Board) -> tuple[bool, Document]:
    """Once plans are made: it holds the instance, or observes it, and every source has answered."""
    posted = board.latest
    if posted is None:
        return False, {"ok": False, "why": "nothing has been decided yet"}
    still = posted.published.plan.stands_still
    well = still is None or still.code == "paused"
    return well, {"ok": well, "why": str(still) if still is not None else ""}
