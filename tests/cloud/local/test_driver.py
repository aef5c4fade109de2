"""The local cloud itself: its processes, folders and locks, beyond the port's contract."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from libcloud.common.exceptions import BaseHTTPError
from libcloud.compute.base import Node, NodeImage, NodeSize
from libcloud.compute.types import NodeState

from nodemanager.cloud.common import files
from nodemanager.cloud.common.request import PortSettings
from nodemanager.cloud.local import port
from nodemanager.cloud.local import port as local_driver
from nodemanager.cloud.local.faults import Faults
from nodemanager.cloud.local.port import CreateRequest, LocalCloud, LocalNodeDriver
from nodemanager.cloud.local.process import marked_pids, start
from nodemanager.core.nodes import FailureKind
from nodemanager.core.ports import CloudError
from tests.contract.cloud_subjects import SystemClock, a_launch, a_type, reap, until

SLEEPER = "#!/bin/sh\nexec sleep 3600\n"
THE_SAME = "the-same"
AN_ORDER = CreateRequest("node", "small", "image", THE_SAME, {})


class World:
    """One directory of nodes, a clock that a test sets, and any number of drivers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_at = 1_000_000.0

    def driver(self, faults: Faults | None = None, *, keep_logs: bool = False) -> LocalNodeDriver:
        return LocalNodeDriver(self.directory, wall_at=lambda: self.now_at, faults=faults, keep_logs=keep_logs)

    def disturb(self, text: str) -> None:
        (self.directory / "faults.json").write_text(text, encoding="utf-8")

    def folder(self, node: Node) -> Path:
        return self.directory / "nodes" / str(node.id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "cloud")
    try:
        yield world
    finally:
        reap(world.directory)


def boot(driver: LocalNodeDriver, script: str = SLEEPER, *, token: str = "") -> Node:
    size = NodeSize("small", "small", 1024, 0, 0, 0.0, driver)
    image = NodeImage("image", "image", driver)
    return driver.create_node("node", size, image, ex_userdata=script, ex_clienttoken=token)


def boot_and_run(driver: LocalNodeDriver, script: str, line: str = "ready") -> Node:
    """Create a node and wait until its script has printed its line."""
    node = boot(driver, script)
    until(lambda: line in driver.ex_console_output(node), f"{line!r} on the console of {node.id}")
    return node


def listed(driver: LocalNodeDriver, node: Node) -> Node:
    return next(each for each in driver.list_nodes() if each.id == node.id)


def cause(node: Node) -> str:
    return str(node.extra["state_reason"]["code"])


class TestUserData:
    def test_runs_in_its_own_folder_with_a_clean_environment(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "for the manager only")
        driver = world.driver()
        node = boot_and_run(
            driver, f"#!{sys.executable}\nimport os\nprint(dict(os.environ), os.getcwd(), 'ready')\n"
        )
        console = driver.ex_console_output(node)
        names = {name for name in ("PATH", "HOME", "TMPDIR", "FNM_NODE") if f"'{name}'" in console}
        assert names == {"PATH", "HOME", "TMPDIR", "FNM_NODE"}
        assert "SECRET" not in console
        assert console.count("': '") - console.count("'LC_CTYPE': '") == len(names)
        assert f"{world.folder(node) / 'root'} ready" in console

    def test_is_for_the_owner_only(self, world: World) -> None:
        node = boot(world.driver())
        assert (world.folder(node) / "user-data").stat().st_mode & 0o777 == 0o700
        assert (world.directory / "nodes").stat().st_mode & 0o077 == 0

    def test_ignores_no_signal(self, world: World) -> None:
        # All jobs would inherit an ignored SIGINT from the broker.
        driver = world.driver()
        node = boot_and_run(driver, "#!/bin/sh\ngrep SigIgn /proc/self/status; echo ready\n")
        ignored = int(driver.ex_console_output(node).split()[1], 16)
        # The C library reserves some signals above 31.
        assert ignored & 0x7FFFFFFF == 0

    def test_that_ends_leaves_the_node_running(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver, "#!/bin/sh\nexit 3\n")
        exit_file = world.folder(node) / "user-data.exit"
        until(lambda: exit_file.exists() and exit_file.read_text() == "3\n", "the script's exit status")
        assert listed(driver, node).state == NodeState.RUNNING

    def test_that_cannot_run_leaves_the_node_running_and_says_so(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver, "#!/no/such/interpreter\n")
        until((world.folder(node) / "user-data.exit").exists, "the script's exit status")
        assert listed(driver, node).state == NodeState.RUNNING
        assert driver.ex_console_output(node)

    def test_beyond_what_providers_take_is_refused_before_the_call(self, tmp_path: Path) -> None:
        cloud = LocalCloud(tmp_path, PortSettings("ada", "uuid", lambda _, __: "#" * 16_385, SystemClock()))
        with pytest.raises(CloudError, match="16385 bytes") as failed:
            cloud.create(a_launch(), a_type())
        assert failed.value.kind is FailureKind.CONFIG


class TestOutlivingTheManager:
    def test_another_process_sees_the_same_nodes_with_the_same_pids(self, world: World) -> None:
        made = subprocess.run(
            [sys.executable, "-c", MAKE_AND_DIE, str(world.directory)], capture_output=True, text=True, check=True
        )
        node_id, pid = made.stdout.split()
        driver = world.driver()
        (node,) = driver.list_nodes()
        assert (node.id, str(node.extra["pid"])) == (node_id, pid)
        until(lambda: listed(driver, node).state == NodeState.RUNNING, "a running node")
        driver.destroy_node(node)
        assert listed(driver, node).state == NodeState.TERMINATED

    def test_node_whose_maker_died_before_it_noted_the_process_is_found_again(self, world: World) -> None:
        driver = world.driver()
        record = driver.store.add(1, AN_ORDER, SLEEPER, world.now_at)
        init = start(driver.store.init, driver.store.folder(record.id), record.id, 0.0, "boot")
        until(lambda: driver.list_nodes()[0].extra["pid"] == init.pid, "the adoption of the process")
        world.now_at += 31
        until(lambda: driver.list_nodes()[0].state == NodeState.RUNNING, "a running node")

    def test_node_whose_maker_died_before_any_process_is_a_host_failure_after_30_s(self, world: World) -> None:
        driver = world.driver()
        driver.store.add(1, AN_ORDER, SLEEPER, world.now_at)
        assert driver.list_nodes()[0].state == NodeState.PENDING
        world.now_at += 31
        (node,) = driver.list_nodes()
        assert (node.state, cause(node)) == (NodeState.TERMINATED, local_driver.HOST_FAILURE)

    def test_end_that_was_begun_is_finished_by_the_next_one_to_look(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        (record,) = driver.store.read_all()
        driver.store.save(replace(record, ending=local_driver.USER_SHUTDOWN))
        assert listed(world.driver(), node).state == NodeState.TERMINATED
        assert marked_pids(frozenset([record.id])) == frozenset()

    def test_half_made_folder_is_no_node(self, world: World) -> None:
        driver = world.driver()
        (world.directory / "making" / "local-000001-half").mkdir()
        assert driver.list_nodes() == []


MAKE_AND_DIE = f"""
import os, sys
from pathlib import Path
from libcloud.compute.base import NodeImage, NodeSize
from nodemanager.cloud.local.port import LocalNodeDriver
driver = LocalNodeDriver(Path(sys.argv[1]))
size, image = NodeSize("s", "s", 0, 0, 0, 0.0, driver), NodeImage("i", "i", driver)
node = driver.create_node("node", size, image, ex_userdata={SLEEPER!r})
print(node.id, node.extra["pid"], flush=True)
os._exit(0)
"""


class TestDeath:
    def test_of_the_init_alone_takes_the_whole_node_along(self, world: World) -> None:
        driver = world.driver()
        node = boot_and_run(driver, "#!/bin/sh\nsetsid sleep 3600 &\necho ready\nsleep 3600\n")
        os.kill(node.extra["pid"], signal.SIGKILL)
        until(lambda: listed(driver, node).state == NodeState.TERMINATED, "the death to show")
        assert cause(listed(driver, node)) == local_driver.HOST_FAILURE
        assert marked_pids(frozenset([str(node.id)])) == frozenset()

    def test_leaves_no_zombie(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        os.kill(node.extra["pid"], signal.SIGKILL)
        until(lambda: listed(driver, node).state == NodeState.TERMINATED, "the death to show")
        assert not Path(f"/proc/{node.extra['pid']}").exists()

    def test_zombie_of_another_process_is_dead(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        # An ended child that nobody has reaped.
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        (record,) = driver.store.read_all()
        assert record.init is not None
        tick = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        driver.store.save(replace(record, init=replace(record.init, pid=child.pid, start_tick=tick)))
        assert listed(driver, node).state == NodeState.TERMINATED
        child.wait()

    def test_is_not_hidden_by_another_process_with_the_same_pid(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        (record,) = driver.store.read_all()
        assert record.init is not None
        bystander = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        try:
            before = replace(record.init, pid=bystander.pid, start_tick=record.init.start_tick - 1)
            driver.store.save(replace(record, init=before))
            assert listed(driver, node).state == NodeState.TERMINATED
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_by_reboot_of_the_machine_is_death(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        (record,) = driver.store.read_all()
        assert record.init is not None
        driver.store.save(replace(record, init=replace(record.init, boot_id="the one before")))
        assert listed(driver, node).state == NodeState.TERMINATED


# Each prints "ready" and the pid of a process that tries to outlive its node.
ESCAPES = {
    "grandchild": "(sleep 3600 & echo ready $!) &",
    "deaf": "trap '' TERM INT HUP; sleep 3600 & echo ready $!",
    "other session": f"""{sys.executable} -c '
import os
os.setsid()
print("ready", os.getpid(), flush=True)
os.execv("/bin/sleep", ["sleep", "3600"])' &""",
    "other group, empty environment": f"""env -i {sys.executable} -c '
import os
os.setpgid(0, 0)
print("ready", os.getpid(), flush=True)
os.execve("/bin/sleep", ["sleep", "3600"], dict())' &""",
}


class TestDestroy:
    @pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
    def test_reaches_whatever_the_node_started(self, world: World, escape: str) -> None:
        driver = world.driver()
        node = boot_and_run(driver, f"#!/bin/sh\n{escape}\nsleep 3600\n")
        escaped = int(driver.ex_console_output(node).split()[1])
        assert not gone(escaped)
        driver.destroy_node(node)
        ended = listed(driver, node)
        assert (ended.state, cause(ended)) == (NodeState.TERMINATED, local_driver.USER_SHUTDOWN)
        assert gone(escaped)

    def test_of_one_that_died_leaves_its_cause(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        os.kill(node.extra["pid"], signal.SIGKILL)
        until(lambda: listed(driver, node).state == NodeState.TERMINATED, "the death to show")
        driver.destroy_node(node)
        assert cause(listed(driver, node)) == local_driver.HOST_FAILURE

    @pytest.mark.parametrize("ended_by", ["us", "itself"])
    def test_takes_along_what_the_node_left_in_its_own_tmp(self, world: World, ended_by: str) -> None:
        driver = world.driver()
        node = boot_and_run(
            driver, '#!/bin/sh\necho > "$TMPDIR/socket"\necho "in $TMPDIR" ready\nexec sleep 3600\n'
        )
        tmp = Path(driver.ex_console_output(node).split()[1])
        assert len(str(tmp)) < 40  # a longer path would make a socket's path too long
        assert tmp.stat().st_mode & 0o777 == 0o700
        if ended_by == "us":
            driver.destroy_node(node)
        else:
            os.kill(node.extra["pid"], signal.SIGKILL)
            until(lambda: listed(driver, node).state == NodeState.TERMINATED, "the death to show")
        assert not tmp.exists()

    def test_of_several_at_once(self, world: World) -> None:
        driver = world.driver()
        nodes = [boot(driver) for _ in range(4)]
        driver.ex_destroy_nodes(nodes[:3])
        states = [node.state for node in driver.list_nodes()]
        assert states[:3] == [NodeState.TERMINATED] * 3
        assert states[3] != NodeState.TERMINATED

    def test_touches_no_node_of_another_directory(self, world: World, tmp_path: Path) -> None:
        elsewhere = World(tmp_path / "elsewhere")
        try:
            kept, ended = boot(elsewhere.driver()), boot(world.driver())
            world.driver().destroy_node(ended)
            assert listed(elsewhere.driver(), kept).state != NodeState.TERMINATED
        finally:
            reap(elsewhere.directory)


def gone(pid: int) -> bool:
    """Return whether the process is gone, or a zombie of another parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class TestForgetting:
    def test_terminated_node_is_listed_for_its_time_to_live(self, world: World) -> None:
        driver = world.driver()
        node = boot(driver)
        driver.destroy_node(node)
        world.now_at += 60
        assert [each.id for each in driver.list_nodes()] == [node.id]
        world.now_at += 1
        assert driver.list_nodes() == []
        assert not world.folder(node).exists()
        assert list((world.directory / "making").iterdir()) == []

    def test_logs_are_kept_where_that_was_asked_for(self, world: World) -> None:
        driver = world.driver(keep_logs=True)
        node = boot_and_run(driver, "#!/bin/sh\necho ready\n")
        driver.destroy_node(node)
        world.now_at += 61
        assert driver.list_nodes() == []
        assert (world.directory / "logs" / str(node.id) / "console.log").read_text() == "ready\n"

    def test_token_is_forgotten_with_its_node(self, world: World) -> None:
        driver = world.driver()
        first = boot(driver, token=THE_SAME)
        driver.destroy_node(first)
        assert boot(driver, token=THE_SAME).id == first.id
        world.now_at += 61
        assert boot(driver, token=THE_SAME).id != first.id

    def test_nodes_without_token_are_never_taken_for_one_another(self, world: World) -> None:
        driver = world.driver()
        assert boot(driver).id != boot(driver).id


class TestFaults:
    def test_boot_delay_keeps_a_node_pending(self, world: World) -> None:
        driver = world.driver(Faults(boot_delay_s=3600))
        node = boot(driver)
        assert node.state == NodeState.PENDING
        assert listed(driver, node).state == NodeState.PENDING

    def test_failed_boot_ends_the_node(self, world: World) -> None:
        driver = world.driver(Faults(p_boot_fail=1.0))
        node = boot(driver)
        until(lambda: listed(driver, node).state == NodeState.TERMINATED, "the boot to fail")
        assert cause(listed(driver, node)) == local_driver.BOOT_FAILURE

    def test_hung_boot_runs_without_its_user_data(self, world: World) -> None:
        driver = world.driver(Faults(p_boot_hang=1.0))
        node = boot(driver, "#!/bin/sh\ntouch ran\n")
        until(lambda: listed(driver, node).state == NodeState.RUNNING, "a running node")
        assert list((world.folder(node) / "root").iterdir()) == []

    def test_file_is_read_at_each_call_and_wins(self, world: World) -> None:
        driver = world.driver(Faults(nodes_max=5))
        boot(driver)
        world.disturb('{"nodes_max": 1}')
        with pytest.raises(BaseHTTPError, match="InsufficientInstanceCapacity"):
            boot(driver)
        world.disturb('{"quota_max": 1}')
        with pytest.raises(BaseHTTPError, match="InstanceLimitExceeded"):
            boot(driver)
        world.disturb("")
        boot(driver)

    def test_dead_nodes_take_no_room(self, world: World) -> None:
        driver = world.driver(Faults(nodes_max=1))
        driver.destroy_node(boot(driver))
        # It must not raise.
        boot(driver)

    def test_countdown_in_the_file_is_counted_over_all_drivers(self, world: World) -> None:
        drivers = (world.driver(), world.driver())
        world.disturb('{"lost_reply": 2, "p_boot_hang": 0.0}')
        for driver in drivers:
            with pytest.raises(ConnectionError):
                boot(driver)
        boot(world.driver())
        assert json.loads((world.directory / "faults.json").read_text()) == {"lost_reply": 0, "p_boot_hang": 0.0}
        assert len(world.driver().list_nodes()) == 3

    def test_countdown_on_the_driver_is_its_own(self, world: World) -> None:
        driver = world.driver(Faults(throttle=1))
        world.driver().list_nodes()
        with pytest.raises(BaseHTTPError, match="RequestLimitExceeded") as refused:
            driver.list_nodes()
        assert (refused.value.code, refused.value.headers) == (503, {"retry-after": "1"})
        assert driver.list_nodes() == []

    def test_latency_holds_up_the_caller_and_nobody_else(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow, other = world.driver(Faults(api_latency_s=7.0)), world.driver()
        waits: list[tuple[float, list[Node]]] = []
        monkeypatch.setattr(time, "sleep", lambda wait_s: waits.append((wait_s, other.list_nodes())))
        slow.list_nodes()
        assert waits == [(7.0, [])]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "faults.json"),
            ("[]", "faults.json"),
            ('{"lost_reply": -1}', "lost_reply"),
            ('{"p_boot_fail": 2}', "p_boot_fail"),
            ('{"nodes_max": "many"}', "nodes_max"),
            ('{"lost_replys": 1}', "the known ones are boot_delay_s, p_boot_fail"),
        ],
    )
    def test_invalid_faults_file_is_reported(self, world: World, text: str, message: str) -> None:
        driver = world.driver()
        world.disturb(text)
        with pytest.raises(BaseHTTPError, match="InvalidParameterValue") as refused:
            driver.list_nodes()
        assert message in str(refused.value)

    def test_full_disk_is_out_of_capacity(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_room(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        driver = world.driver()
        monkeypatch.setattr(port, "replace_file", no_room)
        with pytest.raises(BaseHTTPError, match=r"InsufficientInstanceCapacity.*No space left"):
            boot(driver)
        assert driver.list_nodes() == []

    def test_machine_without_room_for_a_process_is_out_of_capacity(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(*_: object) -> None:
            raise BlockingIOError("Resource temporarily unavailable")

        driver = world.driver()
        monkeypatch.setattr(local_driver, "start", no_room)
        with pytest.raises(BaseHTTPError, match="InsufficientInstanceCapacity"):
            boot(driver)
        assert driver.list_nodes() == []


Spoil = Callable[[Path], object]


def spoil_by(text: str) -> Spoil:
    return lambda folder: (folder / "node.json").write_text(text, encoding="utf-8")


class TestDamage:
    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(spoil_by(""), id="empty"),
            pytest.param(spoil_by('{"id": "local-0000'), id="cut"),
            pytest.param(spoil_by("[]"), id="foreign"),
            pytest.param(spoil_by("{}"), id="lacking"),
            pytest.param(lambda folder: (folder / "node.json").unlink(), id="removed"),
            pytest.param(lambda folder: folder.rename(folder.with_name("local-000009-moved")), id="moved"),
        ],
    )
    def test_node_that_cannot_be_read_fails_every_list_by_name(self, world: World, spoil: Spoil) -> None:
        cloud = LocalCloud(world.directory, PortSettings("ada", "uuid", lambda _, __: SLEEPER, SystemClock()))
        node = cloud.create(a_launch("1"), a_type())
        cloud.create(a_launch("2"), a_type())
        folder = world.directory / "nodes" / node.provider_id
        cloud.destroy(node.provider_id)
        spoil(folder)
        with pytest.raises(CloudError, match=r"node\.json") as failed:
            cloud.list_nodes()
        assert failed.value.kind is FailureKind.TRANSIENT
        with pytest.raises(CloudError, match=r"node\.json"):
            cloud.destroy(node.provider_id)
        with pytest.raises(CloudError, match=r"node\.json"):
            cloud.create(a_launch("3"), a_type())

    def test_lock_that_is_never_let_go_is_an_error_not_a_wait_for_ever(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver, other = world.driver(), world.driver()
        monkeypatch.setattr(files, "_LOCK_WAIT_S", 0.0)
        with other.store.locked(), pytest.raises(TimeoutError, match="lock is held"):
            driver.list_nodes()


def test_thirty_nodes_from_four_threads_are_thirty_and_all_of_them_end(world: World) -> None:
    created: list[Node] = []
    wrong: list[BaseException] = []

    def work(numbers: range) -> None:
        try:
            driver = world.driver()
            created.extend(boot(driver, token=f"token-{number}") for number in numbers)
        except BaseException as error:
            wrong.append(error)
            raise

    in_threads([partial(work, range(first, 30, 4)) for first in range(4)])
    assert wrong == []
    ids = frozenset(str(node.id) for node in created)
    assert len(ids) == 30
    driver = world.driver()
    assert [node.id for node in driver.list_nodes()] == sorted(ids)
    until(lambda: {node.state for node in driver.list_nodes()} == {NodeState.RUNNING}, "all to run")
    assert len(marked_pids(ids)) >= 30
    in_threads([partial(destroy, world.driver(), created[first::4]) for first in range(4)])
    assert {node.state for node in driver.list_nodes()} == {NodeState.TERMINATED}
    assert marked_pids(ids) == frozenset()


def destroy(driver: LocalNodeDriver, nodes: list[Node]) -> None:
    for node in nodes:
        driver.destroy_node(node)


def in_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
