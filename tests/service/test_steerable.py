"""A service that nobody can steer buys nothing and says so everywhere; once it can be steered it goes on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nodemanager.cli.service_client import NotAllowed, ServiceUnreachable, make_client
from nodemanager.config.load import load_site
from nodemanager.config.state_folder import why_not_writable
from nodemanager.core.facts import SteeringSeen
from nodemanager.service.outputs import SteeringWatch
from nodemanager.web.listen import UnixSocket
from nodemanager.web.state.access import Access, Team
from nodemanager.web.state.token import NamedToken, Role, TokenError, read_or_make_token, read_token
from nodemanager.web.thread import WebServer
from tests.live.instance import eventually, free_port
from tests.web.fleets import a_stand
from tests.web.test_service import Running


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)


def test_a_full_disk_leaves_no_empty_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full_disk(full)
        with pytest.raises(TokenError, match="No space left"):
            read_or_make_token(tmp_path / "token")
    assert list(tmp_path.iterdir()) == []
    assert read_or_make_token(tmp_path / "token") == read_token(tmp_path / "token")


def test_a_folder_that_could_not_be_made_or_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path) == ""
    assert why_not_writable(tmp_path / "new" / "state") == ""
    assert "Not a directory" in why_not_writable(tmp_path / "file" / "state")
    full_disk(monkeypatch)
    assert "No space left" in why_not_writable(tmp_path)
    assert [it.name for it in tmp_path.iterdir()] == ["file"], "nothing stays there"


class Watched:
    """A watch on a token that cannot be made yet, since a file is where its folder would be."""

    def __init__(self, folder: Path) -> None:
        self.blocker = folder / "state"
        self.blocker.touch()
        self.access = Access(None, by_socket=True)
        self.server = WebServer(UnixSocket(folder / "web.sock"), a_stand().served)
        self.team = Team()
        self.told: list[SteeringSeen] = []
        self.watch = SteeringWatch(
            self.blocker / "token", self.team, [(self.server, self.access)], self.told.append
        )


def test_a_token_that_can_be_made_later_is_used_without_a_restart(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.watch.look()
    watched.watch.look()
    (told,) = watched.told
    assert str(watched.blocker / "token") in told.lost
    assert watched.access.token is None
    watched.blocker.unlink()
    watched.watch.look()
    assert watched.told[1:] == [SteeringSeen("")]
    assert watched.access.token == read_token(watched.blocker / "token")


def test_an_operator_s_own_token_suffices(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.team.tokens = (NamedToken("eve", Role.VIEW, "x" * 24),)
    watched.watch.look()
    assert len(watched.told) == 1
    watched.team.tokens += (NamedToken("ada", Role.OPERATE, "y" * 24),)
    watched.watch.look()
    assert watched.told[1:] == [SteeringSeen("")]


def test_a_service_that_can_listen_nowhere_cannot_be_steered(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.blocker.unlink()
    watched.watch.look()
    assert watched.told == [], "it has not tried to listen yet"
    watched.server.failure = "unix:web.sock: Read-only file system"
    watched.watch.look()
    assert watched.told == [SteeringSeen("unix:web.sock: Read-only file system")]


def test_the_service_buys_nothing_until_its_state_dir_can_be_written(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "s").symlink_to(tmp_path / "disk")  # not mounted yet
    running = Running(tmp_path, listen=f"127.0.0.1:{port}")
    client = make_client(load_site(running.site))

    def get(path: str) -> Any:
        try:
            return client.get(path)
        except ServiceUnreachable:
            return {}

    def warned() -> list[str]:
        return [it["code"] for it in get("/status").get("warnings", [])]

    try:
        eventually("it is said", lambda: "not_steerable" in warned())
        eventually("its job waits for that", lambda: "not_steerable" in get("/status")["jobs_waiting"])
        shown = get("/status")
        assert shown["nodes"]["total"] == 0
        eventually("the history's fault is shown", lambda: get("/status")["journal"]["failure"])
        ready = get("/readyz")
        assert not ready["ok"]
        assert "token" in ready["why"]
        with pytest.raises(NotAllowed, match=r"though the service runs: .*cannot be written"):
            client.post("/pause", {"by": "ada"})
        (tmp_path / "disk").mkdir()
        eventually("it is ready", lambda: get("/readyz").get("ok"))
        eventually("it buys", lambda: get("/status")["nodes"]["total"])
        assert client.post("/pause", {"by": "ada"})["on_record"]
        assert warned() == []
    finally:
        running.end()
    events = [json.loads(line)["event"] for line in running.log.read_text(encoding="utf-8").splitlines()]
    assert events.count("no_token") == 1
    assert events.count("steerable_again") == 1
