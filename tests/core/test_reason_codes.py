"""Every code has its figures, and every reason in the code gives the figures of its code."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from typing import get_type_hints

import pytest

from nodemanager.core.reason_codes import Code, Figures, figure_faults
from nodemanager.core.reasons import because
from tests.paths import ROOT

PACKAGE = ROOT / "nodemanager"


def test_every_figure_belongs_to_a_code_and_every_figure_of_a_code_has_a_type() -> None:
    assert set(get_type_hints(Figures)) == {name for code in Code for name in code.required | code.optional}


@pytest.mark.parametrize("code", Code)
def test_the_figures_of_a_sentence_are_those_of_its_code(code: Code) -> None:
    assert not code.required & code.optional
    shown = {name for _, name, _, _ in string.Formatter().parse(code.sentence) if name is not None}
    assert shown <= code.required | code.optional
    always = re.sub("<[^<>]*>", "", code.sentence)
    assert {name for _, name, _, _ in string.Formatter().parse(always) if name is not None} <= code.required
    assert "<" not in always


def test_a_code_is_named_as_it_is_written() -> None:
    assert [code.name for code in Code] == [code.upper() for code in Code]


def test_faults_of_figures_are_found() -> None:
    assert not [*figure_faults(Code.BUSY, {})]
    assert not [*figure_faults(Code.PAUSED, {"by": "ada", "since_at": 1})]
    assert [*figure_faults(Code.PAUSED, {"by": 3})] == [
        "paused lacks since_at",
        "paused: by is 3, not of type <class 'str'>",
    ]
    assert [*figure_faults(Code.BUSY, {"slots": 1})] == ["busy has no figure slots"]
    assert [*figure_faults(Code.WANTED, {"jobs": "1"})] == ["wanted: jobs is '1', not of type tuple[str, ...]"]
    assert [*figure_faults(Code.SPARE, {"node_type": "a", "spares": True})]
    assert [*figure_faults(Code.PRICE_PER_HOUR_MAX, {**dict.fromkeys(Code.PRICE_PER_HOUR_MAX.required, 0.1)})]


def test_a_reason_may_get_more_figures() -> None:
    reason = because(Code.NEVER_JOINED, waited_s=900.0, boot_timeout_s=900.0).with_figures(phase="boot")
    assert str(reason) == "never_joined waited_s=900 boot_timeout_s=900 phase=boot"


# --- the calls in the code --------------------------------------------------------------------------------


def test_every_reason_in_the_code_has_the_figures_of_its_code() -> None:
    wrong = {path: [*wrong_calls(path.read_text(encoding="utf-8"))] for path in PACKAGE.rglob("*.py")}
    assert not {path: faults for path, faults in wrong.items() if faults}


def test_every_code_is_given_somewhere() -> None:
    named = {
        node.attr
        for path in PACKAGE.rglob("*.py")
        if path.name != "reason_codes.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Code"
    }
    assert named == {code.name for code in Code}


def wrong_calls(source: str) -> Iterator[str]:
    """The calls of ``because`` whose figures are not those of the code. mypy checks names and types."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "because":
            given = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            # Figures that are added later, or come from a dict, are seen only when the code runs.
            complete = all(keyword.arg is not None for keyword in call.keywords)
            for code in codes_of(call.args[0]):
                allowed = code.required | code.optional
                if given - allowed or (complete and code.required - given and not is_extended(call, source)):
                    yield f"line {call.lineno}: {code} needs {sorted(code.required)}, and got {sorted(given)}"


def codes_of(given: ast.expr) -> Iterator[Code]:
    match given:
        case ast.Attribute(value=ast.Name("Code"), attr=name):
            yield Code[name]
        case ast.IfExp(body=one, orelse=other):
            yield from codes_of(one)
            yield from codes_of(other)
        case ast.Subscript():
            return  # from a table, whose values mypy checks
        case _:
            raise AssertionError(f"line {given.lineno}: name the code, or take it from a table")


def is_extended(call: ast.Call, source: str) -> bool:
    """Whether figures are added to the reason at once, by ``with_figures``."""
    return source.splitlines()[(call.end_lineno or 0) - 1][call.end_col_offset :].startswith(".with_figures(")


def test_wrong_calls_are_found_however_they_are_written() -> None:
    source = """
because(Code.PAUSED, by=name, since_at=at)
because(Code.PAUSED, by=name)
because(Code.PAUSED, by=name, since_at=at, zone=why)
because(Code.BUSY if x else Code.PAUSED)
because(Code.PAUSED, by=name).with_figures(since_at=at)
because(Code.PAUSED, **figures)
because(TABLE[kind], detail=detail)
"""
    assert [fault.partition(":")[0] for fault in wrong_calls(source)] == ["line 3", "line 4", "line 5"]
    with pytest.raises(AssertionError, match="line 1"):
        list(wrong_calls("because('paused')"))


# --- nothing steers by a reason ---------------------------------------------------------------------------

DECIDES = ("planner", "delegation", "ensemble", "actors", "whatif")
SHOWS = (
    "actors/decision_log.py",
    "actors/delegation/delegator.py",  # why a delegated job is lost
    "actors/delegation/stepper.py",  # the memo of a delegated job, the note of one that no peer takes
    "actors/job_memos.py",
    "planner/reasons.py",  # the jobs that hold the nodes of a full cloud
    "planner/hardware.py",  # the text of a drain
    "whatif/replay/invariants.py",  # checks what was said
    "whatif/cloud/parameters.py",  # figures of a report, not of a reason
)


def test_nothing_is_decided_by_the_code_or_a_figure_of_a_reason() -> None:
    paths = [path for package in DECIDES for path in (PACKAGE / package).rglob("*.py")]
    found = {
        str(path.relative_to(PACKAGE)): [*readings(path.read_text(encoding="utf-8"))]
        for path in paths
        if str(path.relative_to(PACKAGE)) not in SHOWS
    }
    assert not {path: lines for path, lines in found.items() if lines}


def readings(source: str) -> Iterator[str]:
    """Where a code is compared, taken apart or matched, and where figures are read."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, comparators=others):
                read = any(is_code(side) for side in (left, *others))
            case ast.Match(subject=subject):
                read = any(is_code(part) for part in ast.walk(subject))
            case ast.Attribute(value=value, attr=attr):
                read = attr == "figures" or is_code(value)
            case _:
                continue
        if read:
            yield f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}"


def is_code(part: ast.AST) -> bool:
    return isinstance(part, ast.Attribute) and part.attr == "code"


def test_readings_are_found_however_they_are_written() -> None:
    source = """
if reason.code == "busy": pass
if "busy" != reason.code: pass
if reason.code in KNOWN: pass
if reason.code.startswith("blocked_"): pass
at_s = reason.figures["until_s"]
match reason.code, 1:
    case _: pass
counts[reason.code] += 1
"""
    assert sorted(fault.partition(":")[0] for fault in readings(source)) == [f"line {line}" for line in range(2, 8)]
