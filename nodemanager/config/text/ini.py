"""Read INI text so that every fault can be shown with its line.

configparser reads the text. Hooks record the line of each key, because configparser forgets the lines and stops at
the first duplicate key. ``${NAME}`` is an environment variable; nothing else is expanded.
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
_OF_CREDENTIALS = "Credentials"  # the end of a section's name: no value there is shown
_SECRET_WORDS = ("secret", "password", "passwd", "passphrase", "token", "key")
_NOT_SECRET = frozenset({"key_name", "ssh_public_key", "token_file", "tokens_file"})

_WEB_ADDRESS = re.compile(
    r"(?P<scheme>https?://)(?P<user>[^/\s@?#]*@)?(?P<host>[^/\s?#\"']*)(?P<rest>[/?#][^\s\"']+)?", re.IGNORECASE
)

# Text with NUL is refused, so no section of a file can have these names.
_BEFORE_SECTIONS = "\0before"
_DEFAULTS = "\0defaults"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a file. ``line`` is 0 if the fault has no line; ``value`` is None if it must not be shown."""

    file: Path
    problem: str  # the values that are allowed
    line: int = 0
    section: str = ""
    key: str = ""
    value: str | None = None
    nearest: str = ""  # the known name that was probably meant

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        value = "" if self.value is None else f" = {_shown(self.value)}"
        key = without_url_secrets(self.key)
        subject = " ".join(part for part in (f"[{self.section}]" if self.section else "", key + value) if part)
        meant = f'; did you mean "{self.nearest}"?' if self.nearest else ""
        return escape_unprintable(": ".join(part for part in (place, subject, self.problem + meant) if part))


@dataclass(frozen=True, slots=True)
class IniEntry:
    """A key as written in the file. ``text`` is its value with variables expanded; None if one is not set."""

    key: str
    written: str
    text: str | None
    line: int


@dataclass(slots=True)
class IniSection:
    """A section, and its keys in the order of the file."""

    name: str
    line: int = 0  # 0: the file has no such section
    entries: dict[str, IniEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's sections in order, and the faults found while reading it."""

    file: Path
    sections: Mapping[str, IniSection]
    faults: tuple[Fault, ...]
    secret_sections: frozenset[str]

    def section(self, name: str) -> IniSection:
        """Return a section; an empty one if the file lacks it."""
        return self.sections.get(name) or IniSection(name)

    def fault(self, section: str, key: str, problem: str, nearest: str = "", *, shows_value: bool = True) -> Fault:
        """Make a fault at a key, at its section if the key is not given, or at the file."""
        found = self.section(section)
        entry = found.entries.get(key)
        hidden = section in self.secret_sections or section.endswith(_OF_CREDENTIALS) or is_secret_key(key)
        value = entry.written if entry and shows_value and not hidden else None
        return Fault(self.file, problem, entry.line if entry else found.line, section, key, value, nearest)


def read_ini(file: Path, environment: Mapping[str, str], secret_sections: Iterable[str] = ()) -> Document:
    """Read a file; its faults are returned, never raised. No fault shows a value of ``secret_sections``
    or of a key whose name says that it is a secret.
    """
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
    return _DocumentBuilder(file, environment, frozenset(secret_sections)).build(_LineParser(), text)


def is_secret_key(key: str) -> bool:
    """Whether the value of a key of this name may be a secret, in whichever section it is."""
    return key not in _NOT_SECRET and any(word in key.lower() for word in _SECRET_WORDS)


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Find the known name most like ``name``, or one that begins with it, ignoring case; "" if there is none."""
    lowered = name.lower()
    by_lowered = {candidate.lower(): candidate for candidate in known}
    longer = [candidate for candidate in by_lowered if candidate.startswith(lowered)]
    found = difflib.get_close_matches(lowered, by_lowered, n=1) or longer
    return by_lowered[found[0]] if found else ""


class _LineParser(configparser.RawConfigParser):
    """A configparser that records (line, section, key) of all it sees, with key "" for a section's header."""

    def __init__(self) -> None:
        super().__init__(
            strict=False,  # duplicates are recorded here with their lines, and do not end the reading
            delimiters=("=",),
            interpolation=None,
            empty_lines_in_values=False,
            default_section=_DEFAULTS,
        )
        self.line = 0
        self.section = ""
        self.seen: list[tuple[int, str, str]] = []
        # Of a pattern, configparser calls only ``match``, for each line that may be a header.
        self.SECTCRE = cast("re.Pattern[str]", _Headers(self))

    def read_lines(self, text: str) -> tuple[int, ...]:
        """Read the text; return the lines that are neither a header nor a key."""
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
        if optionstr:  # a line without a key is reported by the ParsingError
            self.seen.append((self.line, self.section, optionstr))
        return optionstr


class _Headers:
    def __init__(self, reader: _LineParser) -> None:
        self._reader = reader

    def match(self, text: str) -> re.Match[str] | None:
        found = _HEADER.match(text)
        if found:
            self._reader.section = found["header"]
            self._reader.seen.append((self._reader.line, self._reader.section, ""))
        return found


class _DocumentBuilder:
    """Collects the sections and faults of one file, in the order of its lines."""

    def __init__(self, file: Path, environment: Mapping[str, str], secret_sections: frozenset[str]) -> None:
        self._file = file
        self._environment = environment
        self._secret_sections = secret_sections
        self._sections: dict[str, IniSection] = {}
        self._faults: list[Fault] = []

    def build(self, reader: _LineParser, text: str) -> Document:
        for line in reader.read_lines(text):
            # The line itself is not shown: it may contain part of a secret.
            self._fault(line, 'a "[Section]", a "key = value" or a comment is needed')
        for line, section, key in tuple(reader.seen):  # a copy, because ``reader.get`` records its key too
            if section == _BEFORE_SECTIONS:
                if key:
                    self._fault(line, "this key must be in a [Section]", key=key)
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
            self._fault(line, f"this section already begins at line {first.line}: merge the two", name)

    def _add_key(self, line: int, section: IniSection, key: str, written: str) -> None:
        if first := section.entries.get(key):
            self._fault(line, f"this key is already given at line {first.line}: remove one", section.name, key)
        # configparser keeps the value of the last line.
        section.entries[key] = IniEntry(key, written, self._expand(written), line)

    def _expand(self, written: str) -> str | None:
        if any(name not in self._environment for name in _VARIABLE.findall(written)):
            return None
        return _VARIABLE.sub(lambda found: self._environment[found[1]], written)

    def _check_variables(self, section: IniSection) -> None:
        for entry in section.entries.values():
            for name in _VARIABLE.findall(entry.written):
                if name not in self._environment:
                    problem = f"the environment variable {name or '${}'} is not set: set it, or correct its name"
                    self._fault(entry.line, problem, section.name, entry.key)

    def _fault(self, line: int, problem: str, section: str = "", key: str = "") -> None:
        self._faults.append(Fault(self._file, problem, line, section, key))


def without_url_secrets(value: str) -> str:
    """Shorten each web address to its host: a webhook's path is its secret, and so may a user or a query be."""
    return _WEB_ADDRESS.sub(
        lambda found: (
            f"{found['scheme']}{'…@' if found['user'] else ''}{found['host']}{'/…' if found['rest'] else ''}"
        ),
        value,
    )


def _shown(value: str) -> str:
    value = without_url_secrets(value)
    shortened = value if len(value) <= _VALUE_SHOWN_MAX else value[: _VALUE_SHOWN_MAX - 1] + "…"
    return json.dumps(shortened, ensure_ascii=False)
