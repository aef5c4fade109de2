"""Notices to operators: what is worth one, and a command that hangs, fails or floods nobody."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread
from typing import Any

import pytest

from nodemanager.config.text.settings import NoticeKind, NotifySettings
from nodemanager.core.reason_codes import Figure
from nodemanager.history.events import HistoryEvent
from nodemanager.history.follower import Follower, HistoryUpdate
from nodemanager.service import outputs
from nodemanager.service.outputs import Notice, NoticeTracker, Notifier
from tests.builders import WALL_AT, a_node, a_policy
from tests.history.publications import a_moment
from tests.paths import CONFIG

STOP_S = 10.0


def an_event(kind: str, code: str, what: str = "", subject: str = "", **figures: Figure) -> HistoryEvent:
    return HistoryEvent(WALL_AT, kind, subject, what, code, figures)


def an_update(*events: HistoryEvent) -> HistoryUpdate:
    return replace(Follower().follow([a_moment()]), events=events)


BREAKER = an_event(
    "because", "breaker_open", "type", "type cpu", node_type="cpu", image="i", failures=3, why="w", retry_at=WALL_AT
)
BEYOND_BUDGET = an_event(
    "because",
    "beyond_budget",
    "waits",
    "f3",
    account="the cloud east",
    period="day",
    budget=Decimal(5),
    node_count=40,
    price_per_hour=Decimal(8),
)
NEVER = an_event("because", "no_type_fits", "waits", "f2", nearest="cpu", lacks="gpus")


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (BREAKER, NoticeKind.BREAKER),
        (NEVER, NoticeKind.NEVER_RUNS),
        (BEYOND_BUDGET, NoticeKind.NEVER_RUNS),
        (an_event("standstill", "safe_mode", "begins", why="w", ends="e"), NoticeKind.SAFE_MODE),
        (an_event("decided", "orphan", "DestroyNode", "i-1", waited_s=60.0, orphan_grace_s=30.0), NoticeKind.LEAK),
        (an_event("alarm", "", "foreign_cluster_uuid", "i-2"), NoticeKind.LEAK),
    ],
)
def test_what_an_operator_should_know_is_a_notice(event: HistoryEvent, kind: NoticeKind) -> None:
    (notice,) = NoticeTracker().update(an_update(event))
    assert (notice.kind, notice.at, notice.count) == (kind, WALL_AT, 1)
    assert len(notice.text) > 10


@pytest.mark.parametrize(
    "event",
    [
        an_event("standstill", "safe_mode", "ends"),
        an_event("standstill", "paused", "begins", by="ada", since_at=WALL_AT),
        an_event("because", "busy", "busy", "cloud1-1"),
        an_event("decided", "window_closes", "DrainNode", "cloud1-1"),
    ],
)
def test_the_rest_is_none(event: HistoryEvent) -> None:
    assert not [*NoticeTracker().update(an_update(event))]


def test_a_budget_is_told_once_when_a_tenth_of_it_is_left() -> None:
    def moment(spent: str) -> HistoryUpdate:
        policy = replace(a_policy(), budgets={("", "day"): Decimal(10)})
        made = a_moment(policy=policy, nodes=[a_node("cloud1", policy=policy)])
        day = (("day", int(WALL_AT // 86_400 * 86_400), ""), Decimal(spent))
        spending = replace(made.snapshot.spending, amounts=dict([day]))
        snapshot = replace(made.snapshot, nodes={}, spending=spending)
        return Follower().follow([replace(made, snapshot=snapshot)])

    tracker = NoticeTracker()
    assert [[it.subjects for it in tracker.update(moment(spent))] for spent in ("8.9", "9", "9.5", "1", "9.1")] == [
        [], [("day",)], [], [], [("day",)],
    ]  # fmt: skip


def test_the_budget_of_a_cloud_is_told_with_its_name() -> None:
    policy = replace(a_policy(), budgets={("cloud default", "day"): Decimal(10), ("", "day"): Decimal(100)})
    made = a_moment(policy=policy, nodes=[a_node("cloud1", policy=policy)])
    spent = {("day", int(WALL_AT // 86_400 * 86_400), "cloud default"): Decimal(9)}
    snapshot = replace(made.snapshot, nodes={}, spending=replace(made.snapshot.spending, amounts=spent))
    (notice,) = NoticeTracker().update(Follower().follow([replace(made, snapshot=snapshot)]))
    assert notice.subjects == ("day of cloud default",)
    assert "of 10.00 for the day of the cloud default" in notice.text


def test_notices_of_a_kind_become_one() -> None:
    one = Notice(NoticeKind.NEVER_RUNS, WALL_AT, "first", ("f1",))
    for number in range(2, 50):
        one = one.with_later(Notice(NoticeKind.NEVER_RUNS, WALL_AT + number, "later", (f"f{number}",)))
    assert (one.count, one.text, one.at, len(one.subjects)) == (49, "first", WALL_AT, outputs.SUBJECTS_MAX)


# --- the command ------------------------------------------------------------------------------------------


class Post:
    """A named pipe that the command writes to: a read waits until it does."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "post"
        os.mkfifo(self.path)

    def read(self) -> Any:
        return json.loads(self.path.read_text())


def a_command(folder: Path, text: str) -> str:
    path = folder / "told.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return "./told.sh 'an argument'"


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def a_notifier(folder: Path, command: str, **settings: Any) -> Notifier:
    notifier = Notifier(NotifySettings(command=command, **settings), folder, "hpc")
    notifier.start()
    return notifier


def test_the_command_gets_the_notice_on_its_standard_input(tmp_path: Path, post: Post) -> None:
    notifier = a_notifier(tmp_path, a_command(tmp_path, 'test "$1" = "an argument" && cat > post'))
    notifier.take_in(an_update(BREAKER))
    told = post.read()
    assert {**told, "text": ""} == {
        "event": "breaker", "at": WALL_AT, "cluster": "hpc", "text": "", "subjects": ["type cpu"], "count": 1,
    }  # fmt: skip
    notifier.stop(STOP_S)


def test_a_command_that_hangs_is_killed_with_its_children_and_one_that_fails_is_tried_again(
    tmp_path: Path, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "COMMAND_TIMEOUT_S", 0.3)
    monkeypatch.setattr(outputs, "RETRY_AFTER_S", (0.0, 0.0))
    script = """
        if mkdir hung; then sleep 1000 & wait; fi
        if mkdir failed; then echo "no network"; exit 3; fi
        cat > post"""
    notifier = a_notifier(tmp_path, a_command(tmp_path, script))
    notifier.take_in(an_update(NEVER))
    assert post.read()["event"] == "never-runs"
    assert {"hung", "failed"} <= {it.name for it in tmp_path.iterdir()}
    notifier.stop(STOP_S)


def test_a_command_that_cannot_run_is_given_up_and_the_next_notice_told(
    tmp_path: Path, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "RETRY_AFTER_S", ())
    notifier = a_notifier(
        tmp_path, a_command(tmp_path, 'text=$(cat); case $text in *breaker*) exit 1;; esac; echo "$text" > post')
    )
    notifier.take_in(an_update(BREAKER, NEVER))
    assert post.read()["event"] == "never-runs"
    notifier.stop(STOP_S)


def test_only_the_chosen_events_are_told_and_a_reload_chooses_others(tmp_path: Path, post: Post) -> None:
    command = a_command(tmp_path, "cat > post")
    notifier = a_notifier(tmp_path, command, events=frozenset([NoticeKind.BREAKER, NoticeKind.LEAK]))
    notifier.take_in(an_update(NEVER))
    notifier.take_in(an_update(BREAKER))
    assert post.read()["event"] == "breaker"
    notifier.use(NotifySettings(command=command, events=frozenset([NoticeKind.NEVER_RUNS])))
    notifier.take_in(an_update(NEVER))
    assert post.read()["event"] == "never-runs"
    notifier.stop(STOP_S)


def test_within_a_minute_one_kind_is_told_once(tmp_path: Path, post: Post) -> None:
    now_s = [0.0]
    notifier = Notifier(
        NotifySettings(command=a_command(tmp_path, "cat > post")), tmp_path, "hpc", lambda: now_s[0]
    )
    notifier.start()
    notifier.take_in(an_update(NEVER))
    assert post.read()["count"] == 1
    # Another kind is told at once, so whatever of this kind was due would have come first.
    notifier.take_in(an_update(NEVER, NEVER))
    notifier.take_in(an_update(NEVER, BREAKER))
    assert post.read()["event"] == "breaker"
    now_s[0] = outputs.KIND_EVERY_S + 1
    notifier.take_in(an_update(NEVER))
    assert (told := post.read())["event"] == "never-runs"
    assert told["count"] == 4
    notifier.stop(STOP_S)


def test_a_stop_ends_a_command_that_hangs(tmp_path: Path, post: Post) -> None:
    notifier = a_notifier(tmp_path, a_command(tmp_path, "cat > post; sleep 1000"))
    notifier.take_in(an_update(NEVER))
    post.read()
    notifier.stop(STOP_S)
    assert not notifier._thread.is_alive()


def test_without_a_command_nothing_runs(tmp_path: Path) -> None:
    notifier = a_notifier(tmp_path, "")
    notifier.take_in(an_update(NEVER))
    assert not notifier._pending
    notifier.stop(STOP_S)


# --- the examples -----------------------------------------------------------------------------------------

NOTICE: Mapping[str, object] = {
    "event": "breaker", "at": WALL_AT, "cluster": "hpc", "text": "nodes fail", "subjects": ["type cpu"], "count": 2,
}  # fmt: skip


def run(example: str, *arguments: str) -> None:
    path = CONFIG / "notify" / example
    assert path.stat().st_mode & stat.S_IXUSR
    subprocess.run([sys.executable, path, *arguments], input=json.dumps(NOTICE).encode(), check=True, timeout=60)


class Kept(TCPServer):
    kept: Sequence[str] = ()


class Chat(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.kept = [json.loads(body)["text"]]  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Mail(StreamRequestHandler):
    """As much of an SMTP server (RFC 5321) as one message needs."""

    def handle(self) -> None:
        kept: list[str] = []
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                kept += (it.decode().rstrip() for it in iter(self.rfile.readline, b".\r\n"))
            self.wfile.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                break
        self.server.kept = kept  # type: ignore[attr-defined]


def served(server: TCPServer) -> Iterator[Any]:
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def chat() -> Iterator[Any]:
    yield from served(HTTPServer(("127.0.0.1", 0), Chat))


@pytest.fixture
def mail() -> Iterator[Any]:
    yield from served(Kept(("127.0.0.1", 0), Mail))


def test_the_example_posts_to_a_chat(tmp_path: Path, chat: Any) -> None:
    webhook = tmp_path / "webhook"
    webhook.touch(mode=0o600)
    webhook.write_text(f"http://127.0.0.1:{chat.server_address[1]}/hook\n", encoding="utf-8")
    run("post-to-chat", str(webhook))
    assert chat.kept == ["hpc: breaker: type cpu nodes fail (2 in all)"]
    webhook.chmod(0o644)
    with pytest.raises(subprocess.CalledProcessError):
        run("post-to-chat", str(webhook))


def test_the_example_takes_no_webhook_that_every_user_of_the_machine_sees(chat: Any) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run("post-to-chat", f"http://127.0.0.1:{chat.server_address[1]}/hook")
    assert not hasattr(chat, "kept")


def test_the_example_sends_mail(mail: Any) -> None:
    run("send-mail", "ops@example.org", f"127.0.0.1:{mail.server_address[1]}")
    assert {"Subject: hpc: breaker", "To: ops@example.org", "nodes fail"} <= set(mail.kept)
