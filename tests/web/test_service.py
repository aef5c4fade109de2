"""The running service on its Unix socket and on TCP, and the verbs that use it, on the simulated Flux and cloud."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console
from starlette.requests import Request
from starlette.types import Message

from nodemanager.cli import main, service_client, tables
from nodemanager.cli.service_client import Client, NotAllowed, ServiceUnreachable, make_client
from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.history.store.reader import HistoryReader
from nodemanager.service.outputs import Outputs
from nodemanager.web import thread
from nodemanager.web.api import sse
from nodemanager.web.listen import CannotListen, TcpAddress, UnixSocket, listen, listen_addresses, parse_listen
from nodemanager.web.state.access import Access
from nodemanager.web.state.board import Board
from nodemanager.web.state.token import TokenError, read_or_make_token, read_token
from nodemanager.web.thread import WebServer
from tests.live.instance import eventually, free_port
from tests.paths import ROOT
from tests.web.fleets import TOKEN, a_fleet, a_stand

STOP_S = 10.0


# --- where it listens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("off", None),
        ("unix:/run/web.sock", UnixSocket(Path("/run/web.sock"))),
        ("127.0.0.1:8080", TcpAddress("127.0.0.1", 8080)),
        ("[::1]:8080", TcpAddress("::1", 8080)),
    ],
)
def test_where_a_site_says(text: str, place: object) -> None:
    assert parse_listen(text) == place


def test_a_socket_is_its_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    listening = listen(UnixSocket(path))
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        listening.close()


def test_a_second_service_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    place = UnixSocket(tmp_path / "web.sock")
    first = listen(place)
    with pytest.raises(CannotListen, match="another service"):
        listen(place)
    first.close()
    listen(place).close()


def test_what_a_killed_service_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    # It must not raise.
    listen(UnixSocket(path)).close()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "web.sock"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(CannotListen, match="not a socket"):
        listen(UnixSocket(path))
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_path_too_long_for_a_socket_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="listen = unix:PATH"):
        listen(UnixSocket(tmp_path / ("x" * 120) / "web.sock"))


def test_a_host_that_is_none_is_said() -> None:
    with pytest.raises(CannotListen, match="not a valid host name"):
        listen(TcpAddress("a..b", 80))


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CannotListen, match="in use"):
            listen(TcpAddress("127.0.0.1", taken.getsockname()[1]))


# --- the token --------------------------------------------------------------------------------------------


def test_a_token_is_made_once_for_its_owner_s_eyes(tmp_path: Path) -> None:
    path = tmp_path / "state" / "token"
    made = read_or_make_token(path)
    assert len(made) > 30
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_token(path) == read_token(path) == made


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [(0o644, "secret\n", "chmod 600"), (0o600, "\n", "is empty"), (0o600, "ä\n", "cannot be read")],
)
def test_a_token_that_is_none_is_refused(tmp_path: Path, mode: int, text: str, said: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(TokenError, match=said):
        read_token(path)


# --- the thread and its client ----------------------------------------------------------------------------


@contextmanager
def served(tmp_path: Path, place: UnixSocket | TcpAddress) -> Iterator[Client]:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    stand = a_stand(by_socket=True)
    stand.post(a_fleet(6))
    server = WebServer(place, stand.served)
    server.start()
    assert server.is_listening.wait(STOP_S)
    try:
        yield Client(place, tmp_path / "token")
    finally:
        server.stop(STOP_S)


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_a_client_asks_and_steers(tmp_path: Path, over: str) -> None:
    place = UnixSocket(tmp_path / "web.sock") if over == "unix" else TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place) as client:
        assert client.get("/status")["nodes"]["total"] == 6
        assert client.post("/pause", {"by": "ada"})["on_record"]
        assert client.get("/status")["paused"]["by"] == "ada"
        events = client.get("/events/recent")["events"]
        followed = client.follow(events[0]["number"])
        assert next(followed)["number"] == events[1]["number"]
        followed.close()
        (tmp_path / "token").unlink()
        with pytest.raises(NotAllowed, match="no token found"):
            client.post("/resume", {})


def test_where_no_service_is_the_client_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable, match=r"web\.sock"):
        Client(UnixSocket(tmp_path / "web.sock"), tmp_path / "token").get("/status")


# --- limits on connections --------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "REQUEST_WITHIN_S", 0.05)
    monkeypatch.setattr(thread, "KEEP_ALIVE_S", 600)


@contextmanager
def connected(place: TcpAddress) -> Iterator[socket.socket]:
    with socket.create_connection((place.host, place.port), timeout=STOP_S) as connection:
        yield connection


def is_closed_by_the_other_side(connection: socket.socket) -> bool:
    """Fails by the socket's timeout if it is not."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("says", [b"", b"GET /healthz HTTP/1.1\r\nHost: local"])
def test_a_connection_that_brings_no_request_is_closed(tmp_path: Path, says: bytes) -> None:
    place = TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place), connected(place) as connection:
        connection.sendall(says)
        assert is_closed_by_the_other_side(connection)


@pytest.mark.usefixtures("impatient")
def test_a_second_request_has_no_longer_than_the_first(tmp_path: Path) -> None:
    place = TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place), connected(place) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.sendall(b"GET ")
        assert is_closed_by_the_other_side(connection)


ASKS = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n"
BEARER = f"Authorization: Bearer {TOKEN}\r\n".encode()


def is_answered(connection: socket.socket, headers: bytes = b"") -> bool:
    connection.sendall(ASKS + headers + b"\r\n")
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()  # so that the next answer begins where this one ends
    return answer.status == http.client.OK


@pytest.mark.parametrize("limit", ["CONNECTIONS_MAX", "CONNECTIONS_PER_SOURCE_MAX"])
def test_of_too_many_connections_the_oldest_silent_one_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(thread, limit, 2)
    place = TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place), connected(place) as first, connected(place) as second:
        assert is_answered(first)
        assert is_answered(second)
        with connected(place) as third:
            assert is_closed_by_the_other_side(first)
            assert is_answered(third)
            assert is_answered(second)


def test_whoever_has_the_token_is_served_while_others_open_all_connections_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "CONNECTIONS_MAX", 24)
    monkeypatch.setattr(thread, "CONNECTIONS_PER_SOURCE_MAX", 12)
    place = TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place) as client, connected(place) as kept, ExitStack() as held:
        assert is_answered(kept, BEARER)
        for number in range(100):  # as any user of this machine can
            source = (f"127.0.0.{2 + number % 3}", 0)
            held.enter_context(socket.create_connection((place.host, place.port), STOP_S, source_address=source))
            if number % 20 == 0:
                assert client.post("/pause", {"by": "ada"})["on_record"]
        assert is_answered(kept), "it has shown the token, and is never replaced"


def test_connections_that_all_have_the_token_are_no_more_than_the_process_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "CONNECTIONS_MAX", 1)
    place = TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place), connected(place) as first:
        assert is_answered(first, BEARER)
        with connected(place) as second:
            assert is_closed_by_the_other_side(second)
        assert is_answered(first)


def test_the_life_of_a_connection_is_bounded_unless_it_has_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread, "LIFETIME_S", 2.0)
    place = TcpAddress("127.0.0.1", free_port())
    with served(tmp_path, place), connected(place) as kept:
        assert is_answered(kept, BEARER)
        with connected(place) as stream:  # which itself never ends
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert is_closed_by_the_other_side(stream)
        assert is_answered(kept)


@pytest.mark.parametrize(
    ("one", "other", "is_the_same"),
    [
        ("127.0.0.1", "127.9.8.7", True),
        ("127.0.0.1", "::1", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", True),
        ("2001:db8::1", "2001:db8:1::1", False),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_a_source_is_whoever_can_have_all_of_its_addresses(one: str, other: str, is_the_same: bool) -> None:
    assert (thread.source_of(one) == thread.source_of(other)) is is_the_same


def test_there_are_never_more_streams_than_are_allowed_even_if_all_are_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "STREAMS_MAX", 4)
    streams = sse.EventStreams(Board(), Access(TOKEN, by_socket=False), lambda: True)
    scope = {"type": "http", "method": "GET", "path": "/events", "query_string": b"", "headers": []}

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        del message

    async def story() -> None:
        answers = [await streams.respond(Request(scope)) for _ in range(10)]
        assert [it.status_code for it in answers] == [200] * 4 + [503] * 6
        for it in answers:
            await it(scope, receive, send)
        assert (await streams.respond(Request(scope))).status_code == 200, "those have ended"

    asyncio.run(story())


# --- the owner's socket beside TCP ------------------------------------------------------------------------


@pytest.fixture
def tcp_site(tmp_path: Path) -> Site:
    text = (ROOT / "config" / "embedded.ini").read_text(encoding="utf-8")
    text = text.replace("../state/embedded", str(tmp_path / "s")).replace(":8080", f":{free_port()}")
    text = text.replace("= everybody", "= owner")
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    return load_site(tmp_path / "site.ini")


def test_a_service_on_tcp_has_the_owner_s_socket_too_and_the_verbs_use_it(tcp_site: Site) -> None:
    socket_place, tcp_place = listen_addresses(tcp_site.web.listen, tcp_site.state_dir)
    assert make_client(tcp_site).address == tcp_place, "while there is no socket"
    outputs, stand = Outputs(tcp_site), a_stand()
    outputs.publish(a_fleet(6))
    outputs.start(stand.manager)
    try:
        for server in outputs.servers:
            assert server.is_listening.wait(STOP_S)
        client = make_client(tcp_site)
        assert client.address == socket_place
        assert client.status()["nodes"]["total"] == 6
        over_tcp = Client(tcp_place, tcp_site.state_dir / "no-token")
        assert over_tcp.get("/jobs")["shown"] is False
        assert Client(socket_place, tcp_site.state_dir / "no-token").get("/jobs")["shown"] is True
    finally:
        outputs.stop(STOP_S)


def test_a_simulated_site_started_twice_shows_nothing_of_the_first_run(tcp_site: Site) -> None:
    def run_once() -> None:
        outputs = Outputs(tcp_site)
        outputs.start(a_stand().manager)
        try:
            assert not (tcp_site.state_dir / "journal.sqlite").exists()
            assert not outputs.board.samples()
            outputs.publish(a_fleet(6))
            eventually("the run is on record", (tcp_site.state_dir / "journal.sqlite").exists)
            eventually("the charts have it", lambda: bool(outputs.board.samples()))
        finally:
            outputs.stop(STOP_S)

    run_once()
    run_once()
    earlier = HistoryReader(tcp_site.state_dir / "journal.sqlite.before")
    assert earlier.fleet(0.0, float("inf"), 60.0), "which the second run did not resume"


def test_a_socket_whose_path_would_be_too_long_is_left_out_beside_tcp(tmp_path: Path) -> None:
    tcp = TcpAddress("127.0.0.1", 80)
    assert listen_addresses("127.0.0.1:80", tmp_path / ("x" * 120)) == (tcp,)
    assert listen_addresses("127.0.0.1:80", Path("/s")) == (UnixSocket(Path("/s/web.sock")), tcp)
    assert listen_addresses("off", tmp_path) == ()


# --- the verbs, on a running service ----------------------------------------------------------------------


class Running:
    """The embedded site in a folder of its own, and its verbs."""

    def __init__(self, folder: Path, listen: str = "") -> None:
        self.site = folder / "site.ini"
        text = (ROOT / "config" / "embedded.ini").read_text(encoding="utf-8")
        for written, here in (
            ("../state/embedded", str(folder / "s")),
            ("127.0.0.1:8080", listen or f"unix:{folder}/web.sock"),
            ("properties = large", "properties = large\nspares = 1"),  # so one node always exists
        ):
            assert written in text
            text = text.replace(written, here)
        self.site.write_text(text, encoding="utf-8")
        self.log = folder / "log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "nodemanager", "--config", str(self.site)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(command, stderr=log, env=environment)

    def verb(self, *arguments: str) -> tuple[int, str, str]:
        """Run a verb in this process, which saves a second. Returns its exit status and output."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main.main([*arguments, "--config", str(self.site)])
        return status, out.getvalue(), err.getvalue()

    def command(self, *arguments: str) -> list[str]:
        """The command for a process of its own, to be run in this repository."""
        return [sys.executable, "-m", "nodemanager", *arguments, "--config", str(self.site)]

    def json(self, *arguments: str) -> dict[str, object]:
        status, out, err = self.verb(*arguments, "--json")
        assert status == 0, err
        document: dict[str, object] = json.loads(out)
        return document

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("r"))
    try:
        eventually("a node stands", lambda: '"now": "idle"' in running.log.read_text(encoding="utf-8"))
        eventually("its cost is on record", lambda: "by type" in running.verb("report")[1])
        yield running
    finally:
        running.end()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["status"], "cluster"),
        (["nodes"], "because"),
        (["jobs"], "because"),
        (["explain", "type", "small"], "price"),
        (["plan"], "wanted"),
        (["events"], "decided"),
        (["report", "--since", "1d"], "by type"),
    ],
)
def test_a_verb_answers_as_a_table_and_as_json(running: Running, arguments: list[str], shown: str) -> None:
    status, out, err = running.verb(*arguments)
    assert (status, shown in out) == (0, True), out + err
    if arguments != ["events"]:
        assert running.json(*arguments)


def test_the_history_s_size_and_its_limit_are_in_the_status(running: Running) -> None:
    journal = running.json("status")["journal"]
    assert isinstance(journal, dict)
    assert 0 < journal["size_bytes"] < journal["size_max_bytes"] == 1 << 30
    assert "MiB of 1024 MiB at most" in running.verb("status")[1]


def test_what_the_service_keeps_is_its_owner_s_alone(running: Running) -> None:
    assert stat.S_IMODE((running.site.parent / "s").stat().st_mode) == 0o700


def test_requests_that_are_none_log_nothing_and_every_line_is_json(running: Running) -> None:
    before = len(running.log.read_text(encoding="utf-8").splitlines())
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(running.site.parent / "web.sock"))
            connection.sendall(b"\0 this is no request\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 400"
    lines = running.log.read_text(encoding="utf-8").splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert not any("nvalid" in line for line in lines[before:])


def test_of_a_service_that_hangs_the_verb_soon_says_which_process_it_is(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service_client.STATUS_WITHIN_S == 5.0
    monkeypatch.setattr(service_client, "STATUS_WITHIN_S", 0.2)
    running.process.send_signal(signal.SIGSTOP)
    try:
        status, _, error = running.verb("status")
        status_as_json, _, json_error = running.verb("status", "--json")
    finally:
        running.process.send_signal(signal.SIGCONT)
    assert (status, status_as_json) == (69, 69)
    assert f"(process {running.process.pid}) has not answered within 0.2 s" in error
    assert json.loads(json_error) == {"error": error.strip(), "exit_status": 69}


def test_of_a_manager_that_hangs_in_a_service_that_answers_the_status_says_so(running: Running) -> None:
    document = {**running.json("status"), "stands_still": None, "silent_s": 60.0}
    out = io.StringIO()
    Console(file=out, width=200).print(tables.status(document))
    assert "the manager has hung for 1" in out.getvalue()


def test_errors_are_json_too_if_json_is_asked_for(running: Running, tmp_path: Path) -> None:
    for arguments, expected in (
        (["explain", "node", "nowhere"], 1),
        (["explain"], 2),
        (["status", "--config", str(tmp_path / "none.ini")], 78),
    ):
        err = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(err):
            status = main.main(["--config", str(running.site), *arguments, "--json"])
        fault = json.loads(err.getvalue())
        assert (status, fault["exit_status"]) == (expected, expected)
        assert fault["error"]


def test_a_span_longer_than_the_history_is_refused_in_the_words_of_the_option(running: Running) -> None:
    for span in ("500d", "0s", "infinity"):
        status, _, error = running.verb("report", "--since", span)
        assert (status, "--since: 1s to 400d" in error) == (1, True), error


def test_whoever_reads_no_further_is_no_fault(running: Running) -> None:
    read, write = os.pipe()
    os.close(read)
    for arguments in (["status"], ["events"], ["nodes", "--json"]):
        done = subprocess.run(
            running.command(*arguments), stdout=write, stderr=subprocess.PIPE, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (141, "")
    os.close(write)


def test_a_follower_that_is_interrupted_says_so_by_its_status(running: Running) -> None:
    with subprocess.Popen(
        running.command("events", "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=STOP_S)
    assert (follower.returncode, said) == (130, "")


def test_a_held_node_is_released_again(running: Running) -> None:
    def a_node() -> str:
        nodes = running.json("nodes")["nodes"]
        assert isinstance(nodes, list)
        lasting = [
            node["node"] for node in nodes if node["node_type"] == "large" and node["state"] in ("idle", "busy")
        ]
        return str(lasting[0]) if lasting else ""

    eventually("the large node stands", a_node)
    node = a_node()
    assert running.verb("hold", node)[0] == 0
    explained = running.json("explain", "node", node)["reason"]
    assert isinstance(explained, dict)
    assert explained["code"] in ("held_by_operator", "call_in_flight")
    assert running.verb("release", node)[0] == 0
    assert running.verb("release", node)[0] == 1


def test_a_pause_is_seen_and_ended(running: Running) -> None:
    assert running.verb("pause")[:2] == (0, "paused\n")
    assert running.json("status")["acts"] is False
    assert running.verb("resume")[:2] == (0, "resumed\n")


def test_a_bad_site_is_refused_whole_by_the_verb_and_by_the_signal(running: Running) -> None:
    good = running.site.read_text(encoding="utf-8")
    status, out, _ = running.verb("reload")
    assert (status, out) == (0, f"reloaded {running.site}\n")
    running.site.write_text(good.replace("time_scale = 120", "time_scale = 60"), encoding="utf-8")
    status, _, err = running.verb("reload")
    assert (status, "[Simulation] time_scale" in err) == (1, True)
    running.site.write_text(good.replace("nodes_max = 8", "nodes_max = no"), encoding="utf-8")
    running.process.send_signal(signal.SIGHUP)
    eventually("the log says so", lambda: "reload_refused" in running.log.read_text(encoding="utf-8"))
    running.site.write_text(good.replace("nodes_max = 8", "nodes_max = 7"), encoding="utf-8")
    running.process.send_signal(signal.SIGHUP)

    def limit() -> object:
        limits = running.json("status")["limits"]
        assert isinstance(limits, dict)
        return limits["nodes_max"]

    eventually("the new limit holds", lambda: limit() == 7)
    running.site.write_text(good, encoding="utf-8")


def test_the_shell_gets_the_names_of_nodes_and_jobs(running: Running) -> None:
    nodes = running.json("nodes")["nodes"]
    assert isinstance(nodes, list)
    assert nodes
    assert {node["slot"] for node in nodes} <= set(running.verb("names", "nodes")[1].split())
    assert running.verb("names", "jobs")[0] == 0


def test_what_is_not_there_or_not_asked_rightly_has_its_own_status(running: Running, tmp_path: Path) -> None:
    assert running.verb("hold", "nowhere")[0] == 1
    assert running.verb("explain", "job")[0] == 2
    assert running.verb("explain", "node", "small1", "--at", "never")[0] == 2
    token = running.site.parent / "s" / "token"
    token.rename(token.with_name("away"))
    assert running.verb("pause")[0] == 77
    token.with_name("away").rename(token)
    away = tmp_path / "away.ini"
    away.write_text(
        running.site.read_text(encoding="utf-8").replace(f"{running.site.parent}/web.sock", f"{tmp_path}/x")
    )
    ran = subprocess.run(
        [sys.executable, "-m", "nodemanager", "--config", str(away), "status"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert ran.returncode == 69


def test_a_service_that_was_suspended_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """The kernel gives SIGTERM to any thread that runs again, and the main one may still be waiting."""
    service = Running(tmp_path)
    try:
        eventually("it answers", lambda: service.verb("status")[0] == 0)
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM):
            service.process.send_signal(number)
        assert service.process.wait(20) == 0
    finally:
        service.process.kill()
