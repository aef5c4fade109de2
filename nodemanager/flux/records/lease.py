"""The record of a launch in the instance's KVS: one JSON value per slot.

The last part of a key is the slot's name, percent-encoded (RFC 3986), including the KVS's separator ".".
"""

from __future__ import annotations

import json
from urllib.parse import quote, unquote

from nodemanager.core.nodes import Launch, LaunchId
from nodemanager.core.slots import DEFAULT_CLOUD, Billing, CloudName, Market, Rank, SlotName, Tariff, TypeName
from nodemanager.core.untrusted import read_json
from nodemanager.flux.parse.json_fields import (
    amount_at,
    flag_at,
    object_at,
    seconds_at,
    text_at,
    whole_at,
    wrong_value,
)

LEASES = "node-manager.leases"
_VERSION = 1


def key_of(slot: SlotName) -> str:
    """Return the KVS key of a slot's record."""
    return f"{LEASES}.{quote(slot, safe='').replace('.', '%2E')}"


def slot_of(name: str) -> SlotName:
    """Decode the slot from a name in the directory of leases."""
    return SlotName(unquote(name))


def encode(launch: Launch) -> str:
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
    # Only fields that are set: a record without new fields stays as an older manager writes it.
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


def decode(text: str, slot: SlotName) -> Launch:
    """Read the record of a slot. Raises ``ValueError`` if any part of it is wrong."""
    fields = object_at(read_json(text), "record")
    if fields.get("version") != _VERSION:
        raise wrong_value("record.version", f"{_VERSION}, the only one this program reads,", fields.get("version"))
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
