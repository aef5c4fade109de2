"""Flux's notations for durations (RFC 23), host lists (RFC 29) and id sets (RFC 22), and sizes in bytes.

Each pair of functions reads and writes one notation. Text that cannot be read raises ``NotationError``, a
``ValueError`` whose message holds the text, the column (counted from 1) and what was expected there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple, NoReturn

# A typo such as cloud[1-1000000000] must not use up the memory. Flux itself also refuses longer lists.
HOSTS_MAX = 100_000
IDS_MAX = 1_000_000

DIGITS_MAX = 15  # of a number in a notation

# Largest first, as in a compound duration.
_DURATION_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|[smhd])?", re.ASCII)
_INFINITE = frozenset({"inf", "infinity"})

_BYTE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES = re.compile(rf"([0-9]{{1,{DIGITS_MAX}}}(?:\.[0-9]{{1,{DIGITS_MAX}}})?)[ ]?([A-Za-z]*)", re.ASCII)

_SEPARATORS = re.compile(r"[,\s]+")
_HOST_CHARACTERS = re.compile(r"[^,\s\[\]]*")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_NUMBERED_HOST = re.compile(rf"(.*?)([0-9]{{1,{DIGITS_MAX}}})", re.ASCII | re.DOTALL)


class NotationError(ValueError):
    """The text does not follow its notation. ``fault`` says where and why, without repeating the text."""

    def __init__(self, text: str, position: int, expected: str) -> None:
        self.fault = f"column {position + 1}: {expected}"
        super().__init__(f'"{text}", {self.fault}')


def _fail(text: str, position: int, expected: str) -> NoReturn:
    raise NotationError(text, position, expected)


# --- durations --------------------------------------------------------------------------------------------


def parse_fsd(text: str) -> float:
    """Read a Flux Standard Duration (RFC 23) in seconds: "90s", "1.5h", "100ms", "30" (seconds), "infinity".

    As an extension of the RFC, several parts may follow each other, largest unit first: "1h30m".
    """
    if text.lower() in _INFINITE:
        return math.inf
    seconds, position, smallest = 0.0, 0, math.inf
    while position < len(text) or position == 0:
        part = _DURATION_PART.match(text, position)
        if part is None:
            _fail(text, position, 'a duration is needed, such as "90s", "5m", "1.5h" or "1h30m"')
        number, unit = part.groups()
        if unit is None and part.span() != (0, len(text)):
            _fail(text, part.end(), "a unit is needed: ms, s, m, h or d")
        unit_s = _DURATION_UNITS[unit or "s"]
        if unit_s >= smallest:
            _fail(text, part.start(), "the units of a duration must go from large to small, as in 1h30m")
        seconds, position, smallest = seconds + float(number) * unit_s, part.end(), unit_s
    if not math.isfinite(seconds):
        _fail(text, 0, "the duration is too long")
    return seconds


def format_fsd(duration_s: float) -> str:
    """Write a duration as Flux does: in the largest unit that it fills, with at most six digits."""
    if math.isnan(duration_s) or duration_s < 0:
        raise ValueError(f"{duration_s}: a duration is 0 or more seconds")
    if math.isinf(duration_s):
        return "infinity"
    if 0 < duration_s < 0.1:
        return f"{duration_s * 1000:.6g}ms"
    for unit in ("d", "h", "m"):
        if duration_s >= _DURATION_UNITS[unit]:
            return f"{duration_s / _DURATION_UNITS[unit]:.6g}{unit}"
    return f"{duration_s:.6g}s"


# --- bytes ------------------------------------------------------------------------------------------------


def format_bytes(size_bytes: int) -> str:
    """Write a size in the largest unit in which it is whole: 1GiB, 1536MiB."""
    unit = next(
        it
        for it in sorted(_BYTE_UNITS, key=_BYTE_UNITS.__getitem__, reverse=True)
        if not size_bytes % _BYTE_UNITS[it]
    )
    return f"{size_bytes // _BYTE_UNITS[unit]}{unit}"


def parse_bytes(text: str) -> int:
    """Read a size such as "4GiB", "1.5TiB" or "512MiB", in bytes.

    Only B and the binary units are accepted: "4G" and "4GB" mean 4·10⁹ to some people and 4·2³⁰ to others.
    """
    size = _BYTES.fullmatch(text)
    if size is None:
        _fail(text, 0, 'a size is needed, such as "512MiB" or "4GiB"')
    number, unit = size.groups()
    if unit not in _BYTE_UNITS:
        meant = next((known for known in _BYTE_UNITS if unit and known[0] == unit[0].upper()), None)
        hint = f'; did you mean "{number}{meant}"?' if meant else ""
        _fail(text, size.start(2), f"the unit must be one of {', '.join(_BYTE_UNITS)}{hint}")
    size_bytes = Fraction(number) * _BYTE_UNITS[unit]
    if size_bytes.denominator != 1:
        _fail(text, 0, "the size must be a whole number of bytes")
    return size_bytes.numerator


# --- host lists -------------------------------------------------------------------------------------------


class HostGroup(NamedTuple):
    """One entry of a host list: the host ``prefix``, or ``prefix[low-high,...]suffix``.

    ``ranges``: lowest and highest number, and how many digits numbers have at least; empty for a single host.
    """

    prefix: str
    ranges: tuple[tuple[int, int, int], ...] = ()
    suffix: str = ""

    @property
    def host_count(self) -> int:
        return sum(high - low + 1 for low, high, _ in self.ranges) if self.ranges else 1

    def hosts(self) -> Iterator[str]:
        """The hosts in order."""
        if not self.ranges:
            yield self.prefix
        for low, high, width in self.ranges:
            for number in range(low, high + 1):
                yield f"{self.prefix}{number:0{width}d}{self.suffix}"


def parse_hostlist(text: str) -> list[HostGroup]:
    """Read "cloud[1-4],gpu[01-02]" without listing its hosts. The effort depends on the text's length alone.

    As in Flux, commas and white space both separate. A name may hold only one pair of brackets; Flux would treat
    a second pair as plain characters.
    """
    return [group for group, _ in _host_groups(text)]


def expand_hostlist(text: str) -> tuple[str, ...]:
    """List the hosts of "cloud[1-4],gpu[01-02]" in order, with zero padding and repeats kept."""
    hosts: list[str] = []
    for group, position in _host_groups(text):
        if len(hosts) + group.host_count > HOSTS_MAX:
            _fail(text, position, f"more than {HOSTS_MAX} hosts")
        hosts.extend(group.hosts())
    return tuple(hosts)


def _host_groups(text: str) -> Iterator[tuple[HostGroup, int]]:
    """Read each entry of a host list, with the position of its first number or its last character."""
    position = 0
    while position < len(text):
        if gap := _SEPARATORS.match(text, position):
            position = gap.end()
            continue
        prefix, bracket = _host_characters(text, position)
        if not text.startswith("[", bracket):
            if text.startswith("]", bracket):
                _fail(text, bracket, 'this "]" has no "["')
            position = bracket
            yield HostGroup(prefix), position - 1
            continue
        closing = text.find("]", bracket)
        if closing < 0:
            _fail(text, bracket, 'this "[" has no "]"')
        ranges = tuple(_ranges(text, bracket + 1, closing))
        suffix, position = _host_characters(text, closing + 1)
        if text.startswith(("[", "]"), position):
            _fail(text, position, "a host name may hold only one pair of brackets")
        yield HostGroup(prefix, ranges, suffix), bracket


def _host_characters(text: str, start: int) -> tuple[str, int]:
    found = _HOST_CHARACTERS.match(text, start)
    return (found.group(), found.end()) if found else ("", start)


def compress_hostlist(hosts: Iterable[str]) -> str:
    """Write the shortest host list that keeps the order: neighbours with the same prefix share brackets."""
    groups: list[tuple[str, list[str]]] = []
    for host in hosts:
        if not host or _SEPARATORS.search(host) or "[" in host or "]" in host:
            raise ValueError(f'"{host}": a host name has at least one character and no comma, space or bracket')
        numbered = _NUMBERED_HOST.fullmatch(host)
        prefix, number = numbered.groups() if numbered else (host, "")
        if groups and number and groups[-1][0] == prefix and groups[-1][1] != [""]:
            groups[-1][1].append(number)
        else:
            groups.append((prefix, [number]))
    return ",".join(prefix + _bracketed(numbers) for prefix, numbers in groups)


def _bracketed(numbers: Sequence[str]) -> str:
    """Write one number as it is, several as ``[01-03,7]``."""
    if len(numbers) == 1:
        return numbers[0]
    runs: list[tuple[str, str]] = []
    for number in numbers:
        first, last = runs[-1] if runs else ("", "")
        if last and number == f"{int(last) + 1:0{len(first)}d}":
            runs[-1] = (first, number)
        else:
            runs.append((number, number))
    return "[" + ",".join(first if first == last else f"{first}-{last}" for first, last in runs) + "]"


# --- id sets ----------------------------------------------------------------------------------------------


def parse_idset(text: str, most: int = IDS_MAX) -> tuple[int, ...]:
    """List the ids of a set such as "0-2,5" or "[0-2,5]" in ascending order; "" is the empty set.

    Extra commas are ignored, as in flux-core's ``idset_decode``: a job with ``--requires=rank:1,`` runs.
    """
    ids: list[int] = []
    for low, high in parse_idset_ranges(text):
        if len(ids) + high - low >= most:
            _fail(text, 0, f"more than {most} ids")
        ids.extend(range(low, high + 1))
    return tuple(ids)


def parse_idset_ranges(text: str) -> list[tuple[int, int]]:
    """Read a set such as "0-2,5" as ranges (lowest, highest), without listing its ids."""
    start, end = (1, len(text) - 1) if text.startswith("[") and text.endswith("]") else (0, len(text))
    if start >= end:
        return []
    ranges: list[tuple[int, int]] = []
    for low, high, _ in _ranges(text, start, end, of_ids=True):
        if ranges and low <= ranges[-1][1]:
            _fail(text, start, f"{low} follows {ranges[-1][1]}: the ids of a set must ascend")
        ranges.append((low, high))
    return ranges


def format_idset(ids: Iterable[int]) -> str:
    """Write the set's canonical text: ascending, each id once, neighbours as ranges."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(ids)):
        if number < 0:
            raise ValueError(f"{number}: an id is 0 or more")
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _ranges(text: str, start: int, end: int, *, of_ids: bool = False) -> list[tuple[int, int, int]]:
    """Read the comma-separated ranges in ``text[start:end]``: lowest, highest, and the width of the lowest."""
    found: list[tuple[int, int, int]] = []
    for item in text[start:end].split(","):
        if of_ids and not item:
            continue
        bounds = _RANGE.fullmatch(item)
        if bounds is None:
            _fail(text, start, 'a number or a range such as "0-3" is needed')
        low, high = bounds.group(1), bounds.group(2) or bounds.group(1)
        if max(len(low), len(high)) > DIGITS_MAX:
            _fail(text, start, f"a number has at most {DIGITS_MAX} digits")
        if of_ids and any(len(bound) > 1 and bound.startswith("0") for bound in (low, high)):
            _fail(text, start, "an id has no leading zero")
        if int(high) < int(low) or (of_ids and bounds.group(2) and low == high):
            _fail(text, start, "a range must ascend")
        found.append((int(low), int(high), len(low)))
        start += len(item) + 1
    return found


# --- job ids ----------------------------------------------------------------------------------------------

_F58_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_F58_PREFIXES = ("ƒ", "f")
_JOB_ID_MAX = 2**64
_JOB_ID_LENGTH_MAX = 24


def format_job_id(job_id: int) -> str:
    """Write a job id as Flux shows it, in the ASCII form of F58 (RFC 19): ``fLqTPgb``."""
    text, rest = "", job_id
    while rest or not text:
        rest, digit = divmod(rest, len(_F58_DIGITS))
        text = _F58_DIGITS[digit] + text
    return f"f{text}"


def parse_job_id(text: str) -> int:
    """Read a job id in F58, or as a decimal or hexadecimal number. Raises ``NotationError``."""
    if len(text) > _JOB_ID_LENGTH_MAX:
        _fail(text, _JOB_ID_LENGTH_MAX, "the job id is too long")
    if text.startswith(_F58_PREFIXES):
        number = 0
        for position, digit in enumerate(text[1:], start=1):
            if digit not in _F58_DIGITS:
                _fail(text, position, "a base-58 digit is needed")
            number = number * len(_F58_DIGITS) + _F58_DIGITS.index(digit)
        if len(text) == 1:
            _fail(text, 1, "a base-58 digit is needed")
    elif re.fullmatch(r"[0-9]{1,20}", text, re.ASCII):
        number = int(text)
    elif re.fullmatch(r"0x[0-9a-f]{1,16}", text, re.ASCII | re.IGNORECASE):
        number = int(text, 16)
    else:
        _fail(text, 0, "a job id is needed, such as fLqTPgb or 1234")
    if number >= _JOB_ID_MAX:
        _fail(text, 0, "a job id has at most 64 bits")
    return number


# --- any text ---------------------------------------------------------------------------------------------


def escape_unprintable(text: str) -> str:
    """Write every unprintable character as an escape, so that the text cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
