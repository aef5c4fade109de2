from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.join.ticket_store import TicketStore


@pytest.fixture(autouse=True)
def _ledgers_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every ticket store: since Python 3.13, SQLite warns about a connection that was never closed."""
    opened: list[TicketStore] = []
    opens = TicketStore.__init__

    def noted(ledger: TicketStore, path: Path | str) -> None:
        opens(ledger, path)
        opened.append(ledger)

    monkeypatch.setattr(TicketStore, "__init__", noted)
    yield
    for ledger in opened:
        ledger.close()
