"""The processes of local nodes: how they start, which of them live, how all of them end.

A process is known by its pid, the tick at which it started and the boot of the machine (proc(5): ``PID/stat`` and
``sys/kernel/random/boot_id``), so that neither a pid used anew nor a machine booted anew passes for it.
Whatever a node starts belongs to the session of its init or carries ``FNM_NODE`` in its environment; only a
process that leaves both behind is out of reach.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NODE_ID_VARIABLE = "FNM_NODE"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

INIT_SCRIPT = """\
# The init of a local node: boots, runs the user-data, and outlives it, as a machine does.
# Usage: sh init FOLDER BOOT_DELAY_S boot|fail|hang
folder=$1 boot_delay_s=$2 fate=$3
umask 022
cd "$folder/root" || exit 1
[ "$boot_delay_s" = 0.0 ] || sleep "$boot_delay_s"
if [ "$fate" = fail ]; then
    echo failed > "$folder/phase"
    exit 1
fi
echo running > "$folder/phase"
if [ "$fate" = boot ]; then
    # A machine's /tmp ends with it. The path is short, for sockets lie below it.
    TMPDIR=$(mktemp -d /tmp/fnm-node.XXXXXX) || exit 1
    echo "$TMPDIR" > "$folder/tmp"
    # In the foreground: a shell lets what it starts in the background ignore SIGINT, jobs of Flux included.
    env -i PATH="$PATH" HOME="$HOME" TMPDIR="$TMPDIR" FNM_NODE="$FNM_NODE" "$folder/user-data"
    echo $? > "$folder/user-data.exit"
fi
while :; do sleep 86400; done
"""

_NODE_ID_ASSIGNMENT = f"\0{NODE_ID_VARIABLE}=".encode()
_ROUNDS_MAX = 3
_DEATH_WAIT_S = 2.0
# What a shell, nohup or Python itself may have told us to ignore, and a new machine does not know of.
_SIGNALS_RESET = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGXFSZ,
)
# What reading the files of a process raises when it is gone, or another user's. Not every OSError: to have no
# file descriptor left says nothing about the process.
_UNREADABLE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """One process of this machine, never mistaken for another one."""

    pid: int
    start_tick: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of ``/proc/PID/stat`` that we read."""

    state: str
    parent: int
    session: int
    start_tick: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZXx"


def start(init: Path, folder: Path, node_id: str, boot_delay_s: float, fate: str) -> LocalProcess:
    """Start a node's init in a session of its own. Raises ``OSError`` when the machine has no room for it."""
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
        raise ProcessLookupError(f"the init of node {node_id} (pid {pid}) is not in /proc right after its start")
    return LocalProcess(pid, stat.start_tick, _boot_id())


def is_alive(process: LocalProcess) -> bool:
    """Whether it still runs. One that ended and is our child is waited for, so that no zombie stays."""
    stat = _stat_if_same(process)
    if stat is None:
        return False
    if stat.has_ended:
        _reap(process, stat)
    return not stat.has_ended


def find_init(node_id: str) -> LocalProcess | None:
    """The init of a node, found by its mark; None if it was never started, or has ended."""
    leaders = [
        process
        for process, _ in _living_processes({node_id: None})
        if (stat := _stat_of(process.pid)) and stat.session == process.pid
    ]
    return min(leaders, key=lambda process: process.start_tick, default=None)


def end_nodes(inits: Mapping[str, LocalProcess | None]) -> frozenset[str]:
    """Kill every process of these nodes, by node id, with one look at ``/proc`` a round.

    Returns the ids of the nodes of which something still lived after the last round.
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
    for init in inits.values():
        if init is not None:
            is_alive(init)
    return frozenset(node_id for process, node_id in found.items() if is_alive(process))


def marked_pids(node_ids: frozenset[str]) -> frozenset[int]:
    """The pids of all living processes that carry the mark of one of these nodes."""
    return frozenset(process.pid for process, _ in _living_processes(dict.fromkeys(node_ids)))


def _living_processes(inits: Mapping[str, LocalProcess | None]) -> Iterator[tuple[LocalProcess, str]]:
    """All living processes of these nodes, each with its node's id."""
    boot_id = _boot_id()
    # A session's number is surely ours only as long as its leader holds the pid.
    sessions = {init.pid: node_id for node_id, init in inits.items() if init is not None and _stat_if_same(init)}
    for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        stat = _stat_of(pid)
        if stat is None or stat.has_ended:
            continue
        node_id = sessions.get(stat.session) or _node_id_of(pid)
        if node_id in inits:
            yield LocalProcess(pid, stat.start_tick, boot_id), node_id


def _node_id_of(pid: int) -> str:
    """The node that a process's environment names, "" if none or if it is not ours to read."""
    environment = _read_proc(f"/proc/{pid}/environ") or b""
    _, found, rest = (b"\0" + environment).partition(_NODE_ID_ASSIGNMENT)
    return rest.partition(b"\0")[0].decode(errors="replace") if found else ""


def _kill_group(init: LocalProcess | None) -> None:
    """Kill an init with its group at one stroke: nothing can fork its way out in between."""
    if init is not None and _stat_if_same(init):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(init.pid, signal.SIGKILL)


def _kill(process: LocalProcess) -> None:
    with suppress(ProcessLookupError, PermissionError), closing(_PidFd(process.pid)) as handle:
        # Once the handle is held its process cannot change any more: compare, then send.
        if _stat_if_same(process):
            signal.pidfd_send_signal(handle.fd, signal.SIGKILL)


def _await_end(process: LocalProcess, deadline_s: float) -> None:
    with suppress(ProcessLookupError), closing(_PidFd(process.pid)) as handle:
        if _stat_if_same(process):
            poll = select.poll()
            poll.register(handle.fd, select.POLLIN)
            poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)


class _PidFd:
    """A pidfd (pidfd_open(2)): it refers to one process, even after the pid is used anew."""

    def __init__(self, pid: int) -> None:
        self.fd = os.pidfd_open(pid)

    def close(self) -> None:
        os.close(self.fd)


def _reap(process: LocalProcess, stat: _Stat) -> None:
    if stat.parent == os.getpid():
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _stat_if_same(process: LocalProcess) -> _Stat | None:
    """The process's stat, zombie or not; None if it is no more, whoever has its pid now."""
    stat = _stat_of(process.pid)
    if stat is None or stat.start_tick != process.start_tick or process.boot_id != _boot_id():
        return None
    return stat


def _stat_of(pid: int) -> _Stat | None:
    stat = _read_proc(f"/proc/{pid}/stat")
    if stat is None:
        return None
    # The name stands in parentheses and may hold any character: the fields begin after the last one.
    fields = stat.rpartition(b")")[2].split()
    return _Stat(fields[0].decode(), parent=int(fields[1]), session=int(fields[3]), start_tick=int(fields[19]))


def _read_proc(path: str) -> bytes | None:
    """The file of a process, None if that is out of sight. Unbuffered: a look at all of them is a hot loop."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - pathlib would double its cost
            return file.readall()
    except _UNREADABLE:
        return None


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
