"""Asks own hosts: what they have, for a first site, and whether they can be used. No host is woken.

For a first site, each is asked for its cores, GPUs and memory by ssh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nodemanager.cloud.common.findings import Finding, Verdict
from nodemanager.cloud.static.commands import PROBES_AT_ONCE, HostCommands, Ran, commands_of, told_awake
from nodemanager.cloud.static.store import HostStore, Phase
from nodemanager.config.site import Site
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.ports import CloudError

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

UNKNOWN_REMEDY = "The manager tries such a host all the same: correct the probe, the host's name or its card"
STRANGER_REMEDY = "The manager leaves it alone until its probe finds it asleep"


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


# --- ``check --online``: the commands and their probes. No file is changed --------------------------------


def check_hosts(site: Site) -> Iterator[Finding]:
    """Check that the commands exist, and ask the probe of each host of each node type."""
    commands = commands_of(site)
    missing = list(commands.missing_programs())
    for problem in missing:
        yield Finding("commands", Verdict.FAULT, problem, "Install it, or correct the command in [Cloud]")
    if missing:
        return
    yield Finding("commands", Verdict.OK, "the programs of wake, sleep and probe may be run here")
    try:
        uses = HostStore(site.cloud_dir).read().uses
    except (CloudError, OSError) as error:
        yield Finding("uses", Verdict.FAULT, str(getattr(error, "detail", error)), "Run this as the manager's user")
        return
    serving = frozenset(use.host for use in uses if use.phase is not Phase.ENDED)
    for name, node in site.nodes.items():
        subject = f"hosts of {name}"
        if not commands.probe:
            text = f"{len(node.hosts)}; without a probe it is not known which of them are awake"
            yield Finding(subject, Verdict.OK, text)
            continue
        try:
            yield from _describe(subject, _probe(commands, node.hosts), serving)
        except CloudError as error:
            yield Finding(subject, Verdict.FAULT, error.detail)


def _probe(commands: HostCommands, hosts: Sequence[str]) -> dict[str, Ran]:
    """Run all probes. Each gets its full time, however many there are."""
    ran: dict[str, Ran] = {}
    for first in range(0, len(hosts), PROBES_AT_ONCE):
        ran |= commands.run_probes(hosts[first : first + PROBES_AT_ONCE])
    return ran


def _describe(subject: str, probed: Mapping[str, Ran], serving: frozenset[str]) -> Iterator[Finding]:
    awake = [host for host, ran in probed.items() if told_awake(ran)]
    unknown = [host for host, ran in probed.items() if told_awake(ran) is None]
    asleep = len(probed) - len(awake) - len(unknown)
    if unknown:
        verdict = Verdict.WARNING if len(unknown) < len(probed) else Verdict.FAULT
        first = probed[unknown[0]].describe("probe", unknown[0])
        yield Finding(subject, verdict, f"not known of {compress_hostlist(unknown)}: {first}", UNKNOWN_REMEDY)
    if strangers := [host for host in awake if host not in serving]:
        text = f"awake, and not by this manager: {compress_hostlist(strangers)}"
        yield Finding(subject, Verdict.WARNING, text, STRANGER_REMEDY)
    if len(unknown) < len(probed):
        text = f"{asleep} asleep, {len(awake)} awake; {len(serving & set(awake))} serve nodes"
        yield Finding(subject, Verdict.OK, text)


def host_warnings(site: Site) -> Iterator[str]:
    """Warn about missing programs, and about slots with the names of hosts, one sentence each."""
    for problem in commands_of(site).missing_programs():
        yield f"[Cloud] {problem}. No host can be used without it."
    hosts = {host for node in site.nodes.values() for host in node.hosts}
    for name, node in site.nodes.items():
        if same := [slot for slot in node.slots if slot in hosts]:
            yield (
                f"[Node {name}] slots {compress_hostlist(same)} have the names of hosts, but any host can serve "
                f"any slot: {site.join.hosts_file} of the nodes would then give them other addresses. Rename them."
            )
