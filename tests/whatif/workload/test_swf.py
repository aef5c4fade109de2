import gzip
from pathlib import Path

import pytest

from nodemanager.core.jobs import Shape
from nodemanager.whatif.workload import swf
from nodemanager.whatif.workload.workload import Oddities, Processors, TraceJob, WorkloadError

HEADER = """; Version: 2.2
; Computer: a small one
; MaxRecords: 12
; MaxProcs: 16
; UnixStartTime: 843480031
; Note: uses the EASY scheduler
;
; Note: and more
"""
LINES = """
 1  100  5  60  4 -1 -1  4  600 -1 1 12 1 -1 1 -1 -1 -1
 2  160 -1  10  2 -1 -1 -1   -1 -1 1 -1 1 -1 1 -1 -1 -1
 3  170  0  99  1 -1 -1  1   60 -1 0  7 1 -1 1 -1  2 30
 4  150  0   5  1 -1 -1  1   60 -1 1  7 1 -1 1 -1 -1 -1
 5  180 -1  -1  1 -1 -1  1   60 -1 5  7 1 -1 1 -1 -1 -1
 6  190  0   5 -1 -1 -1 -1   60 -1 1  7 1 -1 1 -1 -1 -1
 7   -1  0   5  1 -1 -1  1   60 -1 1  7 1 -1 1 -1 -1 -1
 8  200  0   5  1 -1 -1  1   60 -1 2  7 1 -1 1 -1 -1 -1
 9  210  0 abc  1 -1 -1  1   60 -1 1  7 1 -1 1 -1 -1 -1
10  220  0   5  1 -1 -1  1   60 -1 1
"""


def _read(path: Path, each: Processors = Processors.CORES) -> tuple[list[TraceJob], Oddities]:
    oddities = Oddities()
    return list(swf.open_swf(path, each).read(oddities)), oddities


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.swf"
    path.write_text(HEADER + LINES)
    return path


def test_the_header_is_read_with_keys_that_come_twice(trace: Path) -> None:
    workload = swf.open_swf(trace)
    assert workload.header["Note"] == "uses the EASY scheduler\nand more"
    assert (workload.start_at, workload.processors, workload.jobs_about) == (843480031.0, 16, 12)


def test_jobs_are_read_with_what_is_not_known(trace: Path) -> None:
    jobs, _ = _read(trace)
    assert jobs == [
        TraceJob("1", 0.0, 60.0, 600.0, Shape(slots=4, cores_per_slot=1), 12),
        TraceJob("2", 60.0, 10.0, 0.0, Shape(slots=2, cores_per_slot=1), 0),
        TraceJob("3", 70.0, 99.0, 99.0, Shape(slots=1, cores_per_slot=1), 7),
        TraceJob("4", 70.0, 5.0, 60.0, Shape(slots=1, cores_per_slot=1), 7),
        TraceJob("10", 120.0, 5.0, 60.0, Shape(slots=1, cores_per_slot=1), 0),
    ]


def test_every_odd_line_is_counted_and_named(trace: Path) -> None:
    _, oddities = _read(trace)
    assert dict(oddities.counts) == {
        swf.NO_REQUEST: 1,
        swf.NO_LIMIT: 1,
        swf.OVERRUN: 1,
        swf.FOLLOWS: 1,
        swf.EARLIER: 1,
        swf.NO_RUN_TIME: 1,
        swf.NO_PROCESSORS: 1,
        swf.NO_SUBMIT_TIME: 1,
        swf.PART: 1,
        swf.NO_NUMBER: 1,
        swf.NOT_18: 1,
        swf.OTHER_COUNT: 1,
    }
    assert oddities.examples[swf.NO_NUMBER] == ["line 18"]
    assert oddities.examples[swf.OTHER_COUNT] == ["12 promised, 10 there"]


def test_every_line_is_a_job_or_an_oddity(trace: Path) -> None:
    jobs, oddities = _read(trace)
    left_out = sum(count for kind, count in oddities.counts.items() if kind.startswith("left out"))
    assert len(jobs) + left_out == len(LINES.strip().splitlines())


def test_gzip_and_whole_nodes(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.swf.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    jobs, _ = _read(packed, Processors.NODES)
    assert jobs[0].shape == Shape(nodes=4, slots=1, cores_per_slot=1, exclusive=True)


def test_a_file_that_is_not_there_or_cut_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none\.swf: cannot be read"):
        swf.open_swf(tmp_path / "none.swf")
    cut = tmp_path / "cut.swf.gz"
    cut.write_bytes(gzip.compress((HEADER + LINES).encode())[:-20])
    with pytest.raises(WorkloadError, match=r"cut\.swf\.gz: cannot be read.*end-of-stream"):
        _read(cut)
    many = tmp_path / "many.swf.gz"
    many.write_bytes(gzip.compress("".join(_line(number) for number in range(20_000)).encode())[:-2000])
    with pytest.raises(WorkloadError, match=r"cannot be read after line [\d,]+: Compressed file ended"):
        _read(many)
    spoilt = bytearray(gzip.compress(HEADER.encode()))
    spoilt[len(spoilt) // 2] ^= 0xFF
    cut.write_bytes(spoilt)
    with pytest.raises(WorkloadError, match=r"cut\.swf\.gz: cannot be read"):
        _read(cut)


def _line(number: float | str, *, submit: float | str = 100, run: str = "60", processors: str = "1") -> str:
    return f"{number} {submit} 5 {run} 1 -1 -1 {processors} 600 -1 1 1 1 -1 1 -1 -1 -1\n"


def test_packed_or_not_is_told_by_what_is_in_the_file(trace: Path, tmp_path: Path) -> None:
    wanted, _ = _read(trace)
    packed, plain = tmp_path / "packed.swf", tmp_path / "plain.swf.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    plain.write_bytes(trace.read_bytes())
    assert _read(packed)[0] == _read(plain)[0] == wanted


def test_line_ends_of_another_system_and_a_byte_order_mark_change_nothing(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.swf"
    other.write_bytes(b"\xef\xbb\xbf" + trace.read_bytes().replace(b"\n", b"\r\n"))
    assert swf.open_swf(other).header == swf.open_swf(trace).header
    assert _read(other)[0] == _read(trace)[0]


@pytest.mark.parametrize(
    ("line", "kind", "jobs"),
    [
        (_line(2, run="nan"), swf.NO_NUMBER, 1),
        (_line(2, run="inf"), swf.NO_NUMBER, 1),
        (_line(2, processors="1e300"), swf.NO_NUMBER, 1),
        (_line(2, run="-60"), swf.NO_RUN_TIME, 1),
        (_line(2, submit=-5), swf.NO_SUBMIT_TIME, 1),
        (_line(2, submit=99), swf.EARLIER, 2),
        (_line(1), swf.SEEN_BEFORE, 2),
        (_line(2, processors="0.5"), swf.NOT_WHOLE, 2),
        ("PK\x03\x04 \x00\x01\n", swf.NO_NUMBER, 1),
    ],
)
def test_what_no_trace_should_have_is_counted_and_harms_no_other_job(
    tmp_path: Path, line: str, kind: str, jobs: int
) -> None:
    path = tmp_path / "odd.swf"
    path.write_text(f"  ; MaxProcs: 4\n{_line(1)}{line}")
    read, oddities = _read(path)
    assert oddities.counts[kind] == 1
    assert len(read) == jobs
    assert all(job.shape.slots >= 1 for job in read)


def test_a_header_beyond_all_measure_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "odd.swf"
    path.write_text(f"; MaxRecords: 1e400\n; UnixStartTime: nan\n; MaxProcs: -1\n{_line(1)}")
    workload = swf.open_swf(path)
    assert (workload.start_at, workload.processors, workload.jobs_about) == (0.0, None, None)


def test_a_line_without_end_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The archive's longest lines have a few hundred characters. A file of zeros is one line."""
    path = tmp_path / "zeros.swf"
    path.write_bytes(b"; Version: 2.2\n" + b"0" * (swf.LINE_MAX_CHARS + 1))
    with pytest.raises(WorkloadError, match=r"line 2 has more than 16,384 characters"):
        swf.open_swf(path)


def test_a_header_without_end_is_kept_only_in_part(tmp_path: Path) -> None:
    path = tmp_path / "header.swf"
    path.write_text("; MaxProcs: 8\n" + f"; Note: {'x' * 1000}\n" * 1000 + "1 0 0 60 1 -1 -1 1 60 " + "-1 " * 9)
    workload = swf.open_swf(path)
    assert workload.processors == 8
    assert sum(map(len, workload.header.values())) <= swf.HEADER_MAX_CHARS
    assert [job.run_s for job in workload.read(Oddities())] == [60.0]


@pytest.mark.parametrize(
    ("submit", "run", "limit", "odd", "limit_s"),
    [
        ("60", "1e11", "60", swf.TOO_LONG, None),
        ("1e11", "60", "60", swf.TOO_LATE, None),
        ("60", "60", "1e11", swf.ENDLESS_LIMIT, 0.0),
    ],
)
def test_a_time_beyond_every_trace_makes_no_endless_replay(
    tmp_path: Path, submit: str, run: str, limit: str, odd: str, limit_s: float | None
) -> None:
    path = tmp_path / "times.swf"
    lines = (("1", "0", "60", "60"), ("2", submit, run, limit))
    path.write_text("".join(f"{job} {at} 0 {ran} 1 -1 -1 1 {most} {'-1 ' * 9}\n" for job, at, ran, most in lines))
    oddities = Oddities()
    jobs = list(swf.open_swf(path).read(oddities))
    assert [job.limit_s for job in jobs] == [60.0, *([limit_s] if limit_s is not None else [])]
    assert oddities.examples[odd] == ["line 2"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("7 100 -1", swf.NO_RUN_TIME),  # cut off: nobody knows how long it ran
        ("not a job at all", swf.NO_NUMBER),
        ("3 9e9 -1 5 -1 -1 -1 4 0 -1 1 1 1 -1 -1 -1 -1 -1 99", swf.TOO_LATE),
    ],
)
def test_a_line_that_is_left_out_is_counted_once(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "one.swf"
    path.write_text(f"1 0 -1 5 1 -1 -1 1 60 -1 1 1 1 -1 -1 -1 -1 -1\n{line}\n")
    jobs, oddities = _read(path)
    assert len(jobs) == 1
    assert dict(oddities.counts) == {why: 1}
