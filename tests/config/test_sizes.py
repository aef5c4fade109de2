"""``sizes`` of a node type: named or by pattern, with the prices of a list."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from nodemanager.cloud.ec2.provider import ec2_hardware
from nodemanager.config.load import load_site
from nodemanager.config.price_list import PriceTableError, read_bundled_table, read_table
from nodemanager.config.site import ConfigError
from nodemanager.core.slots import Market, NodeType

SITE = """
[Site]
cluster = demo
state_dir = state
[Flux]
uri = simulated
[Cloud]
provider = {provider}
{cloud}
[Limits]
nodes_max = 10
price_per_hour_max = 20
[Node big]
cores = 16
memory = 32GiB
slots = big[1-10]
{node}
"""
EC2 = "region = us-east-1\nimage = ami-0abc"
OWN = "price_list = prices.toml"
PRICES = """
updated = 2026-11-01
[here]
"m.16" = { price = 0.50, spot = 0.20, cores = 16, memory = "64GiB" }
"c.16" = { price = 0.40, cores = 16, memory = "32GiB" }
"c.64" = { price = 1.60, cores = 64, memory = "128GiB" }
"c.8" = { price = 0.20, cores = 8, memory = "16GiB" }
"g.16" = { price = 2.00, cores = 16, gpus = 1, memory = "64GiB" }
"plain" = 0.45
"unpriced" = { price = 0, cores = 32, memory = "64GiB" }
"""


def big(folder: Path, node: str, provider: str = "simulated", cloud: str = OWN, prices: str = PRICES) -> NodeType:
    (folder / "prices.toml").write_text(prices)
    (folder / "site.ini").write_text(SITE.format(provider=provider, cloud=cloud, node=node))
    (node_type,) = load_site(folder / "site.ini", {}).node_types
    return node_type


def refused(folder: Path, node: str, provider: str = "simulated", cloud: str = OWN, prices: str = PRICES) -> str:
    with pytest.raises(ConfigError) as error:
        big(folder, node, provider, cloud, prices)
    return str(error.value)


def test_sizes_are_sorted_by_price_and_the_cheapest_stands_for_the_type(tmp_path: Path) -> None:
    node_type = big(tmp_path, "sizes = m.16, plain, c.16")
    assert [(it.name, it.price_per_hour) for it in node_type.sizes] == [
        ("c.16", Decimal("0.40")),
        ("plain", Decimal("0.45")),
        ("m.16", Decimal("0.50")),
    ]
    assert (node_type.size, node_type.price_per_hour) == ("c.16", Decimal("0.40"))
    assert (node_type.cores, node_type.memory_bytes) == (16, 32 * 2**30)  # as declared


def test_a_pattern_stands_for_sizes_that_have_enough_and_a_price(tmp_path: Path) -> None:
    assert [it.name for it in big(tmp_path, "sizes = *").sizes] == ["c.16", "m.16", "c.64", "g.16"]
    assert [it.name for it in big(tmp_path, "sizes = c.*").sizes] == ["c.16", "c.64"]
    assert [it.name for it in big(tmp_path, "sizes = *\ngpus = 1").sizes] == ["g.16"]


def test_spot_nodes_have_the_prices_of_the_spot_market(tmp_path: Path) -> None:
    node_type = big(tmp_path, "sizes = *\nmarket = spot")
    assert [(it.name, it.market, it.price_per_hour) for it in node_type.sizes] == [
        ("m.16", Market.SPOT, Decimal("0.20"))
    ]


def test_a_named_size_that_the_list_lacks_has_the_price_of_its_section(tmp_path: Path) -> None:
    node_type = big(tmp_path, "sizes = c.16, own\nprice_per_hour = 0.30")
    assert [(it.name, it.price_per_hour) for it in node_type.sizes] == [
        ("own", Decimal("0.30")),
        ("c.16", Decimal("0.40")),
    ]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("sizes = c.8", "c.8 has 8 cores, 16GiB, but the slots declare 16 cores and 32GiB"),
        ("sizes = x.*", "describes no size that matches x.*"),
        ("sizes = c.8*", "no size that matches c.8* has 16 cores and 32GiB: there are c.8"),
        ("sizes = unp*", "has no price for unpriced in here"),
        (
            "sizes = m.61",
            'has no price for m.61 in here: give price_per_hour, or [Cloud] price_list; did you mean "m.16"?',
        ),
        ("sizes = c.16\nsize = c.16", "give size or sizes, not both"),
        ("", "must be given: a price of 0 or more"),
    ],
)
def test_sizes_that_cannot_serve_are_refused_with_the_reason(tmp_path: Path, node: str, problem: str) -> None:
    assert problem in refused(tmp_path, node)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('"x" = { cores = 1, memory = "1GiB" }', "[here] x: a price, or a spot price, is needed"),
        ('"x" = { price = 1, cores = 1 }', "[here] x: cores and memory must be given together"),
        ('"x" = { price = 1, cpus = 1 }', "[here] x: no such key: cpus"),
        (
            '"x" = { price = 1, cores = -1, memory = "1GiB" }',
            "[here] x: a whole number of 0 or more is needed, not -1",
        ),
        ('"x" = { price = 1, cores = 1, memory = "much" }', '[here] x: a size such as "32GiB" is needed'),
        ('"x" = -1', "[here] x: a price per hour of 0 or more is needed"),
    ],
)
def test_a_wrong_line_of_a_price_list_is_named(tmp_path: Path, line: str, problem: str) -> None:
    assert problem in refused(tmp_path, "sizes = c.16", prices=f"[here]\n{line}\n")
    with pytest.raises(PriceTableError, match=r"prices\.toml"):
        read_table(tmp_path / "prices.toml")


def test_a_price_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no.toml: No such file" in refused(tmp_path, "sizes = c.16", cloud="price_list = no.toml")


def test_ec2_expands_patterns_by_libclouds_list(tmp_path: Path) -> None:
    sizes = big(tmp_path, "sizes = c7i.4xlarge, m7i.4xlarge, c7a.*", "ec2", EC2).sizes
    names = [it.name for it in sizes]
    assert names[:3] == ["c7i.4xlarge", "c7a.4xlarge", "m7i.4xlarge"]
    assert all(it.cores >= 16 and it.memory_bytes >= 32 * 2**30 and it.price_per_hour > 0 for it in sizes)
    assert "c7a.large" not in names
    assert list(sizes) == sorted(sizes, key=lambda it: it.price_per_hour)


def test_ec2_refuses_what_is_no_instance_type(tmp_path: Path) -> None:
    assert '"C7I.4xlarge" is no instance type' in refused(tmp_path, "sizes = C7I.4xlarge", "ec2", EC2)


def test_the_prices_of_a_site_are_used_with_what_is_known_of_ec2s_sizes(tmp_path: Path) -> None:
    prices = '[us-east-1]\n"c7i.4xlarge" = 0.1\n"m7i.4xlarge" = 0.2\n'
    sizes = big(tmp_path, "sizes = *7i.*", "ec2", f"{EC2}\n{OWN}", prices).sizes
    assert [(it.name, it.cores) for it in sizes] == [("c7i.4xlarge", 16), ("m7i.4xlarge", 16)]


def test_libclouds_list_describes_what_it_prices() -> None:
    table, hardware = read_bundled_table("ec2"), ec2_hardware()
    assert hardware["p4d.24xlarge"].gpus == 8
    assert set(table.sizes("us-east-1")) <= set(hardware)


def test_on_googles_cloud_the_zones_must_share_a_region(tmp_path: Path) -> None:
    cloud = f"{OWN}\nproject = p\nimage = i\nzones = us-central1-a, us-east1-b\nregion = r"
    assert "the zones must be in one region" in refused(tmp_path, "sizes = c.16", "gce", cloud)


# --- spot and on demand -----------------------------------------------------------------------------------


def test_on_any_market_each_size_is_offered_where_the_list_has_a_price(tmp_path: Path) -> None:
    node_type = big(tmp_path, "sizes = m.16, c.16\nmarket = any")
    assert [(it.name, str(it.market), it.price_per_hour) for it in node_type.sizes] == [
        ("m.16", "spot", Decimal("0.20")),
        ("c.16", "on-demand", Decimal("0.40")),
        ("m.16", "on-demand", Decimal("0.50")),
    ]
    assert node_type.market is Market.SPOT


def test_a_single_size_on_any_market_has_both_prices(tmp_path: Path) -> None:
    node_type = big(tmp_path, "size = x\nmarket = any\nprice_per_hour = 0.5\nspot_price_per_hour = 0.2")
    assert [(it.name, str(it.market), it.price_per_hour) for it in node_type.sizes] == [
        ("x", "spot", Decimal("0.2")),
        ("x", "on-demand", Decimal("0.5")),
    ]


def test_a_single_size_on_any_market_needs_both_prices(tmp_path: Path) -> None:
    assert "spot_price_per_hour" in refused(tmp_path, "size = x\nmarket = any\nprice_per_hour = 0.5")


def test_a_provider_without_a_spot_market_refuses_any_too(tmp_path: Path) -> None:
    cloud = f"{OWN}\nauth_url = https://x/v3\nimage = i\nnetwork = n"
    assert "spot nodes are not supported" in refused(tmp_path, "sizes = c.16\nmarket = any", "openstack", cloud)
