# ruff: noqa: INP001, T201 - a folder of pages, not a package; this prints
"""Count the words of the pages: ``python -m doc.words``, from the project's root.

A word has a letter or a digit, so the bars of tables do not count. ``--before COMMIT`` also counts the pages of a
commit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = "<!-- Made by"
README_MAX, PROSE_MAX, DECISION_MAX = 900, 30_000, 300
# Each group of pages, and how to recognise one by its path below the root. The first that fits counts.
GROUPS: Mapping[str, Callable[[str], bool]] = {
    "README": lambda path: path == "README.md",
    "decisions": lambda path: path.startswith("doc/decisions/"),
    "measurements": lambda path: path.startswith("doc/measurements/"),
    "prose": lambda path: path.startswith("doc/"),
}


def count_words(text: str) -> int:
    return len(re.findall(r"\S*[^\W_]\S*", text))


def group_of(path: str, text: str) -> str:
    """The group of a page. A page that is made from the code is ``generated``."""
    return "generated" if GENERATED in text[:400] else next(name for name, fits in GROUPS.items() if fits(path))


def pages() -> Iterator[tuple[str, str]]:
    """The path and the text of README and of each page of this folder."""
    files = [ROOT / "README.md", *sorted((ROOT / "doc").rglob("*.md"))]
    yield from (
        (str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
        for file in files
        if "_build" not in file.parts
    )


def pages_of(commit: str) -> Iterator[tuple[str, str]]:
    """The same of a commit."""
    listed = _git("ls-tree", "-r", "--name-only", commit, "README.md", "doc").splitlines()
    yield from ((path, _git("show", f"{commit}:{path}")) for path in listed if path.endswith(".md"))


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603


def _counts(found: Iterator[tuple[str, str]]) -> dict[str, tuple[str, int]]:
    return {path: (group_of(path, text), count_words(text)) for path, text in found}


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words of the pages.")
    parser.add_argument("--before", metavar="COMMIT", help="also count the pages of this commit")
    chosen = parser.parse_args()
    now = _counts(pages())
    before = _counts(pages_of(chosen.before)) if chosen.before else {}
    rows = [
        (path, *(side.get(path, ("", 0)) for side in (before, now))) for path in sorted(now.keys() | before.keys())
    ]
    for path, (_, was), (group, words) in rows:
        print(f"{was or '':>7} {words or '':>7}  {group or 'gone':12} {path}")
    for group in (*GROUPS, "generated"):
        sums = [sum(words for its, words in side.values() if its == group) for side in (before, now)]
        print(f"{sums[0] or '':>7} {sums[1]:>7}  {group}")


if __name__ == "__main__":
    main()
