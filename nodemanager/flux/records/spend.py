"""The record of the money spent per day and month in the instance's KVS: one JSON value.

Amounts are decimal numbers as text, so that no digit is lost.
"""

from __future__ import annotations

import json
from decimal import Decimal

from nodemanager.core.nodes import LaunchId
from nodemanager.core.records import Spend
from nodemanager.core.untrusted import read_json
from nodemanager.flux.parse.json_fields import amount_at, list_at, object_at, text_at, whole_at, wrong_value

KEY = "node-manager.spend"
_VERSION = 1


def encode(spend: Spend) -> str:
    """Write the money spent as its record."""
    amounts = [
        {"period": period, "begins_at": begins_at, "account": account, "amount": str(amount)}
        for (period, begins_at, account), amount in sorted(spend.amounts.items())
    ]
    return json.dumps({"version": _VERSION, "amounts": amounts, "counted": sorted(spend.counted)}, sort_keys=True)


def decode(text: str) -> Spend:
    """Read the record. Raises ``ValueError`` if any part of it is wrong."""
    fields = object_at(read_json(text), "record")
    if fields.get("version") != _VERSION:
        raise wrong_value("record.version", f"{_VERSION}, the only one this program reads,", fields.get("version"))
    amounts: dict[tuple[str, int, str], Decimal] = {}
    for number, entry in enumerate(list_at(fields.get("amounts"), "record.amounts")):
        place = f"record.amounts[{number}]"
        row = object_at(entry, place)
        period = text_at(row.get("period"), f"{place}.period")
        begins_at = whole_at(row.get("begins_at"), f"{place}.begins_at")
        account = text_at(row.get("account"), f"{place}.account")
        amounts[period, begins_at, account] = amount_at(row.get("amount"), f"{place}.amount")
    counted = list_at(fields.get("counted"), "record.counted")
    return Spend(
        amounts,
        frozenset(LaunchId(text_at(launch, f"record.counted[{place}]")) for place, launch in enumerate(counted)),
    )
