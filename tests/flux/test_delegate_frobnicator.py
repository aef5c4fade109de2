"""The frobnicator plugin, as Flux's job ingest calls it."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

import pytest

from nodemanager.delegation.jobs import HOLD, nodelist_of
from nodemanager.delegation.jobspec import read_target
from nodemanager.flux.delegate.setup import flux_delegate_path


class FakeJobspec:
    """Has of ``flux.job.Jobspec`` what a plugin uses."""

    def __init__(self, **system: Any) -> None:
        self.attributes: dict[str, Any] = {"system": system}

    def setattr(self, key: str, value: object) -> None:
        section, _, name = key.partition(".")
        self.attributes[section][name] = value

    @property
    def system(self) -> dict[str, Any]:
        system: dict[str, Any] = self.attributes["system"]
        return system


class FakeBase:
    """Stands for ``FrobnicatorPlugin``."""

    def __init__(self, parser: object) -> None:
        del parser


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    base = ModuleType("flux.job.frobnicator")
    base.FrobnicatorPlugin = FakeBase  # type: ignore[attr-defined]
    for name in ("flux", "flux.job"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "flux.job.frobnicator", base)
    spec = importlib.util.spec_from_file_location("flux_delegate", flux_delegate_path())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Frobnicator(parser=None)


def depends(*values: tuple[str, str]) -> list[dict[str, str]]:
    return [{"scheme": scheme, "value": value} for scheme, value in values]


def frob(plugin: Any, jobspec: FakeJobspec, user: int | None = None) -> dict[str, Any]:
    plugin.frob(jobspec, os.getuid() if user is None else user, 16, 0)
    return jobspec.system


def test_a_delegated_job_is_held_and_pretends(plugin: Any) -> None:
    system = frob(plugin, FakeJobspec(dependencies=depends(("afterok", "5"), ("delegate", "ssh://b/run"))))
    assert read_target({"attributes": {"system": system}}) == "ssh://b/run"
    schemes = {it["scheme"]: it["value"] for it in system["dependencies"]}
    assert schemes.keys() == {"afterok", "begin-time"}
    assert f"begin-time={float(schemes['begin-time']):.3f}" == HOLD
    assert nodelist_of(system["alloc-bypass"]["R"]) == "ssh---b-run"
    assert system["exec"]["test"]["override"] == 1


def test_the_begin_time_of_the_user_comes_last_because_flux_lifts_only_that(plugin: Any) -> None:
    system = frob(plugin, FakeJobspec(dependencies=depends(("begin-time", "17"), ("delegate", "b"))))
    assert [it["value"] for it in system["dependencies"] if it["scheme"] == "begin-time"][-1] == "17"


def test_another_job_stays_as_it_is(plugin: Any) -> None:
    assert frob(plugin, FakeJobspec(duration=60)) == {"duration": 60}


@pytest.mark.parametrize(
    ("system", "says"),
    [
        ({"dependencies": depends(("delegate", "b"), ("delegate", "c"))}, "once"),
        ({"dependencies": depends(("delegate", ""))}, "needs a target"),
        ({"delegate": "b"}, "not the attribute"),
    ],
)
def test_what_is_refused(plugin: Any, system: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        frob(plugin, FakeJobspec(**system))


def test_another_user_s_job_is_refused(plugin: Any) -> None:
    with pytest.raises(ValueError, match="only jobs of the instance's owner"):
        frob(plugin, FakeJobspec(dependencies=depends(("delegate", "b"))), user=os.getuid() + 1)
