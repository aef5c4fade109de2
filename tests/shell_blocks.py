"""The shell blocks of a page, as a reader copies them, and its INI blocks.

``python -m tests.shell_blocks PAGE HEADING N`` prints one.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from itertools import count

from tests.paths import ROOT

_LINE = re.compile(r"^(?P<marks>#{2,}) (?P<heading>.+)$|^(?P<indent> *)```(?P<language>\w*)$")


@dataclass(frozen=True, slots=True)
class ShellBlock:
    """One block: the page below the project's folder, the heading above it, and its place below that heading."""

    page: str
    heading: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}, {self.heading}, block {self.number}"


def shell_blocks(page: str, heading: str | None = None) -> list[ShellBlock]:
    """The blocks of a page, or of one of its sections, without their indentation."""
    found: list[ShellBlock] = []
    above, numbers = "", count(1)
    language: str | None = None
    text: list[str] = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        mark = _LINE.match(line)
        if language is not None and not (mark and mark["indent"] is not None):
            text.append(line)
        elif language is not None:
            if language == "sh":
                script = textwrap.dedent("\n".join(text)) + "\n"
                found.append(ShellBlock(page, above, next(numbers), script))
            language, text = None, []
        elif mark and mark["heading"]:
            above, numbers = mark["heading"], count(1)
        elif mark:
            language = mark["language"]
    assert language is None, f"{page}: a block does not end"
    chosen = [block for block in found if heading in {None, block.heading}]
    assert chosen, f"{page}: no shell block below {heading}"
    return chosen


def ini_blocks(text: str, having: str = "") -> list[str]:
    """The INI blocks of a page's text that contain ``having``, without their indentation."""
    blocks = re.findall(r"^( *)```ini\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [block for _, indented in blocks if having in (block := textwrap.dedent(indented))]


if __name__ == "__main__":
    page, heading, number = sys.argv[1:]
    print(shell_blocks(page, heading)[int(number) - 1].text, end="")
