"""The command line, as a user meets it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from nodemanager import cli

ROOT = Path(__file__).parent.parent
EMBEDDED = ROOT / "config" / "embedded.ini"
LOCAL = ROOT / "config" / "local.ini"


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A verb sets the process's logging up, to a stream that is the test's."""
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("arguments", [["check", "--config", str(EMBEDDED)], ["--config", str(EMBEDDED), "check"]])
def test_the_config_stands_before_or_after_the_verb(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 0
    assert "good; 3 node types, 10 slots, mode act" in capsys.readouterr().out


def test_every_fault_of_a_site_is_said_and_the_status_is_78(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    site.write_text(EMBEDDED.read_text().replace("nodes_max = 8", "nodes_mx = eight").replace("20.00", "-1"))
    assert cli.main(["check", "--config", str(site)]) == 78
    said = capsys.readouterr().err
    assert "nodes_mx" in said
    assert "nodes_max" in said
    assert "price_per_hour_max" in said


def test_a_real_site_without_its_uuid_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state", str(tmp_path)))
    assert cli.main(["--config", str(site)]) == 78
    assert "flux-node-manager init" in capsys.readouterr().err


def test_init_needs_to_know_where_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "--config", str(LOCAL)]) == 2
    assert "--output" in capsys.readouterr().err


def test_init_without_flux_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state", str(tmp_path)))
    assert cli.main(["init", "--config", str(site), "--output", str(tmp_path / "flux")]) == 1
    assert "flux-core" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_site_runs_until_told_to_stop(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "nodemanager.cli", "--config", str(EMBEDDED)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        for line in service.stderr:
            if '"was": "requested", "now": "booting"' in line:
                service.send_signal(number)
                break
        rest = service.stderr.read()
        assert service.wait(10) == 0
    assert '"event": "stopped"' in rest


def test_flux_finds_it_by_name(tmp_path: Path) -> None:
    flux = shutil.which("flux")
    if flux is None:
        pytest.skip("no flux on PATH")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [flux, "node-manager", "check", "--config", str(EMBEDDED)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (ran.returncode, "good" in ran.stdout) == (0, True), ran.stderr
