"""The 57 lessons of ``doc/lessons.md``: each has a test of its number, and the page names the files.

Most of these tests are in ``tests/stories/test_lessons.py``. ``tests/chaos/test_lessons.py`` has those that need
the whole service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.paths import DOC, ROOT

TESTS = ROOT / "tests"
NUMBERED = re.compile(r"^(?:async )?def test_([0-9]{2})_[a-z]", re.MULTILINE)
ROW = re.compile(r"^\| ([0-9]+) \| (.+) \| (.+) \| (.*) \|$", re.MULTILINE)
LAST = 57


def _tests_by_number() -> Mapping[int, set[str]]:
    """The files that hold a test of each number, by their paths below ``tests/``."""
    found: dict[int, set[str]] = {}
    for file in TESTS.rglob("test_*.py"):
        for number in NUMBERED.findall(file.read_text(encoding="utf-8")):
            found.setdefault(int(number), set()).add(str(file.relative_to(TESTS)))
    return found


def _rows(page: str) -> list[tuple[int, list[str]]]:
    """Each lesson of the page with the files that it names."""
    return [(int(number), re.findall(r"`([^`]+)`", files)) for number, _, _, files in ROW.findall(page)]


PAGE = (DOC / "lessons.md").read_text(encoding="utf-8")
FOUND = _tests_by_number()


def test_the_page_has_every_lesson_once_and_in_order() -> None:
    assert [number for number, _ in _rows(PAGE)] == list(range(1, LAST + 1))


def test_every_test_with_a_number_has_its_lesson() -> None:
    assert set(FOUND) == set(range(1, LAST + 1))


@pytest.mark.parametrize(("number", "named"), _rows(PAGE))
def test_a_lesson_names_the_files_that_test_it(number: int, named: list[str]) -> None:
    assert named, f"lesson {number} names no test"
    assert named == sorted(FOUND.get(number, ())), f"name the files that hold tests called test_{number:02}_..."


def test_a_row_is_read_with_all_its_files() -> None:
    assert _rows("| 7 | this | that | `a/test_b.py`, `test_c.py` |") == [(7, ["a/test_b.py", "test_c.py"])]
    assert _rows("| 7 | this | that |  |") == [(7, [])]
