"""What own hosts offer: each is asked for its cores, GPUs and memory by ssh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nodemanager.cloud.static.commands import PROBES_AT_ONCE, HostCommands, Ran

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=5 root@{node} sh -s"
TIMEOUT_S = 20.0

# Cores, not hardware threads: Flux counts cores. Prints three numbers, also on a host without lscpu.
SCRIPT = """\
cores=$(lscpu -p=SOCKET,CORE 2>/dev/null | grep -v '^#' | sort -u | wc -l)
[ "$cores" -gt 0 ] || cores=$(nproc)
memory=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
gpus=$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l)
echo "hardware $cores $gpus $memory"
"""
_KIB, _GIB = 2**10, 2**30


@dataclass(frozen=True, slots=True, order=True)
class HostHardware:
    """What a job sees on a host. ``memory_bytes``: whole GiB, because the kernel keeps a little for itself."""

    cores: int
    gpus: int
    memory_bytes: int


def survey_hosts(
    hosts: Sequence[str], ssh: str = SSH, timeout_s: float = TIMEOUT_S
) -> tuple[Mapping[str, HostHardware], Mapping[str, str]]:
    """Ask all hosts. Return the hardware of those that answered, and for the others why they did not.

    Raises :class:`CloudError` if there is no ssh here.
    """
    commands = HostCommands(ssh, "", "", Path.cwd(), timeout_s)
    with ThreadPoolExecutor(min(len(hosts), PROBES_AT_ONCE), "survey") as pool:
        answers = dict(zip(hosts, pool.map(lambda host: commands.run_wake(host, SCRIPT), hosts), strict=True))
    found = {host: _read(ran) for host, ran in answers.items()}
    known = {host: hardware for host, hardware in found.items() if hardware is not None}
    return known, {host: answers[host].describe("ssh", host) for host in hosts if host not in known}


def _read(ran: Ran) -> HostHardware | None:
    """Read the last line. What the host's own login files print comes before it."""
    words = ran.said.splitlines()[-1].split() if ran.status == 0 and ran.said else []
    numbers = [int(word) for word in words[1:] if word.isascii() and word.isdigit()]
    if words[:1] != ["hardware"] or len(numbers) != 3:
        return None
    cores, gpus, memory_kib = numbers
    memory_bytes = memory_kib * _KIB // _GIB * _GIB
    return HostHardware(cores, gpus, memory_bytes) if cores and memory_bytes else None
