"""The parts of the client: its files, its reading of /proc, and the machines it runs on."""

from __future__ import annotations

import ast
import os
import pwd
import shutil
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.join import flux_node_join
from nodemanager.join.flux_node_join import (
    HOSTS_BEGIN,
    HOSTS_END,
    CannotJoin,
    ClientSettings,
    JoinRefused,
    JoinUnreachable,
    LocalMachine,
    flux_toml,
    install_service,
    is_broker_helper,
    is_same_machine,
    is_task,
    job_processes,
    machine_marks,
    quote_unit_word,
    read_settings,
    replace_or_overwrite,
    save_settings,
    with_hosts,
    write_private,
)

SOURCE = Path(flux_node_join.__file__)
OLD_PYTHONS = ("python3.8", "python3.9")

names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
addresses = st.ip_addresses().map(str)
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)


# --- the file itself --------------------------------------------------------------------------------------


def test_the_client_in_bin_is_the_same_file_and_executable() -> None:
    command = SOURCE.parents[2] / "bin" / "flux-node-join"
    assert command.read_text() == SOURCE.read_text()
    assert os.access(command, os.X_OK)


def test_it_is_python_3_8_and_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("python", OLD_PYTHONS)
def test_an_old_python_runs_it(python: str, tmp_path: Path) -> None:
    kept = sorted(Path.home().glob(f".pyenv/versions/*/bin/{python}"))
    found = str(kept[0]) if kept else shutil.which(python)
    if found is None:
        pytest.skip(f"no {python} here")
    ran = subprocess.run([found, SOURCE, tmp_path], capture_output=True, check=False)
    assert ran.returncode == flux_node_join.EXIT_SETTINGS
    assert b"FLUX_NODE_JOIN_* or FOLDER/join.json is needed" in ran.stderr


# --- its files --------------------------------------------------------------------------------------------


@given(st.lists(lines, max_size=5), st.dictionaries(names, addresses), st.dictionaries(names, addresses))
def test_the_hosts_block_is_replaced_and_all_else_is_kept(
    others: list[str], before: dict[str, str], after: dict[str, str]
) -> None:
    foreign = [line for line in others if line not in (HOSTS_BEGIN, HOSTS_END)]
    text = "".join(f"{line}\n" for line in foreign)
    once = with_hosts(with_hosts(text, before), after)
    assert with_hosts(text, after) == once
    assert once.startswith(text)
    block = once[len(text) :].splitlines()
    assert [tuple(line.split("\t")) for line in block[1:-1]] == [(after[name], name) for name in sorted(after)]
    assert with_hosts(once, {}) == text


def test_an_invalid_hosts_line_is_left_out() -> None:
    assert "evil" not in with_hosts("", {"good": "10.0.0.1", "evil\n6.6.6.6 bank": "10.0.0.2", "x": "evil"})


def test_a_hosts_file_keeps_its_mode_and_a_private_one_is_private(tmp_path: Path) -> None:
    hosts, secret = tmp_path / "hosts", tmp_path / "secret"
    hosts.write_text("")
    hosts.chmod(0o644)
    replace_or_overwrite(hosts, "127.0.0.1 localhost\n")
    write_private(secret, "x")
    assert [stat.S_IMODE(file.stat().st_mode) for file in (hosts, secret)] == [0o644, 0o600]


def test_the_configuration_is_toml_whatever_the_table_holds() -> None:
    table = {"hosts": [{"host": 'a"b\\c\x7f', "bind": "tcp://*:1"}, {"host": "é[1-2]"}], "enable_ipv6": True}
    read = tomllib.loads(flux_toml(table, "/x y/curve.cert"))
    assert read["bootstrap"] == {**table, "curve_cert": "/x y/curve.cert"}
    assert read["resource"] == {"noverify": True}


# --- the kernel's process table ---------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[subprocess.Popen[bytes]]:
    """A process with two children, one of which has a child itself. It plays the broker."""
    script = "sleep 600 & sh -c 'sleep 600; true' & wait"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, 9)


def test_a_brokers_children_are_jobs_but_not_their_children(broker: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 20
    while len(job_processes(broker.pid, "")[0]) < 2:
        assert time.monotonic() < deadline_s
    assert job_processes(os.getppid(), "/nowhere")[1] == []


@pytest.mark.parametrize(
    "command",
    [
        b"/opt/flux/libexec/flux/cmd/flux-run-housekeeping\0",
        b"sh\0/etc/flux/system/housekeeping\0",
        b"/opt/flux/libexec/flux/cmd/flux-module-exec\0heartbeat\0",
    ],
)
def test_a_broker_helper_is_no_job(command: bytes) -> None:
    assert is_broker_helper(command)


def test_a_job_shell_is_no_broker_helper() -> None:
    assert not is_broker_helper(b"/opt/flux/libexec/flux/flux-shell\093264543744\0")


def test_a_task_is_known_by_what_its_shell_gave_it() -> None:
    environ = b"PATH=/bin\0FLUX_URI=local:///run/r/local\0FLUX_TASK_RANK=0\0"
    assert is_task(environ, "/run/r")
    assert not is_task(environ, "/run/other")
    assert not is_task(b"FLUX_URI=local:///run/r/local\0", "/run/r")  # a user's shell, or housekeeping


# --- systemd ----------------------------------------------------------------------------------------------


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "flux-node-join.service"
    python = tmp_path / "a python %n"
    python.symlink_to("/bin/sh")
    words = {"python": str(python), "program": str(SOURCE), "folder": '/a "$HOME" \\ %n'}
    unit.write_text(flux_node_join.UNIT.format(**{name: quote_unit_word(word) for name, word in words.items()}))
    ran = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert str(unit) not in ran.stderr, ran.stderr
    assert "not executable" not in ran.stderr, ran.stderr


SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
[ "$1" != "$(cat "$(dirname "$0")/refuses" 2>/dev/null)" ]
"""


def settings_in(folder: Path, **values: str) -> ClientSettings:
    return ClientSettings(
        {
            "LAUNCH": "cloud1-1",
            "TICKET": "t",
            "ADDRESSES": "",
            "FINGERPRINT": "",
            "DIR": str(folder),
            "HOSTS": str(folder / "hosts"),
            "POWEROFF": "true",
            "SILENCE_MAX_S": "3600",
            "SYSTEMD": "yes",
            **values,
        }
    )


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a fake systemctl that records its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "systemctl").write_text(SYSTEMCTL)
    (folder / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_systemd_runs_the_client_where_there_is_one(tmp_path: Path, systemctl: Path) -> None:
    unit = tmp_path / "flux-node-join.service"
    assert install_service(settings_in(tmp_path), unit, str(systemctl))
    assert (systemctl / "asked").read_text().splitlines() == [
        "daemon-reload",
        "enable flux-node-join.service",
        "restart flux-node-join.service",
    ]
    assert f'ExecStart="{sys.executable}" "{tmp_path}/flux-node-join" "{tmp_path}"\n' in unit.read_text()
    assert (tmp_path / "flux-node-join").read_text() == SOURCE.read_text()


def test_without_a_systemd_that_does_it_the_client_runs_itself(tmp_path: Path, systemctl: Path) -> None:
    unit = tmp_path / "flux-node-join.service"
    assert not install_service(settings_in(tmp_path), unit, str(tmp_path / "no systemd"))
    assert not install_service(settings_in(tmp_path, SYSTEMD="no"), unit, str(systemctl))
    assert not (systemctl / "asked").exists()
    (systemctl / "refuses").write_text("enable")
    assert not install_service(settings_in(tmp_path), unit, str(systemctl))


# --- whether this machine can join at all -----------------------------------------------------------------


def test_another_owner_of_the_instance_is_explained(tmp_path: Path, systemctl: Path) -> None:
    (systemctl / "flux").write_text("#!/bin/sh\necho commands: 0.88.0\n")
    (systemctl / "flux").chmod(0o755)
    machine = LocalMachine(settings_in(tmp_path))
    machine.check({"flux_version": "0.88.0", "owner_uid": os.getuid()})
    with pytest.raises(CannotJoin, match=r"rank 0 belongs to uid 4242.*set \[Join\] node_user"):
        machine.check({"flux_version": "0.88.0", "owner_uid": 4242})
    nobody = LocalMachine(settings_in(tmp_path, USER="nobody-of-this-name"))
    with pytest.raises(CannotJoin, match="no user nobody-of-this-name"):
        nobody.check({"flux_version": "0.88.0", "owner_uid": 4242})


def test_an_image_without_flux_is_explained(tmp_path: Path) -> None:
    machine = LocalMachine(settings_in(tmp_path, FLUX=str(tmp_path / "no flux")))
    with pytest.raises(CannotJoin, match="install flux-core in the image"):
        machine.check({"flux_version": "0.88.0", "owner_uid": os.getuid()})


def test_what_another_launch_left_on_the_disk_is_not_ours(tmp_path: Path) -> None:
    """The image was made from a node that had joined."""
    LocalMachine(settings_in(tmp_path)).save({"nonce": "n", "lease_key": "k"})
    assert LocalMachine(settings_in(tmp_path)).load()["lease_key"] == "k"
    assert LocalMachine(settings_in(tmp_path, LAUNCH="cloud1-2")).load() == {}


HERE = {"hypervisor": "a", "provider": "i-1", "system": "s"}


@pytest.mark.parametrize(
    ("there", "is_same"),
    [
        (HERE, True),
        ({**HERE, "hypervisor": "b"}, False),
        (
            {**HERE, "system": "t"},
            True,
        ),  # the system's id may change at each boot
        ({"provider": "i-2", "system": "s"}, False),
        ({"system": "t"}, False),
        ({}, True),
    ],
)
def test_machines_are_compared_by_the_most_reliable_common_id(there: dict[str, str], is_same: bool) -> None:
    assert is_same_machine(HERE, there) is is_same
    assert is_same_machine(there, HERE) is is_same


def test_marks_are_read_where_there_are_any(tmp_path: Path) -> None:
    assert machine_marks(tmp_path) == {}
    for name in ("hypervisor", "provider", "system"):
        mark = tmp_path / dict(flux_node_join.MARKS)[name][1:]
        mark.parent.mkdir(parents=True)
        mark.write_text(f" {name}\n")
    assert machine_marks(tmp_path) == {name: name for name in HERE}


def test_what_a_copied_disk_brings_along_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine starts from a copy of a running node's disk, and runs the unit on it."""
    for name, value in settings_in(tmp_path).values.items():
        monkeypatch.setenv(f"FLUX_NODE_JOIN_{name}", value)
    monkeypatch.setattr(flux_node_join, "machine_marks", lambda: HERE)
    save_settings(read_settings([]))
    LocalMachine(read_settings([])).save({"nonce": "n", "lease_key": "k"})
    true_node = LocalMachine(read_settings([str(tmp_path)]))  # after a reboot
    assert (true_node.load()["lease_key"], true_node.is_a_copy()) == ("k", False)
    monkeypatch.setattr(flux_node_join, "machine_marks", lambda: {**HERE, "hypervisor": "another"})
    copy = LocalMachine(read_settings([str(tmp_path)]))
    assert (copy.load(), copy.is_a_copy()) == ({}, True)
    new = LocalMachine(read_settings([]))  # with its own user-data it is a node of its own
    assert (new.load(), new.is_a_copy()) == ({}, False)


def test_a_node_that_cannot_keep_anything_ends_its_cost(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    off = tmp_path / "off"
    values = settings_in(tmp_path / "file" / "node", SILENCE_MAX_S="0", POWEROFF=f"touch {off}").values
    environment = {f"FLUX_NODE_JOIN_{name}": value for name, value in values.items()}
    ran = subprocess.run([sys.executable, SOURCE], env=environment, capture_output=True, text=True, check=False)
    assert "Not a directory; this node does not join" in ran.stderr
    assert off.exists()


FOLLOWER = """#!/bin/sh
echo "$(id -u) $HOME $FLUX_NODE_JOIN_TICKET$FLUX_URI"
cat "$2"/flux.toml "$(sed -n 's/curve_cert = "\\(.*\\)"/\\1/p' "$2/flux.toml")"
: > "$3/socket"
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a broker as somebody else")
def test_the_broker_runs_as_the_instances_owner_who_reads_what_it_needs_and_none_of_our_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner = pwd.getpwnam("nobody")
    monkeypatch.setenv("FLUX_NODE_JOIN_TICKET", "the ticket")
    with tempfile.TemporaryDirectory(prefix="fnm-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        (folder / "flux").write_text(FOLLOWER)
        (folder / "flux").chmod(0o755)
        (folder / "node").mkdir(mode=0o700)
        machine = LocalMachine(settings_in(folder / "node", FLUX=str(folder / "flux"), USER="nobody"))
        assert machine.broker_user()[0] == owner.pw_uid
        command = ["{flux}", "broker", "{conf}", "{rundir}"]
        machine.start_broker({"bootstrap": {"hosts": []}, "curve_cert": "a certificate", "command": command})
        assert machine.broker is not None
        assert machine.broker.wait(20) == 0, machine.broker_tail()
        said = machine.broker_tail()
        assert said.startswith(f"{owner.pw_uid} {owner.pw_dir} \n")
        assert said.endswith("a certificate")
        assert machine.broker_status() == "status 0"


def as_nobody() -> None:
    owner = pwd.getpwnam("nobody")
    os.setgid(owner.pw_gid)
    os.setuid(owner.pw_uid)


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a broker as somebody else")
def test_a_job_of_the_brokers_user_gets_nothing_of_roots_by_links_where_root_writes() -> None:
    """The job kills its broker, and root restarts it. Root takes back folders that an earlier client gave away."""
    with tempfile.TemporaryDirectory(prefix="fnm-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        roots = folder / "roots"
        roots.write_text("a secret of root's")
        roots.chmod(0o600)
        node = folder / "node"
        (node / "conf.d").mkdir(parents=True)
        owner = pwd.getpwnam("nobody").pw_uid
        links = [node / "broker.log", node / "curve.cert.flux-node-join", node / "conf.d/flux.toml.flux-node-join"]
        for path in (node, node / "conf.d"):
            os.chown(path, owner, -1)
        for link in links:
            subprocess.run(["ln", "-s", roots, link], preexec_fn=as_nobody, check=True)
        machine = LocalMachine(settings_in(node, FLUX="/bin/true", USER="nobody"))
        given = {"bootstrap": {"hosts": []}, "curve_cert": "a certificate", "command": ["{flux}"]}
        for _ in range(2):
            machine.start_broker(given)
            assert machine.broker is not None
            machine.broker.wait(20)
        assert (roots.stat().st_uid, roots.read_text()) == (0, "a secret of root's")
        written = (node / "curve.cert", node / "conf.d" / "flux.toml")
        assert [stat.S_IMODE(file.lstat().st_mode) for file in written] == [0o600, 0o600]
        assert [file.lstat().st_uid for file in written] == [owner, owner]
        for taken in (node, node / "conf.d"):
            assert subprocess.run(["touch", taken / "x"], preexec_fn=as_nobody, check=False).returncode != 0


@pytest.mark.parametrize("guests", [False, True])
def test_guests_reach_the_socket_of_a_broker_only_if_the_instance_admits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, guests: bool
) -> None:
    own_tmp = tmp_path / "tmp"
    own_tmp.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(own_tmp))
    (tmp_path / "node").mkdir()
    machine = LocalMachine(settings_in(tmp_path / "node", FLUX="/bin/true", IMP="/an/imp" if guests else ""))
    machine.start_broker({"bootstrap": {"hosts": []}, "curve_cert": "a certificate", "command": ["{flux}"]})
    modes = [oct(stat.S_IMODE(path.stat().st_mode)) for path in (own_tmp, Path(machine.rundir))]
    assert modes == (["0o711", "0o755"] if guests else ["0o700", "0o700"])
    machine.stop_broker()


def test_a_node_that_cannot_start_guests_jobs_does_not_join_and_says_what_its_image_lacks(tmp_path: Path) -> None:
    imp = tmp_path / "flux-imp"
    machine = LocalMachine(settings_in(tmp_path, IMP=str(imp)))
    with pytest.raises(CannotJoin, match="install flux-security"):
        machine.check_imp(str(imp))
    imp.touch(mode=0o755)
    with pytest.raises(CannotJoin, match="not setuid root"):
        machine.check_imp(str(imp))


def test_the_imp_is_looked_for_before_the_broker_is_started(tmp_path: Path) -> None:
    flux = tmp_path / "flux"
    flux.write_text("#!/bin/sh\necho flux 0.88.0\n")
    flux.chmod(0o755)
    given = {"flux_version": "0.88.0", "owner_uid": os.getuid()}
    LocalMachine(settings_in(tmp_path, FLUX=str(flux))).check(given)
    with pytest.raises(CannotJoin, match="admits guests"):
        LocalMachine(settings_in(tmp_path, FLUX=str(flux), IMP=str(tmp_path / "imp"))).check(given)


# --- its connection ---------------------------------------------------------------------------------------


class Door:
    """Stands in for the connection: answers, or fails as one that the service has closed meanwhile."""

    opened: ClassVar[list[str]] = []

    def __init__(self, address: str, fingerprint: str) -> None:
        del fingerprint
        self.address = address
        self.is_closed = False
        self.opened.append(address)

    def close(self) -> None:
        self.is_closed = True


def test_requests_share_a_connection_until_it_hangs_up_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Door] = []

    def post_over(door: Door, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del body
        used.append(door)
        if path == "/v1/renew":
            raise ConnectionResetError("closed")
        if path == "/v1/report":
            raise JoinRefused("too_many")
        return {}

    monkeypatch.setattr(flux_node_join, "PinnedConnection", Door)
    monkeypatch.setattr(flux_node_join, "post_over", post_over)
    monkeypatch.setattr(Door, "opened", [])
    machine = LocalMachine(settings_in(tmp_path, ADDRESSES="a:1 b:1"))
    machine.ask("redeem", {})
    machine.ask("fetch", {})
    assert len(Door.opened) == 1
    machine.hang_up()
    assert used[0].is_closed
    machine.ask("fetch", {})
    with pytest.raises(JoinUnreachable):
        machine.ask("renew", {})
    assert Door.opened == ["a:1"] * 3 + ["b:1"], "the connection that was kept, a new one, the next address"
    with pytest.raises(JoinRefused):
        machine.ask("report", {})
    assert all(door.is_closed for door in used), "a refusal ends its connection too"
    machine.ask("fetch", {})
    assert len(Door.opened) == 6


@pytest.mark.parametrize("closed", [ConnectionResetError("reset"), ssl.SSLEOFError("EOF"), RemoteDisconnected("")])
def test_a_kept_connection_that_the_service_has_closed_costs_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: Exception
) -> None:
    """The service closes a connection that was silent for some seconds: so long a node may look at itself."""
    used: list[Door] = []

    def post_over(door: Door, path: str, body: dict[str, Any]) -> dict[str, Any]:
        used.append(door)
        if used.count(door) > 1:
            raise closed
        return {"said": path, **body}

    monkeypatch.setattr(flux_node_join, "PinnedConnection", Door)
    monkeypatch.setattr(flux_node_join, "post_over", post_over)
    monkeypatch.setattr(Door, "opened", [])
    machine = LocalMachine(settings_in(tmp_path, ADDRESSES="a:1"))
    machine.ask("redeem", {})
    assert machine.ask("report", {"phase": "measured"}) == {"said": "/v1/report", "phase": "measured"}
    assert used[0].is_closed
    assert Door.opened == ["a:1", "a:1"]


def test_a_request_that_took_too_long_is_not_sent_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Door] = []

    def post_over(door: Door, path: str, body: dict[str, Any]) -> dict[str, Any]:
        del path, body
        used.append(door)
        if len(used) > 1:
            raise TimeoutError("timed out")
        return {}

    monkeypatch.setattr(flux_node_join, "PinnedConnection", Door)
    monkeypatch.setattr(flux_node_join, "post_over", post_over)
    machine = LocalMachine(settings_in(tmp_path, ADDRESSES="a:1"))
    machine.ask("redeem", {})
    with pytest.raises(JoinUnreachable):
        machine.ask("report", {})
    assert len(used) == 2
