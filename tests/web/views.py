"""A service whose dashboard has everything to show, and how to tell that each view is complete."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from nodemanager.ensemble.fair_share import Claim, NodeClaim
from nodemanager.history.store.writer import HistoryWriter
from tests.builders import WALL_AT
from tests.history.publications import told
from tests.web.api.test_peers import VIEW
from tests.web.fleets import STOP_S, Stand, a_fleet, a_stand, later

# The part of the address after #/, and what is true once the view is complete.
VIEWS: Mapping[str, str] = {
    "": "document.querySelectorAll('.strip').length === 5 && !document.getElementById('ensembles').hidden",
    "costs": "document.querySelectorAll('#costs-body td').length > 0",
    "whatif": "!document.getElementById('study-file').closest('section').hidden",
    "node/cpu1": "document.querySelector('#subject .title')?.textContent === 'cpu1-1'",
    "job/f3": "document.querySelector('#subject .title')?.textContent === 'f3'",
    "type/large": "document.querySelector('#subject .title')?.textContent === 'large'",
    "ensemble/surrogate": "document.querySelector('#subject .title')?.textContent === 'surrogate'",
}
ENSEMBLE = {
    "groups": {
        "simulate": {"pending": 3, "running": 4, "success": 12, "failed": 1},
        "train": {"pending": 0, "running": 1, "success": 2, "failed": 0},
    },
    "rules": [{"rule": "on: success of simulate", "matches": 12, "runs": 2, "skipped": 0, "left": 3}],
    "nodes_floor": 2,
    "begun_at": WALL_AT - 900,
    "at": WALL_AT,
}


def a_full_stand(folder: Path | None = None) -> Stand:
    """Five nodes, a peer with a job of ours, an ensemble, and a history if there is a folder for it."""
    journal = HistoryWriter(folder / "journal.sqlite") if folder is not None else None
    stand = a_stand(
        journal.path if journal is not None else None,
        jobs_for_everybody=True,
        clock_s=[float(turn) for turn in range(10_000)],
    )
    publications = [later(a_fleet(5, waiting=moment + 3, moment=moment * 40), 40.0 * moment) for moment in range(4)]
    for publication in publications:
        stand.post(publication)
    if journal is not None:
        journal.start()
        for happened in told(*publications):
            journal.take_in(happened)
        journal.stop(STOP_S)
    stand.board.show_ensemble("surrogate", ENSEMBLE)
    stand.board.nodes_kept = {"surrogate": 2, "elsewhere": 1}
    share = because(Code.ENSEMBLE_SHARE, wanted=4, have=2, nodes_max=6, others="elsewhere keeps 1 of 5 (weight 1)")
    claim = NodeClaim(2, 4, 2, Claim(2, weight=2.0, per_day=Decimal(9)), Decimal("1.5"), share)
    stand.board.node_claims = {"surrogate": claim}
    stand.board.publish_delegation(VIEW)
    return stand
