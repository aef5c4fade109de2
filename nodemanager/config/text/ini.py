"""INI text, read so that every fault can be shown at its line.

configparser reads the text. It is watched while it does, for it forgets the lines, and stops at the first key
that is given twice. ``${NAME}`` is a variable of the environment; nothing else is expanded.
"""

from __future__ import annotations

import configparser
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from nodemanager.core.notation import escape_unprintable

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_HEADER = re.compile(r"\[(?P<header>[^\]]+)\]\s*(?:[#;].*)?$")
_VALUE_SHOWN_MAX = 80

# No text that is read holds NUL, so these can be no section of it.
_BEFORE_SECTIONS = "\0before"
_DEFAULTS = "\0defaults"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in a file. ``line`` is 0 where it has none, ``value`` None where it is not shown."""

    file: Path
    problem: str  # what is allowed
    line: int = 0
    section: str = ""
    key: str = ""
    value: str | None = None
    nearest: str = ""  # the known name that was probably meant

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        value = "" if self.value is None else f" = {_shown(self.value)}"
        subject = " ".join(part for part in (f"[{self.section}]" if self.section else "", self.key + value) if part)
        meant = f'; did you mean "{self.nearest}"?' if self.nearest else ""
        return escape_unprintable(": ".join(part for part in (place, subject, self.problem + meant) if part))


@dataclass(frozen=True, slots=True)
class IniEntry:
    """A key as the file gives it. ``text`` is its value with all variables put in, None if one was not set."""

    key: str
    written: str
    text: str | None
    line: int


@dataclass(slots=True)
class IniSection:
    name: str
    line: int = 0  # 0: the file has no such section
    entries: dict[str, IniEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's sections in their order, and what was wrong with it so far."""

    file: Path
    sections: Mapping[str, IniSection]
    faults: tuple[Fault, ...]
    secret_sections: frozenset[str]

    def section(self, name: str) -> IniSection:
        return self.sections.get(name) or IniSection(name)

    def fault(self, section: str, key: str, problem: str, nearest: str = "") -> Fault:
        """A fault at a key, at its section if the key is not given, or at the file."""
        found = self.section(section)
        entry = found.entries.get(key)
        value = entry.written if entry and section not in self.secret_sections else None
        return Fault(self.file, problem, entry.line if entry else found.line, section, key, value, nearest)


def read_ini(file: Path, environment: Mapping[str, str], secret_sections: Iterable[str] = ()) -> Document:
    """Read a file; never raises for what is in it. Values of ``secret_sections`` are shown in no fault."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return Document(file, {}, (Fault(file, "the file must be UTF-8 text"),), frozenset())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Document(file, {}, (Fault(file, f"the file cannot be read: {why}"),), frozenset())
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        return Document(file, {}, (Fault(file, "the file must be text, without NUL", line),), frozenset())
    return _Gathering(file, environment, frozenset(secret_sections)).gather(_Reader(), text)


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name most like ``name``, or one that goes on after it, whatever the case; "" if there is none."""
    lowered = name.lower()
    by_lowered = {candidate.lower(): candidate for candidate in known}
    longer = [candidate for candidate in by_lowered if candidate.startswith(lowered)]
    found = difflib.get_close_matches(lowered, by_lowered, n=1) or longer
    return by_lowered[found[0]] if found else ""


class _Reader(configparser.RawConfigParser):
    """configparser, and what it saw at which line: (line, section, key), with key "" for a section's header."""

    def __init__(self) -> None:
        super().__init__(
            strict=False,  # what is given twice is seen here, at its line, and does not end the reading
            delimiters=("=",),
            interpolation=None,
            empty_lines_in_values=False,
            default_section=_DEFAULTS,
        )
        self.line = 0
        self.section = ""
        self.seen: list[tuple[int, str, str]] = []
        # configparser calls nothing of a pattern but ``match``, for each line that may be a header.
        self.SECTCRE = cast("re.Pattern[str]", _Headers(self))

    def read_lines(self, text: str) -> tuple[int, ...]:
        """Read all of it; return the lines that are neither a header nor a key."""
        try:
            self.read_file(self._numbered(text))
        except configparser.ParsingError as error:
            return tuple(line - 1 for line, _ in error.errors)
        return ()

    def _numbered(self, text: str) -> Iterator[str]:
        yield f"[{_BEFORE_SECTIONS}]\n"
        for self.line, line in enumerate(text.split("\n"), start=1):
            yield line + "\n"

    def optionxform(self, optionstr: str) -> str:
        if optionstr:  # a line without a key is in the ParsingError
            self.seen.append((self.line, self.section, optionstr))
        return optionstr


class _Headers:
    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def match(self, text: str) -> re.Match[str] | None:
        found = _HEADER.match(text)
        if found:
            self._reader.section = found["header"]
            self._reader.seen.append((self._reader.line, self._reader.section, ""))
        return found


class _Gathering:
    """The sections and faults of one file, gathered in the order of its lines."""

    def __init__(self, file: Path, environment: Mapping[str, str], secret_sections: frozenset[str]) -> None:
        self._file = file
        self._environment = environment
        self._secret_sections = secret_sections
        self._sections: dict[str, IniSection] = {}
        self._faults: list[Fault] = []

    def gather(self, reader: _Reader, text: str) -> Document:
        for line in reader.read_lines(text):
            # The line itself is not shown: it may be half a secret.
            self._fault(line, 'a "[Section]", a "key = value" or a comment is needed')
        for line, section, key in tuple(reader.seen):  # a copy: asking for a value is seen too
            if section == _BEFORE_SECTIONS:
                if key:
                    self._fault(line, "this must stand in a section", key=key)
            elif key:
                self._add_key(line, self._sections[section], key, reader.get(section, key, raw=True))
            else:
                self._add_section(line, section)
        for found in self._sections.values():
            self._check_variables(found)
        faults = tuple(sorted(self._faults, key=lambda fault: fault.line))
        return Document(self._file, self._sections, faults, self._secret_sections)

    def _add_section(self, line: int, name: str) -> None:
        first = self._sections.setdefault(name, IniSection(name, line))
        if first.line != line:
            self._fault(line, f"this section begins at line {first.line} already", name)

    def _add_key(self, line: int, section: IniSection, key: str, written: str) -> None:
        if first := section.entries.get(key):
            self._fault(line, f"this key is given at line {first.line} already", section.name, key)
        # The value that configparser has kept is that of the last line.
        section.entries[key] = IniEntry(key, written, self._expanded(written), line)

    def _expanded(self, written: str) -> str | None:
        if any(name not in self._environment for name in _VARIABLE.findall(written)):
            return None
        return _VARIABLE.sub(lambda found: self._environment[found[1]], written)

    def _check_variables(self, section: IniSection) -> None:
        for entry in section.entries.values():
            for name in _VARIABLE.findall(entry.written):
                if name not in self._environment:
                    problem = f"the environment variable {name or '${}'} is not set"
                    self._fault(entry.line, problem, section.name, entry.key)

    def _fault(self, line: int, problem: str, section: str = "", key: str = "") -> None:
        self._faults.append(Fault(self._file, problem, line, section, key))


def _shown(value: str) -> str:
    shortened = value if len(value) <= _VALUE_SHOWN_MAX else value[: _VALUE_SHOWN_MAX - 1] + "…"
    return json.dumps(shortened, ensure_ascii=False)
