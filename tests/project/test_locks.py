"""The lock files agree with pyproject.toml, and neither they nor its lower bounds admit a known hole.

The list of known holes, ``advisories.json``, is stored here, so that the check needs no network. Add to it whatever
concerns a package in ``requirements/service.txt``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.paths import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
ADVISORIES = json.loads((ROOT / "tests" / "project" / "advisories.json").read_text(encoding="utf-8"))
LOCKS = {"service.txt": ["flux", "ensemble"], "test.txt": ["test", "fuzz", "flux", "ensemble", "doc"]}
LOCKED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?: ; (?P<marker>.+?))? \\$", re.MULTILINE)


def locked(file: str) -> Mapping[str, Version]:
    """The locked version of each package for this Python."""
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    found = [it for it in LOCKED.finditer(text) if not it["marker"] or Marker(it["marker"]).evaluate()]
    assert found
    return {canonicalize_name(it["name"]): Version(it["version"]) for it in found}


@pytest.mark.parametrize("file", LOCKS)
def test_every_dependency_is_locked_within_its_bounds(file: str) -> None:
    versions = locked(file)
    extras = [need for extra in LOCKS[file] for need in PROJECT["optional-dependencies"][extra]]
    for need in map(Requirement, [*PROJECT["dependencies"], *extras]):
        assert versions[canonicalize_name(need.name)] in need.specifier, f"{need}: run bin/lock"


def test_what_builds_the_wheel_is_locked_too() -> None:
    versions = locked("build.txt")
    needs = [Requirement(it) for it in PYPROJECT["build-system"]["requires"]]
    assert {canonicalize_name(it.name) for it in needs} <= set(versions)
    assert all(versions[canonicalize_name(it.name)] in it.specifier for it in needs), "run bin/lock"


@pytest.mark.parametrize("file", [*LOCKS, "build.txt"])
def test_every_locked_package_has_its_hashes(file: str) -> None:
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    packages = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(packages) >= len(locked(file))
    assert [it.split()[0] for it in packages if "--hash=sha256:" not in it] == []


def test_what_is_tested_is_what_the_container_has() -> None:
    tested = locked("test.txt")
    assert {name: version for name, version in locked("service.txt").items() if tested.get(name) != version} == {}


@pytest.mark.parametrize("file", LOCKS)
def test_no_locked_version_has_a_known_hole(file: str) -> None:
    versions = locked(file)
    open_holes = [it["id"] for it in ADVISORIES if versions[it["package"]] < Version(it["fixed_in"])]
    assert open_holes == []


def test_no_lower_bound_admits_a_known_hole() -> None:
    lowest = subprocess.run(
        [sys.executable, ROOT / "bin" / "lowest"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    pins = (line.partition("==") for line in lowest.splitlines())
    bounds = {canonicalize_name(name): Version(bound) for name, _, bound in pins}
    named = [it for it in ADVISORIES if it["package"] in bounds]
    assert {it["package"] for it in named} >= {"starlette", "h11", "protobuf"}
    assert [it["id"] for it in named if bounds[it["package"]] < Version(it["fixed_in"])] == []
