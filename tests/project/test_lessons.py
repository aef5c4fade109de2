"""The 57 lessons of ``doc/lessons.md``: each has a test of its number.

Most of these tests are in ``tests/stories/test_lessons.py``. ``tests/chaos/test_lessons.py`` has those that need
the whole service.
"""

from __future__ import annotations

import re

from tests.paths import DOC, ROOT

NUMBERED = re.compile(r"^(?:async )?def test_([0-9]{2})_[a-z]", re.MULTILINE)
ROW = re.compile(r"^\| ([0-9]+) \| .+ \| .+ \|$", re.MULTILINE)
LESSONS = list(range(1, 58))


def test_the_page_has_every_lesson_once_and_in_order() -> None:
    assert [int(number) for number in ROW.findall((DOC / "lessons.md").read_text(encoding="utf-8"))] == LESSONS


def test_every_lesson_has_a_test_and_every_test_with_a_number_its_lesson() -> None:
    files = (ROOT / "tests").rglob("test_*.py")
    found = {int(number) for file in files for number in NUMBERED.findall(file.read_text(encoding="utf-8"))}
    assert sorted(found) == LESSONS
