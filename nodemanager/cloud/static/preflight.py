"""``check --online`` for own hosts: their commands and their probes. No host is woken, and no file is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nodemanager.cloud.common.findings import Finding, Verdict
from nodemanager.cloud.static.commands import PROBES_AT_ONCE, HostCommands, Ran, told_awake
from nodemanager.cloud.static.from_site import commands_of
from nodemanager.cloud.static.store import HostStore, Phase
from nodemanager.config.site import Site
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.ports import CloudError

UNKNOWN_REMEDY = "The manager tries such a host all the same: correct the probe, the host's name or its card"
STRANGER_REMEDY = "The manager leaves it alone until its probe finds it asleep"


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
