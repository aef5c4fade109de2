"""The process that runs an ensemble's custom functions: ``python -m nodemanager.flux.ensembles.worker SOURCE``.

Each line on standard input names a file with one call, as JSON. Each answer is a line of JSON on the file
descriptor that was standard output: ``{"action": {...} | null}`` or ``{"fault": "..."}``. What the functions
print goes to standard error. The process ends when its input does, and is killed when its parent dies.

Functions see the names that they see in ensemble-python: ``Action``, ``Rule``, and the arguments ``metrics``,
``event``, ``rule``, ``action`` and ``handle``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)
_ANSWER_MAX = 60_000  # characters


class Action:
    """An action, made from a dictionary as in the file."""

    def __init__(self, action: Mapping[str, Any], module: object = None) -> None:
        del module
        self._action = dict(action)
        self.repetitions = self._action.get("repetitions", 1)
        self.backoff = self._action.get("backoff")

    @property
    def name(self) -> Any:
        return self._action.get("name")

    @property
    def label(self) -> Any:
        return self._action.get("label")

    def value(self, default: int = 1) -> Any:
        return self._action.get("value", default)


class Rule:
    """A rule, made from a dictionary as in the file."""

    def __init__(self, rule: Mapping[str, Any], module: object = None) -> None:
        self._rule = dict(rule)
        self.action = Action(self._rule["action"], module)

    @property
    def trigger(self) -> Any:
        return self._rule["trigger"]

    @property
    def name(self) -> Any:
        return self._rule.get("name") or self.trigger

    @property
    def when(self) -> Any:
        return self._rule.get("when")


class Figure:
    """One metric, which ``get`` returns."""

    def __init__(self, value: float) -> None:
        self._value = value

    def get(self) -> float:
        return self._value

    def __repr__(self) -> str:
        return f"{self._value:g}"


class Metrics:
    """All metrics: ``models["mean"]["GROUP-duration"].get()``, ``models["count"]["GROUP"]["success"].get()``."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.models = _figures(figures)


def _figures(value: Any) -> Any:
    return {key: _figures(item) for key, item in value.items()} if isinstance(value, Mapping) else Figure(value)


def main(source: str) -> int:
    """Answer calls until the input ends. Returns the exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    functions: dict[str, Any] | None = None
    for line in sys.stdin:
        try:
            call = json.loads(Path(line.strip()).read_text(encoding="utf-8"))
            if functions is None:
                functions = _load(source)
            answer: dict[str, Any] = {"action": _call(functions, call)}
        except Exception as error:  # noqa: BLE001 - a fault of the user's code, which is reported
            traceback.print_exc()
            answer = {"fault": f"{type(error).__name__}: {error}"}
        text = json.dumps(answer)
        if len(text) > _ANSWER_MAX:
            text = json.dumps({"fault": f"it returned more than {_ANSWER_MAX} characters"})
        answers.write(text + "\n")
        answers.flush()
    return 0


def _load(source: str) -> dict[str, Any]:
    module = types.ModuleType("custom")
    module.__dict__.update(Action=Action, Rule=Rule)
    published = types.ModuleType("ensemble.config.types")
    published.__dict__.update(Action=Action, Rule=Rule)
    for name in ("ensemble", "ensemble.config"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules.setdefault(published.__name__, published)
    sys.modules[module.__name__] = module
    text = Path(source).read_text(encoding="utf-8")
    exec(compile(text, "custom", "exec"), module.__dict__)  # noqa: S102 - the file's own code, in a process of its own
    module.__dict__["_handle"] = _open_handle()
    return module.__dict__


def _open_handle() -> Any:
    """Open the instance of FLUX_URI with Flux's own class; None if Python does not find Flux's bindings."""
    from nodemanager.flux.handles import direct, far_side  # noqa: PLC0415 - for the functions only
    from nodemanager.flux.handles.handle import BindingsMissing  # noqa: PLC0415

    try:
        direct.load()
    except BindingsMissing:
        return None
    return far_side.open_handle("")


def _call(functions: Mapping[str, Any], call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    rule = Rule(call["rule"])
    returned = functions[call["function"]](
        metrics=Metrics(call["metrics"]),
        event=call["event"],
        rule=rule,
        action=rule.action,
        handle=functions["_handle"],
    )
    if isinstance(returned, Action):
        return returned._action  # noqa: SLF001 - of this module
    if returned is None or isinstance(returned, Mapping):
        return returned
    raise TypeError(f"it returned {type(returned).__name__}: return an Action, a dictionary or None")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
