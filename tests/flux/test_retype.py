"""A change of the slots, step by step, on an instance that records the requests."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodemanager.config.text.flux_toml import ConfigFile, read_promises, read_slot_types
from nodemanager.core.ports import FluxError, SlotsUnchanged
from nodemanager.core.slots import Promise, Rank, Slot, SlotName, SlotsWish, TypeName
from nodemanager.flux.bindings import CallFailed
from nodemanager.flux.retype import (
    ANSWER_KEY,
    MARKER_KEY,
    WISH_KEY,
    Retyper,
    decode_answer,
    encode_wish,
    read_schedulers,
    read_wish,
)
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World
from tests.builders import a_type, whole_nodes

TYPES = (a_type("cloud", slots=2, cores=2), a_type("gpu", slots=1, cores=8, gpus=1))
HOSTS = ("cloud1", "cloud2", "gpu1")
TEXT = """\
[bootstrap]
hosts = [{ host = "head" }, { host = "cloud[1-2],gpu1" }]
[resource]
[[resource.config]]
hosts = "head"
cores = "0-3"
[[resource.config]]
hosts = "cloud[1-2]"
cores = "0-1"
[[resource.config]]
hosts = "gpu1"
cores = "0-7"
gpus = "0"
"""
MOVES = {SlotName("cloud2"): TypeName("gpu")}
A_WISH = SlotsWish("wish-1", {TypeName("cloud"): 1, TypeName("gpu"): 2})
FLUXION = ["sched-fluxion-resource", "sched-fluxion-feasibility", "sched-fluxion-qmanager"]


@dataclass
class Instance:
    """Answers as a broker does; ``asked`` lists the requests that change something, in order."""

    file: ConfigFile
    modules: list[str] = field(default_factory=lambda: ["resource", "sched-simple", "job-list"])
    kvs: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refuses: str = ""  # this topic is answered with EINVAL
    dies_at: str = ""  # this one is never answered
    leases: tuple[SlotName, ...] = ()

    def __post_init__(self) -> None:
        self.config: Mapping[str, Any] = self.file.read()
        slots = [Slot(SlotName(host), Rank(rank), TypeName(host[:-1])) for rank, host in enumerate(HOSTS, start=1)]
        self.flux = SimulatedFlux(World(1), TYPES, slots)

    def ask(self, topic: str, payload: Any = None, *, timeout_s: float | None = None) -> Any:
        if topic == self.dies_at:
            raise CallFailed(topic, OSError(errno.ETIMEDOUT, "timed out"))
        if topic == self.refuses:
            raise CallFailed(topic, OSError(errno.EINVAL, "not so"))
        match topic:
            case "resource.status":
                return self.flux.resource_status()
            case "sched.resource-status":
                return self.flux.sched_resource_status()
            case "config.get":
                return self.config
            case "module.list":
                scheduler = {"sched-simple", "sched-fluxion-qmanager"}
                return {
                    "mods": [
                        {"name": name, "path": f"/m/{name}", "services": ["sched"] if name in scheduler else []}
                        for name in self.modules
                    ]
                }
        return self._change(topic, payload)

    def _change(self, topic: str, payload: Any) -> None:
        subject = payload.get("name", payload.get("targets", "")) if isinstance(payload, Mapping) else ""
        self.asked.append(f"{topic} {subject}".strip())
        match topic:
            case "config.load":
                self.config = payload
            case "module.remove":
                self.modules.remove(subject)
            case "module.load":
                assert payload["path"] == f"/m/{subject}" or subject == "resource"
                self.modules.append(subject)
            case "resource.drain":
                self.flux.drain(Rank(int(subject)), payload["reason"])
            case "resource.undrain":
                self.flux.undrain(Rank(int(subject)))

    def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        return {key: self.kvs[key] for key in keys if key in self.kvs}

    def commit(self, changes: Mapping[str, str | None]) -> None:
        for key, value in changes.items():
            self.kvs.pop(key, None)
            if value is not None:
                self.kvs[key] = value
        self.asked.append(
            "marker" if changes.get(MARKER_KEY) else "answer" if changes.get(ANSWER_KEY) else "unmark"
        )

    def leased(self, slots: Sequence[SlotName]) -> Sequence[SlotName]:
        return [slot for slot in slots if slot in self.leases]

    def retyping(self) -> Retyper:
        return Retyper(self, lambda: self.file, TYPES)

    def drained(self) -> list[str]:
        return [host for rank, host in enumerate(HOSTS, start=1) if self.flux.drain_reason(Rank(rank)) is not None]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "flux.toml").write_text(TEXT)
    instance = Instance(ConfigFile.find(tmp_path))
    instance.kvs[WISH_KEY] = encode_wish(A_WISH)
    return instance


def test_everything_comes_in_its_order(instance: Instance) -> None:
    instance.retyping().change(A_WISH, MOVES)
    assert instance.asked == [
        "resource.drain 2",
        "marker",
        "config.load",
        "module.remove sched-simple",
        "module.remove resource",
        "module.load resource",
        "module.load sched-simple",
        "resource.undrain 2",
        "answer",
    ]
    assert read_slot_types(instance.file.read()) == read_slot_types(instance.config)
    assert decode_answer(instance.kvs[ANSWER_KEY]).moves == MOVES
    assert set(instance.kvs) == {ANSWER_KEY}


def test_fluxion_unloads_a_module_before_those_it_depends_on(instance: Instance) -> None:
    instance.modules = ["resource", *FLUXION]
    instance.retyping().change(A_WISH, MOVES)
    moved = [line.partition("sched-")[2] for line in instance.asked if "sched-" in line]
    order = ["fluxion-qmanager", "fluxion-feasibility", "fluxion-resource"]
    assert moved == [*order, *reversed(order)]


def test_an_instance_without_a_scheduler_has_none_to_unload() -> None:
    assert read_schedulers({"mods": [{"name": "kvs", "path": "kvs"}]}) == []


def test_a_configuration_that_is_refused_is_put_back(instance: Instance) -> None:
    instance.refuses = "config.load"
    with pytest.raises(SlotsUnchanged, match="does not accept the configuration"):
        instance.retyping().change(A_WISH, MOVES)
    assert instance.file.text() == TEXT
    assert instance.drained() == []
    assert "sched-simple" in instance.modules
    assert set(instance.kvs) == {WISH_KEY}


def test_the_file_of_another_instance_is_left_alone(instance: Instance) -> None:
    instance.config = {**instance.config, "bootstrap": {"hosts": [{"host": "other"}]}}
    with pytest.raises(SlotsUnchanged, match="another bootstrap table"):
        instance.retyping().change(A_WISH, MOVES)
    assert instance.file.text() == TEXT
    assert instance.drained() == []


def test_a_slot_that_was_leased_meanwhile_keeps_its_type(instance: Instance) -> None:
    """Its node may be about to boot, with the hardware of the old type."""
    instance.leases = (SlotName("cloud2"),)
    with pytest.raises(SlotsUnchanged, match="slot cloud2 was taken meanwhile"):
        instance.retyping().change(A_WISH, MOVES)
    assert instance.file.text() == TEXT
    assert instance.drained() == []


def test_a_core_that_a_job_holds_elsewhere_is_not_declared_away(instance: Instance) -> None:
    instance.file.write(TEXT.replace('cores = "0-7"', 'cores = "0"').replace('gpus = "0"', ""))
    instance.flux.broker_up(SlotName("gpu1"))
    instance.flux.world.advance_by(1)
    instance.flux.submit(whole_nodes(1), run_s=600)
    instance.flux.world.advance_by(1)
    wish = SlotsWish("wish-2", {TypeName("cloud"): 2})
    small = (TYPES[0], a_type("gpu", slots=1, cores=1))
    with pytest.raises(SlotsUnchanged, match="gpu1"):
        Retyper(instance, lambda: instance.file, small).change(wish, {SlotName("cloud2"): TypeName("gpu")})
    assert instance.drained() == []


@pytest.mark.parametrize("at", ["module.remove", "module.load"])
def test_what_was_cut_short_is_ended_by_the_repair(instance: Instance, at: str) -> None:
    instance.dies_at = at
    with pytest.raises(FluxError):
        instance.retyping().change(A_WISH, MOVES)
    assert MARKER_KEY in instance.kvs
    instance.dies_at = ""

    assert instance.retyping().repair() is True
    assert {"resource", "sched-simple"} <= set(instance.modules)
    assert read_slot_types(instance.config)[SlotName("cloud2")] == "gpu"
    assert instance.drained() == []
    assert decode_answer(instance.kvs[ANSWER_KEY]).moves == MOVES
    assert instance.retyping().repair() is False


def test_a_repair_that_finds_the_file_put_back_says_that_nothing_was_changed(instance: Instance) -> None:
    instance.dies_at = "config.load"
    with pytest.raises(FluxError):
        instance.retyping().change(A_WISH, MOVES)
    instance.file.write(TEXT)
    instance.dies_at = ""
    assert instance.retyping().repair() is True
    assert "does not accept" in decode_answer(instance.kvs[ANSWER_KEY]).why


def test_an_answer_ends_its_own_wish_only(instance: Instance) -> None:
    later = SlotsWish("wish-2", {})
    instance.kvs[WISH_KEY] = encode_wish(later)
    instance.retyping().change(A_WISH, MOVES)
    assert read_wish(instance.kvs[WISH_KEY]) == later


def test_an_unreadable_marker_is_reported_with_its_key(instance: Instance) -> None:
    instance.kvs[MARKER_KEY] = "nonsense"
    with pytest.raises(FluxError, match=MARKER_KEY):
        instance.retyping().repair()


@pytest.mark.parametrize("text", ["nonsense", "{}", '{"id": "a", "counts": {"cloud": "many"}}'])
def test_a_wish_that_cannot_be_read_is_none(text: str) -> None:
    assert read_wish(text) is None


# --- promises ---------------------------------------------------------------------------------------------

CLOUD = TypeName("cloud")
PROMISE = SlotsWish("hardware-cloud-1", {}, {CLOUD: Promise(1, 0, 2**30)})
ALL_OF_IT = {SlotName("cloud1"): CLOUD, SlotName("cloud2"): CLOUD}


def declared(config: Mapping[str, Any]) -> dict[str, str]:
    return {table["hosts"]: table["cores"] for table in config["resource"]["config"]}


def test_a_type_is_declared_as_it_is_and_keeps_that_through_later_changes(instance: Instance) -> None:
    retyping = instance.retyping()
    retyping.change(PROMISE, ALL_OF_IT)
    assert declared(instance.file.read()) == {"head": "0-3", "cloud[1-2]": "0", "gpu1": "0-7"}
    assert declared(instance.config) == declared(instance.file.read())
    assert read_promises(instance.file.read()) == read_promises(instance.config) == PROMISE.promises
    retyping.change(A_WISH, MOVES)
    assert declared(instance.config) == {"head": "0-3", "cloud1": "0", "cloud2,gpu1": "0-7"}
    assert read_promises(instance.config) == PROMISE.promises


@pytest.mark.parametrize("at", ["module.remove", "module.load"])
def test_a_promise_that_was_cut_short_is_kept_by_the_repair(instance: Instance, at: str) -> None:
    instance.dies_at = at
    with pytest.raises(FluxError):
        instance.retyping().change(PROMISE, ALL_OF_IT)
    instance.dies_at = ""
    assert instance.retyping().repair()
    assert read_promises(instance.config) == PROMISE.promises
    assert declared(instance.config)["cloud[1-2]"] == "0"
