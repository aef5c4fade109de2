"""Imports point one way only. This reads them, those inside functions too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from nodemanager.config.text.providers import PROVIDERS
from tests.paths import ROOT

PACKAGE = "nodemanager"

# From the lowest to the highest, as in doc/design.md. A package imports from lower layers and from itself.
LAYERS = (
    {"core"},
    {"config"},
    {"planner", "ensemble"},
    {"delegation"},
    {"actors", "flux"},
    {"cloud", "join", "history", "simulation"},
    {"web"},
    {"service"},
    {"whatif"},
    {"cli"},
)
# The same within those packages whose folders have an order. "" is the package's own folder.
ORDERED: Mapping[str, Sequence[str]] = {
    "config": ("text", ""),
    "ensemble": ("file", ""),
    "flux": ("parse", "handles", "records", "", "in_job", "delegate", "ensembles", "setup"),
    "cloud": ("common", "ec2", "openstack", "gce", "azure", "local", "minicluster", "static", ""),
    "history": ("", "store"),
    "web": ("state", "api", "", "grpc"),
    "service": ("assembly", ""),
    "simulation": ("time", "flux", "cloud", "delegation", ""),
    "whatif": ("workload", "cloud", "replay", "study", "report", ""),
}
READS_CLOCK = {"now", "today", "utcnow"}  # of datetime; a calendar itself is pure
LOOSE = {"__init__", "__main__"}  # modules at the top

# Deciding has no clock, no chance, no thread and no outside.
IMPURE = {
    "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random", "secrets",
    "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
IN_PACKAGES = [name for name in MODULES if "." in name and name != f"{PACKAGE}.__main__"]


def _imported(name: str) -> Iterator[str]:
    """The modules that a module imports: ``from nodemanager.planner import plan`` is of both, where both are."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


GRAPH = {name: sorted({it for it in _imported(name) if it in MODULES and it != name}) for name in MODULES}


def _package(name: str) -> str:
    return name.split(".")[1]


def _folder(name: str) -> str:
    """The folder of a module within its package, "" where it lies in the package itself."""
    inside = MODULES[name].relative_to(ROOT / PACKAGE / _package(name)).parts
    return inside[0] if len(inside) > 1 else ""


def test_every_package_has_its_layer() -> None:
    folders = {path.name for path in (ROOT / PACKAGE).iterdir() if (path / "__init__.py").exists()}
    assert folders == set.union(*LAYERS)


@pytest.mark.parametrize("name", IN_PACKAGES)
def test_a_package_imports_from_lower_layers_only(name: str) -> None:
    layer = next(depth for depth, packages in enumerate(LAYERS) if _package(name) in packages)
    allowed = {_package(name), *set().union(*LAYERS[:layer])}
    upwards = [it for it in GRAPH[name] if "." in it and _package(it) not in allowed]
    assert not upwards, f"{name} may import from {sorted(allowed)}"


@pytest.mark.parametrize("name", [name for name in IN_PACKAGES if _package(name) in ORDERED])
def test_a_folder_imports_from_lower_folders_only(name: str) -> None:
    order = ORDERED[_package(name)]
    allowed = order[: order.index(_folder(name)) + 1]
    ours = [it for it in GRAPH[name] if "." in it and _package(it) == _package(name) and it.count(".") > 1]
    upwards = [it for it in ours if _folder(it) not in allowed]
    assert not upwards, f"{name} may import from {allowed}"


def test_no_import_leads_back_to_its_module() -> None:
    """Each module can be laid down after those that it imports. Packages themselves hold a docstring only."""
    needs = {name: {it for it in found if MODULES[it].name != "__init__.py"} for name, found in GRAPH.items()}
    laid: set[str] = set()
    while rest := needs.keys() - laid:
        ready = {name for name in rest if needs[name] <= laid}
        assert ready, f"a circle among {sorted(rest)}"
        laid |= ready


def test_the_top_holds_no_module_but_the_entry() -> None:
    assert {path.stem for path in (ROOT / PACKAGE).glob("*.py")} == LOOSE


DECLARATIONS = list(PROVIDERS.values())


@pytest.mark.parametrize("name", DECLARATIONS)
def test_reading_a_site_loads_no_providers_library(name: str) -> None:
    """Every process that reads a site imports its providers' modules, so those import their adapters when used."""
    top = [it for it in ast.parse(MODULES[name].read_text(encoding="utf-8")).body if isinstance(it, ast.ImportFrom)]
    roots = {str(it.module) for it in top}
    ours = {it for it in roots if it.startswith(f"{PACKAGE}.")}
    assert {it.split(".")[0] for it in roots - ours} <= sys.stdlib_module_names
    allowed = (f"{PACKAGE}.core.", f"{PACKAGE}.config.", f"{PACKAGE}.cloud.common.")
    assert all(it.startswith(allowed) or it == f"{PACKAGE}.config" for it in ours)


PURE = [name for name in IN_PACKAGES if _package(name) in {"planner", "delegation", "ensemble"}]
READS_FILES = {"pydantic", "yaml"}  # libraries without side effects, to read an ensemble's file


@pytest.mark.parametrize("name", PURE)
def test_deciding_is_pure(name: str) -> None:
    roots = {it.split(".")[0] for it in _imported(name)} - {PACKAGE}
    if name.startswith(f"{PACKAGE}.ensemble.file."):
        roots -= READS_FILES
    assert roots <= sys.stdlib_module_names, "no library from elsewhere"
    assert not roots & IMPURE
    names = {
        node.attr
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert not names & READS_CLOCK


@pytest.mark.parametrize(("library", "package"), [("flux", "flux"), ("_flux", "flux"), ("libcloud", "cloud")])
def test_a_library_is_imported_in_one_package_only(library: str, package: str) -> None:
    users = {name for name in IN_PACKAGES if library in {it.split(".")[0] for it in _imported(name)}}
    assert {_package(name) for name in users} <= {package}
