"""The site's prices, compared with a price list."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

import pytest

from nodemanager.cli.prices import PriceComparison, PriceMatch, compare_prices
from nodemanager.config.price_list import PriceTable, PriceTableError, read_bundled_table, read_table
from nodemanager.core.slots import Market, NodeType
from tests.builders import a_type

TABLE = PriceTable("test", None, {"here": {"c5.large": Decimal("0.10"), "c5.free": Decimal(0)}})


def priced(size: str, price: str, market: Market = Market.ON_DEMAND) -> NodeType:
    return replace(a_type("cpu", price=price), size=size, market=market)


def sizes_of(*node_types: NodeType) -> dict[str, int]:
    return {it.size: it.memory_bytes for it in node_types}


def one(node_type: NodeType, region: str = "here") -> PriceComparison:
    (compared,) = compare_prices([node_type], TABLE, lambda _: (region,))
    return compared


@pytest.mark.parametrize(
    ("size", "price", "verdict"),
    [
        ("c5.large", "0.10", PriceMatch.SAME),
        ("c5.large", "0.101", PriceMatch.SAME),  # a hundredth is rounding
        ("c5.large", "0.1011", PriceMatch.DEARER),
        ("c5.large", "0.0989", PriceMatch.CHEAPER),
        ("c5.large", "0", PriceMatch.CHEAPER),
        ("c5.huge", "0.10", PriceMatch.MISSING),
        ("c5.free", "0", PriceMatch.ZERO),
        ("c5.free", "0.10", PriceMatch.ZERO),
    ],
)
def test_a_price_is_judged_by_the_table(size: str, price: str, verdict: PriceMatch) -> None:
    compared = one(priced(size, price))
    assert compared.match is verdict
    assert compared.agrees is (verdict is PriceMatch.SAME)


def test_a_zero_of_the_table_is_never_shown_as_a_price() -> None:
    assert one(priced("c5.free", "0.10")).table_price_per_hour is None


def test_a_region_that_the_table_lacks_has_no_prices() -> None:
    assert one(priced("c5.large", "0.10"), "elsewhere").match is PriceMatch.MISSING


def test_spot_is_not_measured_by_on_demand_prices() -> None:
    assert one(priced("c5.large", "0.03", Market.SPOT)).match is PriceMatch.SPOT


def test_libclouds_table_knows_a_common_size_and_marks_its_zeros() -> None:
    known, zero = priced("c5.large", "0.085"), priced("c4.8xlarge", "1.59")
    table = read_bundled_table("ec2", sizes_of(known, zero))
    assert table.updated is not None
    assert [it.match for it in compare_prices([known, zero], table, lambda _: ("us-east-1",))] == [
        PriceMatch.SAME,
        PriceMatch.ZERO,
    ]


def test_azures_sizes_are_found_by_the_name_of_its_own() -> None:
    size = priced("Standard_D4s_v3", "0.192")
    (compared,) = compare_prices([size], read_bundled_table("azure", sizes_of(size)), lambda _: ("eastus",))
    assert compared.table_price_per_hour == Decimal("0.192")


def test_a_machine_type_of_gce_is_priced_by_its_parts() -> None:
    size = replace(priced("n1-standard-4", "0.19"), memory_bytes=15 * 2**30)
    (compared,) = compare_prices([size], read_bundled_table("gce", sizes_of(size)), lambda _: ("us-central1",))
    assert compared.table_price_per_hour == 4 * Decimal("0.031611") + 15 * Decimal("0.004237")


@pytest.mark.parametrize(
    "size", ["e2-micro", "x9-standard-4", "n1", "n2-custom-4-8192-ext", "c3-standard-4-lssd", ""]
)
def test_a_machine_type_whose_parts_are_not_known_is_missing(size: str) -> None:
    node_type = priced(size, "0.19")
    (compared,) = compare_prices(
        [node_type], read_bundled_table("gce", sizes_of(node_type)), lambda _: ("us-central1",)
    )
    assert compared.match is PriceMatch.MISSING


@pytest.mark.parametrize(
    ("size", "family", "gib"), [("n2-custom-4-8192", "n2_custom", 8), ("custom-4-5120", "n1_custom", 5)]
)
def test_a_custom_machine_type_is_priced_as_one_by_the_memory_that_it_names(
    size: str, family: str, gib: int
) -> None:
    # Regression: its MiB were read as processors, which made 186 an hour for four of them.
    parts = json.loads(files("libcloud").joinpath("data/pricing.json").read_text())["compute"]["gce_instances"]
    cpu, ram = (Decimal(str(parts[family][part]["on_demand"]["europe-west3"]["price"])) for part in ("cpu", "ram"))
    node_type = replace(priced(size, "0.19"), memory_bytes=7 * 2**30)
    (compared,) = compare_prices(
        [node_type], read_bundled_table("gce", sizes_of(node_type)), lambda _: ("europe-west3",)
    )
    assert compared.table_price_per_hour == 4 * cpu + gib * ram


def test_a_type_is_compared_in_each_region_where_it_is_bought() -> None:
    table = PriceTable(
        "test", None, {"here": {"c5.large": Decimal("0.10")}, "there": {"c5.large": Decimal("0.20")}}
    )
    rows = compare_prices([priced("c5.large", "0.10")], table, lambda _: ("here", "there"))
    assert [(row.region, row.match) for row in rows] == [("here", PriceMatch.SAME), ("there", PriceMatch.CHEAPER)]


def test_a_provider_without_a_table_has_no_prices() -> None:
    assert read_bundled_table("openstack", sizes_of(priced("m1.small", "0.1"))).prices == {}


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        'updated = 2026-11-01\n[us-east-1]\n"c5.large" = 0.085\nodd = "1.5"\nround = 2\n', encoding="utf-8"
    )
    table = read_table(file)
    assert table.updated == date(2026, 11, 1)
    assert table.prices == {"us-east-1": {"c5.large": Decimal("0.085"), "odd": Decimal("1.5"), "round": Decimal(2)}}


def test_all_faults_of_a_table_are_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        'updated = "lately"\nstray = 1\n[r]\na = -1\nb = true\nc = "dear"\nd = nan\ne = 1\n', encoding="utf-8"
    )
    with pytest.raises(PriceTableError) as raised:
        read_table(file)
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["updated", "stray", "[r] a", "[r] b", "[r] c", "[r] d"]
    assert all(line.startswith(str(file)) for line in lines)


@pytest.mark.parametrize("text", [None, "[r\n", b"\xff"])
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, text: str | bytes | None) -> None:
    file = tmp_path / "prices.toml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PriceTableError, match=r"prices\.toml"):
        read_table(file)
