"""Windows of the week, such as ``Mon-Fri 22:00-06:00 Europe/Berlin``, as frozen values.

Times are local: a window moves with daylight-saving time. A time that a change to summer time skips counts as the
moment an hour later; of a time that occurs twice the first counts. So a window that ends when another one begins
neither overlaps it nor leaves a gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice
from math import inf
from zoneinfo import ZoneInfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MINUTES = 24 * 60
# A change to summer time may skip one occurrence of a window as a whole. The next one is a week later.
DAYS_AHEAD = 15
WINDOW_ALLOWED = 'a list such as "Mon-Fri 22:00-06:00 Europe/Berlin, Sat 00:00-24:00" (without a zone: UTC)'

_WINDOW = re.compile(
    r"(?P<first>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?\s+"
    r"(?P<begin>\d{1,2}:\d{2})-(?P<end>\d{1,2}:\d{2})(?:\s+(?P<zone>\S+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Window:
    """A span of the day on some days of the week: 0 is Monday. Minutes count from midnight, in the zone's time.

    If ``end_minute`` is not above ``begin_minute``, the window ends on the next day.
    """

    days: tuple[int, ...]
    begin_minute: int
    end_minute: int
    zone: str = "UTC"

    def __str__(self) -> str:
        first, last = DAYS[self.days[0]], DAYS[self.days[-1]]
        days = first if len(self.days) == 1 else f"{first}-{last}"
        return f"{days} {_clock(self.begin_minute)}-{_clock(self.end_minute)} {self.zone}"

    def spans(self, at: float) -> Iterator[tuple[float, float]]:
        """The window's spans that end after ``at``, in order: begin and end. At least one, at most two weeks ahead.

        All times are seconds since the epoch.
        """
        zone = _zone(self.zone)
        today = datetime.fromtimestamp(at, zone).date()
        overnight = self.end_minute <= self.begin_minute
        for ahead in range(-2, DAYS_AHEAD + 1):
            day = today + timedelta(days=ahead)
            if day.weekday() in self.days:
                begin_at = _moment(day, self.begin_minute, zone)
                end_at = _moment(day + timedelta(days=1) if overnight else day, self.end_minute, zone)
                if begin_at < end_at and at < end_at:
                    yield begin_at, end_at


def read_windows(text: str) -> tuple[Window, ...]:
    """Read windows separated by commas; "" is none. Raises ``ValueError`` that names the fault."""
    return tuple(_read_window(part.strip()) for part in text.split(",")) if text.strip() else ()


def is_open(windows: Sequence[Window], at: float) -> bool:
    """Whether a moment is within one of the windows. Without windows every moment is."""
    return not windows or any(next(window.spans(at))[0] <= at for window in windows)


def opens_at(windows: Sequence[Window], at: float) -> float:
    """The first moment from ``at`` on that is within one of the windows."""
    return max(at, min((next(window.spans(at))[0] for window in windows), default=at))


def next_change_at(windows: Iterable[Window], at: float) -> float:
    """The first moment after ``at`` at which a window begins or ends; infinity if there are no windows."""
    moments = (moment for window in windows for span in _first_spans(window, at) for moment in span)
    return min((moment for moment in moments if moment > at), default=inf)


def _first_spans(window: Window, at: float) -> list[tuple[float, float]]:
    return list(islice(window.spans(at), 2))


def _read_window(text: str) -> Window:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError(f"{WINDOW_ALLOWED} is needed")
    first = _read_day(found["first"])
    last = _read_day(found["last"]) if found["last"] else first
    days = tuple((first + step) % 7 for step in range((last - first) % 7 + 1))
    begin, end = _read_clock(found["begin"]), _read_clock(found["end"])
    if begin == DAY_MINUTES:
        raise ValueError("a window begins before 24:00: write 00:00 and the next day")
    if begin == end:
        raise ValueError("a window must not end when it begins: for a whole day write 00:00-24:00")
    zone = found["zone"] or "UTC"
    try:
        _zone(zone)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f'"{zone}" is no time zone: give a name such as Europe/Berlin') from error
    return Window(days, begin, end, zone)


def _read_day(text: str) -> int:
    try:
        return DAYS.index(text.title())
    except ValueError:
        raise ValueError(f'"{text}" is no day: write {", ".join(DAYS)}') from None


def _read_clock(text: str) -> int:
    hours, minutes = map(int, text.split(":"))
    if minutes > 59 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f'"{text}" is no time of the day: write 00:00 to 24:00')
    return hours * 60 + minutes


def _clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


@cache
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _moment(day: date, minute: int, zone: ZoneInfo) -> float:
    """A local time as seconds since the epoch."""
    day, minute = day + timedelta(days=minute // DAY_MINUTES), minute % DAY_MINUTES
    local = datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone)
    return local.astimezone(UTC).timestamp()
