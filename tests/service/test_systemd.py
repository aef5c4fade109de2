"""The notifications to systemd, read from the other end of its socket."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemanager.service.systemd import Notifier, writes_to_systemd_journal
from tests.paths import ROOT

WATCHDOG_S = 90.0


@pytest.fixture
def systemd() -> Iterator[socket.socket]:
    with (
        tempfile.TemporaryDirectory(prefix="fnm-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end,
    ):
        end.bind(f"{folder}/notify")
        end.settimeout(30.0)
        yield end


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def a_notifier(systemd: socket.socket, time: Time, **more: str) -> Notifier:
    environment = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}"}
    return Notifier({**environment, **more}, time)


def told(systemd: socket.socket) -> list[str]:
    """All notifications so far, one item for each datagram."""
    items: list[str] = []
    systemd.settimeout(0.0)
    while True:
        try:
            items.append(systemd.recv(4096).decode())
        except BlockingIOError:
            return items


def test_the_first_decision_makes_it_ready_and_nothing_before(systemd: socket.socket) -> None:
    notifier = a_notifier(systemd, Time())
    assert told(systemd) == []
    notifier.notify_decision("nodes: 0")
    assert told(systemd) == ["READY=1\nWATCHDOG=1\nSTATUS=nodes: 0"]


def test_the_watchdog_hears_of_decisions_and_of_nothing_else(systemd: socket.socket) -> None:
    time = Time()
    notifier = a_notifier(systemd, time)
    notifier.notify_decision("")
    told(systemd)
    for time.now_s in (1.0, 29.0, 30.0, 31.0, 60.0):
        notifier.notify_decision("")
    assert told(systemd) == ["WATCHDOG=1", "WATCHDOG=1"]
    time.now_s = 1000.0
    assert told(systemd) == []


def test_a_status_is_told_when_it_is_new(systemd: socket.socket) -> None:
    notifier = a_notifier(systemd, Time())
    for status in ("nodes: 0", "nodes: 0", "nodes: 1"):
        notifier.notify_decision(status)
    assert told(systemd)[1:] == ["STATUS=nodes: 1"]


def test_the_end_is_told(systemd: socket.socket) -> None:
    a_notifier(systemd, Time()).notify_stopping()
    assert told(systemd) == ["STOPPING=1"]


def test_a_watchdog_meant_for_another_process_is_not_ours(systemd: socket.socket) -> None:
    a_notifier(systemd, Time(), WATCHDOG_PID=str(os.getpid() + 1)).notify_decision("")
    assert told(systemd) == ["READY=1"]


def test_an_abstract_socket_is_found() -> None:
    name = f"fnm-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0{name}")
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).notify_stopping()
        assert told(end) == ["STOPPING=1"]


@pytest.mark.parametrize("address", ["", "/nowhere/notify"])
def test_without_a_systemd_that_listens_all_goes_on(address: str) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"})
    notifier.notify_decision("nodes: 0")
    # It must not raise.
    notifier.notify_stopping()


def test_only_a_stream_that_the_journal_reads_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as stream:
        written = os.fstat(stream.fileno())
        assert writes_to_systemd_journal(stream, {"JOURNAL_STREAM": f"{written.st_dev}:{written.st_ino}"})
        assert not writes_to_systemd_journal(stream, {"JOURNAL_STREAM": f"{written.st_dev}:{written.st_ino + 1}"})
        assert not writes_to_systemd_journal(stream, {})
    assert not writes_to_systemd_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_the_service_tells_systemd_and_writes_for_its_journal(systemd: socket.socket, tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w+") as journal:
        written = os.fstat(journal.fileno())
        service = subprocess.Popen(
            [sys.executable, "-m", "nodemanager", "--config", str(ROOT / "config" / "embedded.ini")],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "NOTIFY_SOCKET": systemd.getsockname(),
                "WATCHDOG_USEC": "90000000",
                "JOURNAL_STREAM": f"{written.st_dev}:{written.st_ino}",
            },
            stderr=journal,
        )
        try:
            first = systemd.recv(4096).decode().split("\n")
            assert first[:2] == ["READY=1", "WATCHDOG=1"]
            assert first[2].startswith("STATUS=")
            service.send_signal(signal.SIGTERM)
            assert service.wait(30) == 0
        finally:
            service.kill()
            service.wait()
        assert told(systemd)[-1] == "STOPPING=1"
        lines = (tmp_path / "journal").read_text().splitlines()
    assert [line for line in lines if not line.startswith(('<6>{"', '<4>{"'))] == []
    assert "timestamp" not in "".join(lines)


def test_the_status_tells_the_mode_of_the_site_that_was_read_last(systemd: socket.socket, tmp_path: Path) -> None:
    site = tmp_path / "site.ini"
    text = (ROOT / "config" / "embedded.ini").read_text(encoding="utf-8")
    text = text.replace("../state/embedded", str(tmp_path / "state")).replace("127.0.0.1:8080", "off")
    site.write_text(text, encoding="utf-8")
    service = subprocess.Popen(
        [sys.executable, "-m", "nodemanager", "--config", str(site)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": systemd.getsockname()},
        stderr=subprocess.DEVNULL,
    )
    try:
        assert "mode act;" in until_told(systemd, "STATUS=mode")
        site.write_text(text.replace("[Node small]", "[Node small]\nmode = observe"), encoding="utf-8")
        service.send_signal(signal.SIGHUP)
        assert "act (small only observed);" in until_told(systemd, "only observed")
    finally:
        service.terminate()
        service.wait(30)


def until_told(systemd: socket.socket, text: str) -> str:
    """Fails by the socket's timeout if that never happens."""
    while text not in (said := systemd.recv(4096).decode()):
        pass
    return said
