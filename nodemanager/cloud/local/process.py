"""Starts, finds and kills the processes of local nodes.

A process is identified by its pid, its start tick and the machine's boot id (proc(5): ``PID/stat`` and
``sys/kernel/random/boot_id``). So a reused pid or a reboot cannot lead to a mix-up. Every process of a node is in
the session of its init or has ``FNM_NODE`` in its environment. A process that leaves both is not found.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NODE_ID_VARIABLE = "FNM_NODE"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

INIT_SCRIPT = """\
# The init of a local node: boots, runs the user-data, and keeps running afterwards, like a machine.
# Usage: sh init FOLDER BOOT_DELAY_S boot|fail|hang
folder=$1 boot_delay_s=$2 fate=$3
umask 022
cd "$folder/root" || exit 1
[ "$boot_delay_s" = 0.0 ] || sleep "$boot_delay_s"
if [ "$fate" = fail ]; then
    echo failed > "$folder/phase"
    exit 1
fi
echo running > "$folder/phase" || exit 1
if [ "$fate" = boot ]; then
    # The node's own /tmp, deleted when the node ends. The path is short because sockets are created below it.
    TMPDIR=$(mktemp -d /tmp/fnm-node.XXXXXX) || exit 1
    echo "$TMPDIR" > "$folder/tmp"
    # Run it in the foreground: background processes of a shell, and the Flux jobs they start, would ignore SIGINT.
    env -i PATH="$PATH" HOME="$HOME" TMPDIR="$TMPDIR" FNM_NODE="$FNM_NODE" "$folder/user-data"
    echo $? > "$folder/user-data.exit"
fi
while :; do sleep 86400; done
"""

_NODE_ID_ASSIGNMENT = f"\0{NODE_ID_VARIABLE}=".encode()
_ROUNDS_MAX = 3
_DEATH_WAIT_S = 2.0
_EXEC_WAIT_S = 2.0
# Signals that this process may ignore because of a shell, nohup or Python. A new machine ignores none of them.
_SIGNALS_RESET = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGXFSZ,
)
# Raised by reading the files of a process that has ended or belongs to another user. Other OSErrors, such as a lack
# of file descriptors, tell nothing about the process.
_UNREADABLE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """Identifies one process of this machine, even after its pid is reused."""

    pid: int
    start_tick: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of ``/proc/PID/stat`` that this module uses."""

    state: str
    parent: int
    session: int
    start_tick: int
    virtual_bytes: int
    environment_end: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZXx"

    @property
    def is_in_exec(self) -> bool:
        """Whether execve(2) has replaced the process's memory and not yet set its environment.

        Then ``PID/environ`` is empty. A kernel thread's is empty too, but a kernel thread has no memory.
        """
        return self.environment_end == 0 and self.virtual_bytes > 0


def start(init: Path, folder: Path, node_id: str, boot_delay_s: float, fate: str) -> LocalProcess:
    """Start a node's init in its own session. Raises ``OSError`` if the machine cannot start a process.

    ``fate`` is ``boot``, ``fail`` or ``hang``.
    """
    console = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", str(init), str(folder), repr(boot_delay_s), fate],
        {"PATH": PATH, "HOME": str(folder / "root"), NODE_ID_VARIABLE: node_id},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder / "console.log"), console, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_SIGNALS_RESET,
    )
    stat = _stat_of(pid)
    if stat is None:
        raise ProcessLookupError(f"the init of node {node_id} (pid {pid}) has just started and is not in /proc")
    return LocalProcess(pid, stat.start_tick, _boot_id())


def is_alive(process: LocalProcess) -> bool:
    """Return whether the process still runs. If it has ended and is a child of this process, reap it."""
    stat = _stat_if_same(process)
    if stat is None:
        return False
    if stat.has_ended:
        _reap(process, stat)
    return not stat.has_ended


def find_init(node_id: str) -> LocalProcess | None:
    """Find a node's init by ``FNM_NODE`` in its environment; None if it never started or has ended."""
    leaders = [
        process
        for process, _ in _living_processes({node_id: None})
        if (stat := _stat_of(process.pid)) and stat.session == process.pid
    ]
    return min(leaders, key=lambda process: process.start_tick, default=None)


def end_nodes(inits: Mapping[str, LocalProcess | None]) -> frozenset[str]:
    """Kill every process of these nodes, given as node id -> init. Each round scans ``/proc`` once.

    Returns the ids of the nodes that still have a process after the last round.
    """
    found: dict[LocalProcess, str] = {}
    deadline_s = time.monotonic() + _DEATH_WAIT_S
    for _ in range(_ROUNDS_MAX):
        found = dict(_living_processes(inits))
        if not found:
            break
        for node_id in frozenset(found.values()):
            _kill_group(inits[node_id])
        for process in found:
            _kill(process)
        for process in found:
            _await_end(process, deadline_s)
    else:
        found = dict(_living_processes(inits))
    for init in inits.values():
        if init is not None:
            is_alive(init)
    return frozenset(node_id for process, node_id in found.items() if is_alive(process))


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A node's process of another user, which this process may not kill."""

    pid: int
    uid: int


def foreign_processes(
    inits: Mapping[str, LocalProcess], sessions: Mapping[str, AbstractSet[int]]
) -> Mapping[str, tuple[ForeignProcess, ...]]:
    """Find the processes of other users on these nodes, by node id. ``sessions``: those of each node's brokers.

    They are in the session of the init or of a broker, which may have ended. The kernel does not reuse the number
    of a session that has a member, so a member that is no older than the init belongs to the node.
    """
    of_session = {
        sid: node_id
        for node_id, init in inits.items()
        for sid in (init.pid, *sessions.get(node_id, ()))
        if (leader := _stat_of(sid)) is None or leader.has_ended or _node_id_of(sid) == node_id
    }
    found: dict[str, tuple[ForeignProcess, ...]] = {}
    for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        stat = _stat_of(pid)
        if stat is None or stat.has_ended or (node_id := of_session.get(stat.session)) is None:
            continue
        if inits[node_id].boot_id != _boot_id() or stat.start_tick < inits[node_id].start_tick:
            continue
        with suppress(*_UNREADABLE):
            uid = Path(f"/proc/{pid}").stat().st_uid
            if uid != os.getuid():
                found[node_id] = (*found.get(node_id, ()), ForeignProcess(pid, uid))
    return found


def marked_pids(node_ids: frozenset[str]) -> frozenset[int]:
    """Return the pids of all living processes that have one of these node ids in their environment."""
    return frozenset(process.pid for process, _ in _living_processes(dict.fromkeys(node_ids)))


def _living_processes(inits: Mapping[str, LocalProcess | None]) -> Iterator[tuple[LocalProcess, str]]:
    """Yield all living processes of these nodes, each with its node's id."""
    boot_id = _boot_id()
    # A session id certainly belongs to the node only while the session's leader holds that pid.
    sessions = {init.pid: node_id for node_id, init in inits.items() if init is not None and _stat_if_same(init)}
    unmarked: list[tuple[int, _Stat]] = []
    for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        stat = _stat_of(pid)
        if stat is None or stat.has_ended:
            continue
        node_id = sessions.get(stat.session) or _node_id_of(pid)
        if node_id in inits:
            if stat.session == pid:
                sessions[pid] = node_id  # a broker with a session of its own; its jobs' processes are in it
            yield LocalProcess(pid, stat.start_tick, boot_id), node_id
        else:
            unmarked.append((pid, stat))
    for pid, stat in unmarked:
        if stat.session in sessions:
            yield LocalProcess(pid, stat.start_tick, boot_id), sessions[stat.session]


def _node_id_of(pid: int) -> str:
    """Return the node id in a process's environment; "" if there is none or the environment is unreadable."""
    environment = _environment_of(pid) or b""
    _, found, rest = (b"\0" + environment).partition(_NODE_ID_ASSIGNMENT)
    return rest.partition(b"\0")[0].decode(errors="replace") if found else ""


def _environment_of(pid: int) -> bytes | None:
    """Read a process's environment. Wait for a process that is in execve(2): it has none for less than a tick."""
    deadline_s = time.monotonic() + _EXEC_WAIT_S
    while (environment := _read_proc(f"/proc/{pid}/environ")) == b"":
        stat = _stat_of(pid)
        if stat is None or stat.has_ended or time.monotonic() > deadline_s:
            break
        if not stat.is_in_exec:
            # The process may have left execve after the first read. One that has no environment stays empty.
            return _read_proc(f"/proc/{pid}/environ")
        os.sched_yield()
    return environment


def _kill_group(init: LocalProcess | None) -> None:
    """Kill an init and its process group in one call, so that no member can escape by forking."""
    if init is not None and _stat_if_same(init):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(init.pid, signal.SIGKILL)


def _kill(process: LocalProcess) -> None:
    with suppress(ProcessLookupError, PermissionError), closing(_PidFd(process.pid)) as handle:
        # An open pidfd always refers to the same process. So check the process's identity first, then send.
        if _stat_if_same(process):
            signal.pidfd_send_signal(handle.fd, signal.SIGKILL)


def _await_end(process: LocalProcess, deadline_s: float) -> None:
    with suppress(ProcessLookupError), closing(_PidFd(process.pid)) as handle:
        if _stat_if_same(process):
            poll = select.poll()
            poll.register(handle.fd, select.POLLIN)
            poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)


class _PidFd:
    """A pidfd (pidfd_open(2)). It refers to one process, even after the pid is reused."""

    def __init__(self, pid: int) -> None:
        self.fd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self.fd)


def _reap(process: LocalProcess, stat: _Stat) -> None:
    if stat.parent == os.getpid():
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _stat_if_same(process: LocalProcess) -> _Stat | None:
    """Return the process's stat, even of a zombie; None if it no longer exists, or another one has its pid."""
    stat = _stat_of(process.pid)
    if stat is None or stat.start_tick != process.start_tick or process.boot_id != _boot_id():
        return None
    return stat


def _stat_of(pid: int) -> _Stat | None:
    stat = _read_proc(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The process name is in parentheses and may contain any character. The fields follow the last parenthesis.
    fields = stat.rpartition(b")")[2].split()
    return _Stat(
        fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        start_tick=int(fields[19]),
        virtual_bytes=int(fields[20]),
        environment_end=int(fields[48]),
    )


def _read_proc(path: str) -> bytes | None:
    """Read a file of a process; None if the process has ended or belongs to another user.

    Reads unbuffered, because scanning all processes is a hot loop.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib takes twice as long
            return file.readall()
    except _UNREADABLE:
        return None


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
