"""The 57 behaviours that earlier node managers and autoscalers were bitten by: each has a test of its number.

Most are in ``tests/stories/test_lessons.py``, which groups them; ``tests/chaos/test_lessons.py`` has those that
it takes a whole world to see.
"""

from __future__ import annotations

import re

from tests.paths import ROOT

TESTS = ROOT / "tests"
NUMBERED = re.compile(r"^(?:async )?def test_([0-9]{2})_[a-z]", re.MULTILINE)
LAST = 57


def test_each_number_has_a_test() -> None:
    files = (file.read_text() for file in TESTS.rglob("test_*.py"))
    found = {int(number) for text in files for number in NUMBERED.findall(text)}
    assert found == set(range(1, LAST + 1))
