"""The verbs of ``ensemble`` that need no instance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodemanager.cli.main import main
from tests.ensemble.runs import DATA


def test_a_good_file_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ensemble", "check", str(DATA / "t1.yaml")]) == 0
    assert "good; 5 groups, 11 jobs, 6 rules" in capsys.readouterr().out


def test_a_warning_is_shown_and_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ensemble", "check", str(DATA / "t4.yaml")]) == 0
    assert "t4.yaml:6:11: warning: no group is called" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jobs: [{name: a, comand: x, command: y}]\nrules: []\n", "1:18: unknown key: jobs[0].comand"),
        ("jobs: {}\nrules: []\n", "1:7: error: jobs: a list is needed"),
        ("\xff\xfe", "the file is not UTF-8"),
    ],
)
def test_a_file_with_faults_is_refused(
    text: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(text.encode("latin-1"))
    assert main(["ensemble", "check", str(file)]) == 78
    assert shown in capsys.readouterr().out


def test_faults_are_shown_as_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ensemble", "check", "--json", str(tmp_path / "none.yaml")]) == 78
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault == {
        "line": 1,
        "column": 1,
        "severity": "error",
        "text": "the file cannot be read: No such file or directory",
    }


def test_a_file_with_errors_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("jobs: []\n")
    assert main(["ensemble", "run", str(file)]) == 78
    assert "rules: this key is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["dance"], ["check"], ["run"], ["stop"], ["stop", "a.b"], ["list", "x"], ["status", "a/b"]]
)
def test_wrong_use_is_shown_with_the_right_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ensemble", *arguments]) == 2
    assert capsys.readouterr().err
