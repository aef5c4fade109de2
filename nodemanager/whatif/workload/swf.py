"""Reads the Standard Workload Format of the Parallel Workloads Archive as a stream.

Source: Chapin, Cirne, Feitelson et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers"
(1999), version 2.2: comments with ``; Key: value``, then 18 fields a line, -1 for an unknown value.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, Workload, WorkloadError, shape_for

FIELDS = 18
# The positions of the fields, counted from 0.
NUMBER, SUBMIT, RUN, ALLOCATED, REQUESTED, LIMIT, STATUS, USER, BEFORE = 0, 1, 3, 4, 7, 8, 10, 11, 16
VALUE_MAX = 1e12
# No real trace reaches these bounds. A file beyond them would take all memory, or a replay without end.
LINE_MAX_CHARS = 16_384
HEADER_MAX_CHARS = 65_536
SPAN_MAX_S = 10 * 366 * 86_400.0  # of one job: how long it ran, and its time limit
TRACE_MAX_S = 100 * 366 * 86_400.0  # from the first submission to the last
GZIP = b"\x1f\x8b"
PARTIAL = ("2", "3", "4")  # the status of a part of a job that also has a line for the whole

NOT_18 = "not 18 fields: those missing taken as -1, those beyond left out"
NO_NUMBER = "left out: a field that is no number, or beyond all measure"
NOT_WHOLE = "processors that are no whole number: the next above taken"
SEEN_BEFORE = "a job number not above those before: the job taken as another one"
TOO_LONG = "left out: it ran for more than 10 years"
TOO_LATE = "left out: submitted more than 100 years after the first job"
ENDLESS_LIMIT = "a requested time of more than 10 years: taken as unlimited"
NO_RUN_TIME = "left out: no run time (it never ran, or nobody knows)"
NO_PROCESSORS = "left out: neither requested nor allocated processors"
NO_SUBMIT_TIME = "left out: no submit time"
PART = "left out: a part (status 2, 3 or 4) of a job that has a line of its own"
EARLIER = "submitted before the job above: taken as submitted with it"
OVERRUN = "ran beyond its time limit: the limit taken as the time it ran"
NO_REQUEST = "no requested processors: those allocated taken"
NO_LIMIT = "no requested time: taken as unlimited"
OTHER_COUNT = "the header says another number of records"
FOLLOWS = "waits for another job (field 17): submitted when it was then"


def open_swf(path: Path, each: Processors = Processors.CORES) -> Workload:
    """Open a trace, compressed with gzip or not. Raises :class:`WorkloadError` if it cannot be read."""
    header = _header(path)
    return Workload(
        name=path.name,
        read=partial(_jobs, path, each, _positive_int(header.get("MaxRecords"))),
        start_at=_number(header.get("UnixStartTime")) or 0.0,
        jobs_about=_positive_int(header.get("MaxRecords") or header.get("MaxJobs")),
        processors=_positive_int(header.get("MaxProcs")) or _positive_int(header.get("MaxNodes")),
        each=each,
        header=header,
    )


def _open(path: Path) -> TextIO:
    """Open a trace as text. Its content tells whether it is compressed. Byte order marks are skipped."""
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(LINE_MAX_CHARS + 1):
                number += 1
                if len(line) > LINE_MAX_CHARS:
                    raise WorkloadError(
                        f"{path}: line {number:,} has more than {LINE_MAX_CHARS:,} characters: it is no SWF trace"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        after = f" after line {number:,}" if number else ""
        raise WorkloadError(f"{path}: cannot be read{after}: {error}") from error


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(";")


def _header(path: Path) -> dict[str, str]:
    """Read the ``; Key: value`` lines at the top. A repeated key, such as Note, gets all its lines.

    Lines beyond ``HEADER_MAX_CHARS`` are ignored.
    """
    parts: dict[str, list[str]] = {}
    key = ""
    left = HEADER_MAX_CHARS
    for line in _lines(path):
        if line.strip() and not _is_comment(line):
            break
        text = line.lstrip().lstrip(";").strip()
        name, colon, value = text.partition(":")
        if colon and name.strip().replace(" ", "").isalnum() and not line.startswith(";  "):
            key, text = name.strip(), value.strip()
        left -= len(line)
        if key and text and left >= 0:
            parts.setdefault(key, []).append(text)
    return {name: "\n".join(texts) for name, texts in parts.items()}


def _jobs(path: Path, each: Processors, promised: int | None, oddities: Oddities) -> Iterator[TraceJob]:
    latest_s: float | None = None
    first_s = highest = 0.0
    records = 0
    for number, line in enumerate(_lines(path), start=1):
        if _is_comment(line) or not line.strip():
            continue
        records += 1
        place = f"line {number}"
        fields = line.split()
        odd = [NOT_18] if len(fields) != FIELDS else []
        fields = (fields + ["-1"] * FIELDS)[:FIELDS]
        job = _job(fields, each, odd)
        if job is not None and latest_s is not None and job.submit_s - first_s > TRACE_MAX_S:
            job = None
            odd.append(TOO_LATE)
        for what in odd if job is not None else odd[-1:]:  # a line that is left out is counted once
            oddities.note(what, place)
        if job is None:
            continue
        if latest_s is None:
            latest_s = first_s = job.submit_s
        if job.submit_s < latest_s:
            oddities.note(EARLIER, place)
        if float(job.name) <= highest:
            oddities.note(SEEN_BEFORE, place)
        highest = max(highest, float(job.name))
        latest_s = max(latest_s, job.submit_s)
        yield TraceJob(job.name, latest_s - first_s, job.run_s, job.limit_s, job.shape, job.userid)
    if promised is not None and promised != records:
        oddities.note(OTHER_COUNT, f"{promised} promised, {records} there")


def _job(fields: list[str], each: Processors, odd: list[str]) -> TraceJob | None:
    """Read a job, and add what is odd about it; None if it is left out, and then the last oddity says why."""
    try:
        values = [float(text) for text in fields]
    except ValueError:
        values = [math.nan]
    if not all(abs(value) <= VALUE_MAX for value in values):  # false for a NaN
        odd.append(NO_NUMBER)
        return None
    why = _unusable(fields, values)
    if why:
        odd.append(why)
        return None
    processors, run_s, limit_s = values[REQUESTED], values[RUN], values[LIMIT]
    if processors <= 0:
        odd.append(NO_REQUEST)
        processors = values[ALLOCATED]
    if processors != int(processors):
        odd.append(NOT_WHOLE)
    if limit_s <= 0:
        odd.append(NO_LIMIT)
        limit_s = 0.0
    elif limit_s > SPAN_MAX_S:
        odd.append(ENDLESS_LIMIT)
        limit_s = 0.0
    elif run_s > limit_s:
        odd.append(OVERRUN)
        limit_s = run_s
    if values[BEFORE] > 0:
        odd.append(FOLLOWS)
    shape = shape_for(math.ceil(processors), each)
    return TraceJob(fields[NUMBER], values[SUBMIT], run_s, limit_s, shape, max(0, int(values[USER])))


def _unusable(fields: list[str], values: list[float]) -> str:
    if fields[STATUS] in PARTIAL:
        return PART
    if values[SUBMIT] < 0:
        return NO_SUBMIT_TIME
    if values[RUN] < 0:
        return NO_RUN_TIME
    if values[RUN] > SPAN_MAX_S:
        return TOO_LONG
    if values[REQUESTED] <= 0 and values[ALLOCATED] <= 0:
        return NO_PROCESSORS
    return ""


def _number(text: str | None) -> float | None:
    with suppress(ValueError):
        number = float((text or "").split()[0]) if (text or "").split() else math.nan
        return number if math.isfinite(number) else None
    return None


def _positive_int(text: str | None) -> int | None:
    number = _number(text)
    return int(number) if number is not None and number > 0 else None
