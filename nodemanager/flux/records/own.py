"""What the manager itself records in the instance's KVS: leases, operators' settings, money spent, held jobs.

Each record is one JSON value. Every ``decode_...`` raises ``ValueError`` if any part of it is wrong. A record
without new fields stays as an older manager would write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from nodemanager.core.jobs import JobId
from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.records import HeldJob, Mark, Spend, Steering
from nodemanager.core.slots import DEFAULT_CLOUD, Billing, CloudName, Market, Rank, SlotName, Tariff, TypeName
from nodemanager.core.untrusted import read_json
from nodemanager.flux.parse.json_fields import (
    amount_at,
    flag_at,
    list_at,
    object_at,
    seconds_at,
    text_at,
    whole_at,
    wrong_value,
)

LEASES = "node-manager.leases"
STEERING = "node-manager.steering"
SPEND = "node-manager.spend"
HELD_JOBS = "node-manager.held-jobs"
_VERSION = 1


def _fields(text: str) -> Mapping[str, Any]:
    fields = object_at(read_json(text), "record")
    if fields.get("version") != _VERSION:
        raise wrong_value("record.version", f"{_VERSION}, the only one this program reads,", fields.get("version"))
    return fields


# --- leases: one for each slot ----------------------------------------------------------------------------


def lease_key(slot: SlotName) -> str:
    """Return the KVS key of a lease. Its last part is the slot's name, percent-encoded (RFC 3986), also "."."""
    return f"{LEASES}.{quote(slot, safe='').replace('.', '%2E')}"


def slot_of_lease(name: str) -> SlotName:
    """Decode the slot from a name in the directory of leases."""
    return SlotName(unquote(name))


def encode_lease(launch: Launch) -> str:
    """Write a launch as its record."""
    fields: dict[str, object] = {
        "version": _VERSION,
        "launch": launch.id,
        "slot": launch.slot,
        "rank": launch.rank,
        "type": launch.type_name,
        "client_token": launch.client_token,
        "requested_at": launch.requested_at,
        "zone": launch.zone,
    }
    if launch.size:
        fields["size"] = launch.size
    if launch.made_from:
        fields["made_from"] = launch.made_from
    if launch.group:
        fields["group"] = launch.group
    if launch.prepaid:
        fields["prepaid"] = True
    if launch.cloud != DEFAULT_CLOUD:
        fields["cloud"] = launch.cloud
    if launch.market is not None:
        fields["market"] = str(launch.market)
    if launch.tariff is not None:
        fields["tariff"] = {
            "price_per_hour": str(launch.tariff.price_per_hour),
            "window_s": launch.tariff.billing.window_s,
            "minimum_s": launch.tariff.billing.minimum_s,
        }
    return json.dumps(fields, sort_keys=True)


def decode_lease(text: str, slot: SlotName) -> Launch:
    """Read the record of a slot."""
    fields = _fields(text)
    if fields.get("slot") != slot:
        raise wrong_value("record.slot", f"{slot}, the slot of this key,", fields.get("slot"))
    return Launch(
        id=LaunchId(text_at(fields.get("launch"), "record.launch")),
        slot=slot,
        rank=Rank(whole_at(fields.get("rank"), "record.rank")),
        type_name=TypeName(text_at(fields.get("type"), "record.type")),
        client_token=text_at(fields.get("client_token"), "record.client_token"),
        requested_at=seconds_at(fields.get("requested_at"), "record.requested_at"),
        zone=text_at(fields.get("zone", ""), "record.zone"),
        tariff=_tariff(fields["tariff"]) if "tariff" in fields else None,
        size=text_at(fields.get("size", ""), "record.size"),
        market=_market(fields["market"]) if "market" in fields else None,
        made_from=text_at(fields.get("made_from", ""), "record.made_from"),
        group=text_at(fields.get("group", ""), "record.group"),
        prepaid=flag_at(fields.get("prepaid", False), "record.prepaid"),
        cloud=CloudName(text_at(fields.get("cloud", DEFAULT_CLOUD), "record.cloud")),
    )


def _market(value: object) -> Market:
    try:
        return Market(text_at(value, "record.market"))
    except ValueError as error:
        raise wrong_value("record.market", "one of " + ", ".join(Market), value) from error


def _tariff(value: object) -> Tariff:
    fields = object_at(value, "record.tariff")
    return Tariff(
        amount_at(fields.get("price_per_hour"), "record.tariff.price_per_hour"),
        Billing(
            seconds_at(fields.get("window_s"), "record.tariff.window_s"),
            seconds_at(fields.get("minimum_s"), "record.tariff.minimum_s"),
        ),
    )


# --- operators' settings ----------------------------------------------------------------------------------


def encode_steering(steering: Steering) -> str:
    """Write the operators' settings as their record."""
    fields: dict[str, object] = {
        "version": _VERSION,
        "holds": _encode_marks(steering.holds),
        "retirements": _encode_marks(steering.retirements),
        "paused": _encode_mark(steering.paused) if steering.paused is not None else None,
    }
    if steering.replacements:
        fields["replacements"] = _encode_marks(steering.replacements)
    return json.dumps(fields, sort_keys=True)


def _encode_marks(marks: Mapping[LaunchId, Mark]) -> dict[str, object]:
    return {launch: _encode_mark(mark) for launch, mark in marks.items()}


def _encode_mark(mark: Mark) -> dict[str, object]:
    fields: dict[str, object] = {"by": mark.by, "at": mark.at}
    if mark.why:
        fields["why"] = mark.why
    if mark.until_at is not None:
        fields["until_at"] = mark.until_at
    return fields


def decode_steering(text: str) -> Steering:
    """Read the record."""
    fields = _fields(text)
    paused = fields.get("paused")
    return Steering(
        holds=_decode_marks(fields.get("holds"), "record.holds"),
        retirements=_decode_marks(fields.get("retirements"), "record.retirements"),
        paused=_decode_mark(paused, "record.paused") if paused is not None else None,
        replacements=_decode_marks(fields.get("replacements", {}), "record.replacements"),
    )


def _decode_marks(value: object, place: str) -> dict[LaunchId, Mark]:
    marks = object_at(value, place)
    return {LaunchId(launch): _decode_mark(mark, f"{place}.{launch}") for launch, mark in marks.items()}


def _decode_mark(value: object, place: str) -> Mark:
    fields = object_at(value, place)
    until = fields.get("until_at")
    return Mark(
        text_at(fields.get("by"), f"{place}.by"),
        seconds_at(fields.get("at"), f"{place}.at"),
        text_at(fields.get("why", ""), f"{place}.why"),
        seconds_at(until, f"{place}.until_at") if until is not None else None,
    )


# --- money spent ------------------------------------------------------------------------------------------


def encode_spend(spend: Spend) -> str:
    """Write the money spent per day and month. Amounts are decimal numbers as text, so that no digit is lost."""
    amounts = [
        {"period": period, "begins_at": begins_at, "account": account, "amount": str(amount)}
        for (period, begins_at, account), amount in sorted(spend.amounts.items())
    ]
    return json.dumps({"version": _VERSION, "amounts": amounts, "counted": sorted(spend.counted)}, sort_keys=True)


def decode_spend(text: str) -> Spend:
    """Read the record."""
    fields = _fields(text)
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


# --- held jobs: one for each job --------------------------------------------------------------------------


def held_key(job: JobId) -> str:
    """The KVS key of a job's record."""
    return f"{HELD_JOBS}.{job}"


def job_of_held(name: str) -> JobId:
    """The job whose record has this name in the folder. Raises ``ValueError``."""
    return JobId(int(name))


def encode_held(held: HeldJob) -> str:
    """Write the record."""
    return json.dumps({"urgency": held.urgency, "priority": held.priority}, sort_keys=True)


def decode_held(text: str) -> HeldJob:
    """Read the record."""
    fields = object_at(read_json(text), "record")
    return HeldJob(
        whole_at(fields.get("urgency"), "record.urgency"), whole_at(fields.get("priority"), "record.priority")
    )
