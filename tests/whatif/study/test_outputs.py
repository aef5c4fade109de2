"""The outputs of a study are checked before the runs, and never destroy inputs or older results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodemanager.cli.main import main
from nodemanager.whatif import command
from tests.whatif.sites import a_site

WORKLOAD = "poisson:jobs=12,procs=4,run=5m"
ALONE = ("--baselines", "none")


def _simulate(*arguments: str) -> int:
    return main(["simulate", *arguments])


@pytest.mark.parametrize("option", ["--report", "--journal"])
def test_what_cannot_be_written_is_said_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def run(*_: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr(command, "execute_all", run)
    nowhere = str(tmp_path / "none" / "out")
    assert _simulate(WORKLOAD, "--config", str(a_site(tmp_path).path), option, nowhere) == 1
    assert f"{option} {nowhere}: cannot be written: No such file" in capsys.readouterr().err


def test_a_study_that_fails_leaves_files_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, journal = tmp_path / "out.html", tmp_path / "out.jsonl"
    report.write_text("of an earlier study")
    out = ["--report", str(report), "--journal", str(journal)]
    assert _simulate("nowhere.swf", "--config", str(a_site(tmp_path).path), *out) == 1
    assert "nowhere.swf: cannot be read" in capsys.readouterr().err
    assert report.read_text() == "of an earlier study"
    assert not journal.exists()


def test_a_report_takes_the_place_of_a_longer_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "out.html"
    report.write_text("x" * 1_000_000)
    assert _simulate(WORKLOAD, "--config", str(a_site(tmp_path).path), "--report", str(report), *ALONE) == 0
    assert "jobs/s" in capsys.readouterr().out
    assert report.read_text().startswith("<!doctype html>")
    assert report.read_text().endswith("</html>\n")


@pytest.mark.parametrize("option", ["--report", "--journal"])
@pytest.mark.parametrize("arguments", [["--processes", "1"], ["--processes", "2", "--sweep", "idle_timeout=1m"]])
def test_a_full_disk_costs_no_more_than_what_it_does_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, arguments: list[str]
) -> None:
    given = [option, "/dev/full", "--json", *ALONE, *arguments]
    assert _simulate(WORKLOAD, "--config", str(a_site(tmp_path).path), *given) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["main"]["jobs_served"] == 12
    assert told.err == f"{option} /dev/full: not all of it could be written: No space left on device\n"


@pytest.mark.parametrize("option", ["--report", "--journal"])
@pytest.mark.parametrize("what", ["run.jsonl", "link.jsonl", "small.ini", "other.ini"])
def test_what_is_read_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, what: str
) -> None:
    site, run, other = a_site(tmp_path), tmp_path / "run.jsonl", tmp_path / "other.ini"
    other.write_text(site.path.read_text())
    assert _simulate(WORKLOAD, "--config", str(site.path), "--journal", str(run), *ALONE) == 0
    os.link(run, tmp_path / "link.jsonl")
    before = (tmp_path / what).read_bytes()
    given = ["--config", str(site.path), "--compare", str(other), option, str(tmp_path / what), *ALONE]
    assert _simulate(str(run), *given) == 1
    assert _was_said(capsys, f"{option}: the same file as ")
    assert (tmp_path / what).read_bytes() == before


def _was_said(capsys: pytest.CaptureFixture[str], what: str) -> bool:
    return what in capsys.readouterr().err


def test_two_things_are_not_written_to_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert _simulate(WORKLOAD, "--config", str(a_site(tmp_path).path), "--report", out, "--journal", out) == 1
    assert _was_said(capsys, "--journal: the same file as --report")
    assert not (tmp_path / "out").exists()


def _as_a_process(site: Path, *arguments: str, stdout: int) -> subprocess.Popen[str]:
    command_line = [
        sys.executable,
        "-m",
        "nodemanager",
        "simulate",
        WORKLOAD,
        "--config",
        str(site),
        *ALONE,
    ]
    return subprocess.Popen([*command_line, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("form", [["--json"], []])
def test_one_who_reads_no_further_costs_neither_the_report_nor_a_complaint(tmp_path: Path, form: list[str]) -> None:
    report = tmp_path / "out.html"
    read, write = os.pipe()
    os.close(read)
    process = _as_a_process(a_site(tmp_path).path, *form, "--report", str(report), stdout=write)
    os.close(write)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (141, "")
    assert report.read_text().endswith("</html>\n")


@pytest.mark.parametrize("form", [["--json"], []])
def test_standard_output_on_a_full_disk_is_said(tmp_path: Path, form: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        process = _as_a_process(a_site(tmp_path).path, *form, stdout=full.fileno())
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert said == "standard output: not all of it could be written: No space left on device\n"
