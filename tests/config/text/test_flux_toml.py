"""Changes to the instance's configuration file: only its slots change."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.config.text.flux_toml import (
    ConfigFile,
    FluxConfigError,
    bootstrap_hosts,
    config_with_slot_types,
    hosts_lacking_units,
    read_slot_types,
    toml_with_hosts,
    toml_with_slot_types,
)
from nodemanager.core.slots import SlotName, TypeName
from tests.builders import a_type

TYPES = (a_type("cloud", slots=4), a_type("gpu", slots=2, cores=8, gpus=2, properties=["gpu"]))
SITES = {slot: node_type.name for node_type in TYPES for slot in node_type.slots}

TEXT = """\
# Mine.
[bootstrap]
curve_cert = "/x"  # secret
hosts = [
    { host = "head", bind = "tcp://*:1", connect = "tcp://a:1" },
    { host = "old[1-2]" }, # on site
    { host = "cloud[1-4]" },
    { host = "gpu[1-2]" },
]

[resource]
# Why.
noverify = true

[[resource.config]]
hosts = "head,old[1-2],cloud1"
cores = "0-3"

[[resource.config]]
hosts = "cloud[2-4]"
cores = "0-3"

[[resource.config]]
hosts = "gpu[1-2]"
cores = "0-7"
gpus = "0-1"
properties = ["gpu"]

[queues.batch]
requires = ["batch"] # by hand

[kvs]
checkpoint-period = "1s"
"""


def hosts_by_cores(text: str) -> dict[str, str]:
    return {table["hosts"]: table["cores"] for table in tomllib.loads(text)["resource"]["config"]}


def test_the_slots_move_and_everything_else_stays_word_by_word() -> None:
    changed = toml_with_slot_types(TEXT, SITES | {SlotName("cloud4"): TypeName("gpu")}, TYPES)
    assert hosts_by_cores(changed) == {"head,old[1-2]": "0-3", "cloud[1-3]": "0-3", "cloud4,gpu[1-2]": "0-7"}
    assert read_slot_types(tomllib.loads(changed))[SlotName("cloud4")] == "gpu"
    for line in ("# Mine.", "# secret", "# on site", "# Why.", "# by hand"):
        assert line in changed
    before, after = tomllib.loads(TEXT), tomllib.loads(changed)
    for table in (before, after):
        table["resource"].pop("config")
        table.pop("node-manager", None)
    assert before == after


@given(st.lists(st.sampled_from(TYPES), min_size=6, max_size=6))
def test_file_and_running_configuration_say_the_same_and_may_be_written_again(chosen: list[type]) -> None:
    division = {slot: node_type.name for slot, node_type in zip(SITES, chosen, strict=True)}  # type: ignore[attr-defined]
    text = toml_with_slot_types(TEXT, division, TYPES)
    assert tomllib.loads(text) == config_with_slot_types(tomllib.loads(TEXT), division, TYPES)
    assert read_slot_types(tomllib.loads(text)) == division
    assert toml_with_slot_types(text, division, TYPES) == text
    # And back to the original type of each slot.
    assert read_slot_types(tomllib.loads(toml_with_slot_types(text, SITES, TYPES))) == SITES


def test_new_hosts_get_the_last_ranks() -> None:
    longer = toml_with_hosts(TEXT, ["cloud5", "gpu3"])
    assert bootstrap_hosts(tomllib.loads(longer)) == [*bootstrap_hosts(tomllib.loads(TEXT)), "cloud5", "gpu3"]
    assert "# on site" in longer


def test_a_core_that_a_job_holds_and_the_configuration_lacks_is_found() -> None:
    config = tomllib.loads(TEXT)
    held = {
        SlotName("cloud1"): (frozenset({3}), frozenset[int]()),
        SlotName("cloud2"): (frozenset({4}), frozenset[int]()),
        SlotName("gpu1"): (frozenset({0}), frozenset({1})),
        SlotName("gpu2"): (frozenset[int](), frozenset({2})),
        SlotName("gone"): (frozenset({0}), frozenset[int]()),
    }
    assert hosts_lacking_units(config, held) == ["cloud2", "gpu2", "gone"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[node-manager]\nslots = "cloud1"', "a table with a host list"),
        ("[node-manager.slots]\ncloud = 1", "a host list such as"),
        ('[node-manager.slots]\ncloud = "a[1-"', "node-manager.slots.cloud"),
        ('[node-manager.slots]\ncloud = "a[1-2]"\ngpu = "a2"', "slot a2 has types cloud and gpu"),
    ],
)
def test_a_division_that_cannot_be_read_says_where(text: str, said: str) -> None:
    with pytest.raises(FluxConfigError, match=said.replace("[", r"\[")):
        read_slot_types(tomllib.loads(text))


def test_a_type_that_the_site_does_not_name_is_refused() -> None:
    with pytest.raises(FluxConfigError, match=r"keep \[Node huge\]"):
        toml_with_slot_types(TEXT, {SlotName("cloud1"): TypeName("huge")}, TYPES)


def test_the_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    path = tmp_path / "conf.d" / "flux.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    (tmp_path / "conf.d" / "other.toml").write_text("[kvs]\n")
    file = ConfigFile.find(tmp_path)
    file.write(TEXT + "# more\n")
    assert file.text().endswith("# more\n")
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["flux.toml", "other.toml"]


@pytest.mark.parametrize("texts", [[], ["[resource]\n", "[resource]\n"]])
def test_one_file_holds_the_resources(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "conf.d").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "conf.d" / f"{number}.toml").write_text(text)
    with pytest.raises(FluxConfigError, match=r"one \*.toml file with a \[resource\] table is needed"):
        ConfigFile.find(tmp_path)
