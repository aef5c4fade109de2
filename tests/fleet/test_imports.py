"""Imports point inwards only. This reads them, those inside functions too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "nodemanager"

# Each room, with the rooms it may import from, beside its own. What is not named here is not allowed.
VALUES = {"model", "facts", "orders"}
INWARDS: dict[str, set[str]] = {
    "model": set(),
    "notation": set(),
    "facts": {"model"},
    "orders": {"model"},
    "ports": {"model", "facts"},
    "fleet": VALUES,
    "messages": {*VALUES, "fleet"},
    "ini": {"notation"},
    "settings": {"model", "notation", "ini"},
    "credentials": {"ini"},
    "config_ec2": {"ini", "settings", "credentials", "model"},
    "config_provider": {"model", "ini", "settings", "credentials"},
    "config_openstack": {"ini", "settings", "config_provider"},
    "config_gce": {"ini", "settings", "config_provider"},
    "config_azure": {"ini", "settings", "config_provider"},
    "config": {
        "model",
        "notation",
        "ini",
        "settings",
        "credentials",
        "config_ec2",
        "config_openstack",
        "config_gce",
        "config_azure",
        "flux_config",
    },
    "systemd": set(),
    "children": set(),
    "logs": {"systemd"},
    "wording": {"model", "notation"},
    "journal": {*VALUES, "fleet", "actors", "wording"},
    "web": {*VALUES, "messages", "notation", "fleet", "config", "actors", "wording", "journal"},
    "actors": {*VALUES, "messages", "ports", "fleet", "wording"},
    "cloud": {*VALUES, "ports", "notation", "config", "config_ec2", "flux"},
    "flux_config": {"model", "notation"},
    "flux": {*VALUES, "ports", "notation", "config", "flux_config"},
    "join": {*VALUES, "ports", "config", "flux"},
    "simulation": {*VALUES, "notation", "ports", "messages", "fleet", "config", "actors", "flux"},
    "reload": {"config"},
    "front": {"config", "settings", "actors", "journal", "web"},
    "app": {
        "front",
        "reload",
        "web",
        *VALUES,
        "ports",
        "messages",
        "fleet",
        "config",
        "logs",
        "actors",
        "cloud",
        "flux",
        "join",
        "simulation",
        "systemd",
    },
    "scenario": {
        *VALUES,
        "children",
        "ports",
        "messages",
        "fleet",
        "actors",
        "join",
        "journal",
        "simulation",
        "app",
    },
    "demo_real": {*VALUES, "config", "flux", "app"},
    "demo": {*VALUES, "fleet", "config", "logs", "actors", "simulation", "app", "demo_real"},
    "prices": {"model"},
    "cloud_trail": {"model"},
    "cloud_test": {*VALUES, "ports", "fleet", "config", "cloud_trail"},
    "whatif": {
        *VALUES,
        "children",
        "notation",
        "journal",
        "settings",
        "config",
        "logs",
        "messages",
        "fleet",
        "flux",
        "ports",
        "actors",
        "simulation",
        "app",
    },
    "ask": {"config", "fleet", "notation", "web", "wording"},
    "cli": {
        "ask",
        "front",
        "fleet",
        "ports",
        "config",
        "logs",
        "flux",
        "join",
        "app",
        "cloud",
        "prices",
        "cloud_test",
        "whatif",
        "slots",
        "resize",
        "scenario",
    },
    "slots": {*VALUES, "notation", "ports", "fleet", "config", "flux", "flux_config", "app"},
    "resize": {*VALUES, "notation", "ports", "config", "flux", "flux_config", "join"},
}

ROOMS_OF_TROUBLES = ("cloud", "flux", "journal", "manager", "nodes", "people")
TROUBLES = ("trouble", "troubles", *(f"trouble_{room}" for room in ROOMS_OF_TROUBLES))
STAGED = ("scenario", "joining", "oversight", "process", "history", *TROUBLES, "chaos")
# They run the whole service, so they stand outside of what wires that, though they lie with what they simulate.
ELSEWHERE = {f"{PACKAGE}.simulation.{module}": "scenario" for module in STAGED}

# Deciding has no clock, no chance, no thread and no outside.
NOT_IN_FLEET = {
    "asyncio", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random", "secrets",
    "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip


def _modules() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def _imported(path: Path) -> Iterator[str]:
    """The dotted names that a module imports, in full: ``from nodemanager.fleet import supply`` has both parts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _room(dotted: str) -> str | None:
    """``nodemanager.fleet.plan`` is in the room ``fleet``; what is not ours is in none."""
    for module, room in ELSEWHERE.items():
        if f"{dotted}.".startswith(f"{module}."):
            return room
    package, _, rest = dotted.partition(".")
    return rest.split(".")[0] if package == PACKAGE else None


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_imports_point_inwards_only(path: Path) -> None:
    room = _room(_name(path))
    if not room:
        assert not list(_imported(path))
        return
    assert room in INWARDS, f"{room} is a new room: say in {Path(__file__).name} what it may import from"
    rooms = {(found, name) for name in _imported(path) if (found := _room(name))}
    outwards = sorted(name for found, name in rooms if found != room and found not in INWARDS[room])
    assert not outwards, f"{_name(path)} imports {outwards}; {room} may only import from {sorted(INWARDS[room])}"


def test_the_rooms_have_an_order() -> None:
    """No room leads back to itself: each can be laid down after those that it may import from."""
    laid: set[str] = set()
    while rest := {room for room in INWARDS if room not in laid}:
        ready = {room for room in rest if INWARDS[room] <= laid}
        assert ready, f"a circle among {sorted(rest)}"
        laid |= ready


@pytest.mark.parametrize("path", sorted((ROOT / PACKAGE / "fleet").glob("*.py")), ids=_name)
def test_deciding_is_pure(path: Path) -> None:
    roots = {name.split(".")[0] for name in _imported(path)} - {PACKAGE}
    assert roots <= sys.stdlib_module_names, "no library from elsewhere"
    assert not roots & NOT_IN_FLEET


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_the_bindings_are_imported_in_one_room_only(path: Path) -> None:
    bindings = {name for name in _imported(path) if name.split(".")[0] in ("flux", "_flux")}
    assert not bindings or _room(_name(path)) == "flux"


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_libcloud_is_imported_in_one_room_only(path: Path) -> None:
    drivers = {name for name in _imported(path) if name.split(".")[0] == "libcloud"}
    assert not drivers or _room(_name(path)) == "cloud"
