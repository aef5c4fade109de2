"""Changes keys of a site file's text, and leaves every other line as it is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HEADER = re.compile(r"\[(?P<section>[^\]]+)\]")
_KEY = re.compile(r"(?P<key>[^\s=#;\[][^=]*?)\s*=")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key of a section, and its value as written in a site file."""

    section: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"[{self.section}] {self.key} = {self.value}"


def with_changes(text: str, changes: Sequence[KeyChange]) -> str:
    """Set keys in a site file's text: in the line that has the key, else at the end of its section."""
    lines = text.splitlines()
    for change in changes:
        _set_key(lines, change)
    return "".join(f"{line}\n" for line in lines)


def diff_of_site(path: Path, changes: Sequence[KeyChange]) -> str:
    """Return the changes of a site file as a unified diff that ``patch`` takes. Raises :class:`OSError`."""
    text = path.read_text(encoding="utf-8-sig")
    before, after = text.splitlines(), with_changes(text, changes).splitlines()
    diff = difflib.unified_diff(before, after, str(path), str(path), lineterm="")
    return "".join(f"{line}\n" for line in diff)


def _set_key(lines: list[str], change: KeyChange) -> None:
    written = f"{change.key} = {change.value}"
    section, end = "", None
    for number, line in enumerate(lines):
        if found := _HEADER.match(line):
            section = found["section"]
        if section != change.section:
            continue
        if (key := _KEY.match(line)) and key["key"] == change.key:
            lines[number] = written
            return
        if line.strip():
            end = number + 1  # after the last line of the section that is not empty
    if end is None:
        lines += ["", f"[{change.section}]"]
        end = len(lines)
    lines.insert(end, written)
