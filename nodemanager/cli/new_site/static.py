"""``init --provider static``: ask the hosts what they have, and write a site that uses them."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib import resources

from nodemanager.cli.new_site.site_text import STATE_DIR, site_section, type_names
from nodemanager.cloud.common.survey import DEFAULT_CLUSTER, OfferedSize, Questions, Unanswered
from nodemanager.cloud.static.survey import HostHardware
from nodemanager.config.text.settings import NAME, NAME_ALLOWED
from nodemanager.core.notation import compress_hostlist, expand_hostlist, format_bytes, parse_bytes
from nodemanager.core.ports import CloudError

Asked = tuple[Mapping[str, HostHardware], Mapping[str, str]]
Ask = Callable[[Sequence[str]], Asked]

_SSH = "ssh -o BatchMode=yes root@{node}"
_UNIT = "flux-node-join"


@dataclass(frozen=True, slots=True)
class Way:
    """How hosts are woken. ``script``: a file of ``host_scripts`` that the commands run."""

    about: str
    commands: tuple[str, str, str] = ("", "", "")
    script: str = ""


WAYS: Mapping[str, Way] = {
    "ssh": Way(
        "the hosts stay on, and serve Flux only while a job needs them",
        (
            f"{_SSH} sh -s",
            f'{_SSH} "systemctl disable --now {_UNIT}; ! systemctl -q is-active {_UNIT}"',
            # A unit that is just stopping is not asleep yet, and a systemd that does not answer says nothing.
            (
                f'{_SSH} "case $(systemctl is-active {_UNIT}) in '
                'inactive|failed|unknown) exit 1;; ?*) exit 0;; esac; exit 2"'
            ),
        ),
    ),
    "ipmi": Way("their management cards switch them on and off (ipmitool)", script="ipmi-host"),
    "lan": Way("Wake-on-LAN switches them on, and ssh off (wakeonlan)", script="wol-host"),
}


@dataclass(frozen=True, slots=True)
class OwnHosts:
    """What the site says of the hosts. ``by_type``: the hosts of each hardware, the smallest first."""

    cluster: str
    head_address: str
    way: Way
    price_per_hour: Decimal
    by_type: Mapping[HostHardware, Sequence[str]]


def choose_hosts(chosen: argparse.Namespace, questions: Questions, ask: Ask, own_address: str) -> OwnHosts:
    """Take the options, and ask for what they leave open. Raises ``Unanswered``: nothing has been written."""
    hosts = _hosts(questions.choose("hosts, such as node[01-16]", "--hosts", chosen.hosts, []))
    if (own := socket.gethostname().partition(".")[0]) in hosts:
        raise Unanswered(f"--hosts: {own} is this machine, where rank 0 runs: it must stay on")
    ways = [(name, way.about) for name, way in WAYS.items()]
    way = questions.choose("way to wake a host", "--wake-by", chosen.wake_by, ways)
    if way not in WAYS:
        raise Unanswered(f"--wake-by {way}: choose {', '.join(WAYS)}")
    by_type = _by_hardware(hosts, chosen, questions, ask)
    # Without choices: a number would be taken for the number of a choice.
    given = chosen.price if chosen.price is not None or questions.can_ask else "0"
    price = questions.choose("price per hour of a host's power, or 0", "--price", given, [])
    address = questions.choose("address of rank 0", "--head-address", chosen.head_address, [(own_address, "")])
    return OwnHosts(chosen.cluster or DEFAULT_CLUSTER, address, WAYS[way], _price(price), by_type)


def script_of(way: Way) -> str:
    """The text of the script that the way's commands run."""
    folder = resources.files("nodemanager.cloud.static") / "host_scripts"
    return (folder / way.script).read_text(encoding="utf-8")


def _hosts(text: str) -> tuple[str, ...]:
    try:
        hosts = tuple(dict.fromkeys(expand_hostlist(text)))
    except ValueError as error:
        raise Unanswered(f"--hosts {text}: {error}") from error
    if odd := [host for host in hosts if not NAME.fullmatch(host)]:
        raise Unanswered(f'--hosts: "{odd[0]}" is no host name: {NAME_ALLOWED}')
    if not hosts:
        raise Unanswered("give --hosts, such as node[01-16]")
    return hosts


def _by_hardware(
    hosts: Sequence[str], chosen: argparse.Namespace, questions: Questions, ask: Ask
) -> Mapping[HostHardware, Sequence[str]]:
    """Ask the hosts, unless the options say what all of them have."""
    if chosen.cores is not None and chosen.memory is not None:
        return {_hardware(chosen.cores, chosen.memory, chosen.gpus): hosts}
    try:
        known, unknown = ask(hosts)
    except CloudError as error:
        known, unknown = {}, dict.fromkeys(hosts, error.detail)
    if unknown:
        first = next(iter(unknown.values()))
        remedy = "Give --cores, --memory and --gpus, which then count for all hosts, or let root log in by ssh"
        if not questions.can_ask:
            raise Unanswered(f"{compress_hostlist(unknown)} did not tell what they have ({first}). {remedy}")
        cores = questions.choose(f"cores of each host ({first})", "--cores", None, [])
        memory = questions.choose("memory of each host, such as 64GiB", "--memory", None, [])
        gpus = questions.choose("GPUs of each host", "--gpus", None, [])
        return {_hardware(cores, memory, gpus): hosts}
    kinds = sorted(set(known.values()), key=lambda it: (it.gpus, it.cores, it.memory_bytes))
    return {kind: [host for host in hosts if known[host] == kind] for kind in kinds}


def _hardware(cores: str | int, memory: str, gpus: str | int | None) -> HostHardware:
    try:
        found = HostHardware(int(cores), int(gpus or 0), parse_bytes(memory))
    except ValueError as error:
        raise Unanswered(f"--cores {cores}, --memory {memory}, --gpus {gpus or 0}: {error}") from error
    if found.cores < 1 or found.gpus < 0 or found.memory_bytes < 1:
        raise Unanswered(f"--cores {cores}, --memory {memory}, --gpus {gpus or 0}: a host has at least one core")
    return found


def _price(text: str) -> Decimal:
    try:
        price = Decimal(text)
    except InvalidOperation as error:
        raise Unanswered(f"--price {text}: a number is needed, such as 0.12") from error
    if not price.is_finite() or price < 0:
        raise Unanswered(f"--price {text}: it must not be negative")
    return price


# --- the text of the site ---------------------------------------------------------------------------------


def host_site_text(hosts: OwnHosts) -> str:
    """The site file: valid, observing, and with a comment for every value that a person may want to change."""
    count = sum(map(len, hosts.by_type.values()))
    lines = [*site_section("static", hosts.cluster, hosts.head_address, STATE_DIR), *_cloud(hosts.way)]
    lines += [
        "[Limits]",
        f"nodes_max = {count}",
        f"# What the power of all {count} hosts costs. Lower both if you want to use fewer at a time.",
        f"price_per_hour_max = {hosts.price_per_hour * count or Decimal(1)}",
        "",
    ]
    return "\n".join((*lines, *_nodes(hosts)))


def _cloud(way: Way) -> Iterator[str]:
    program = f"./{way.script} {{node}}"
    wake, sleep, probe = (
        (f"{program} {verb}" for verb in ("wake", "sleep", "probe")) if way.script else way.commands
    )
    yield from (
        "[Cloud]",
        "provider = static",
        "# Each command runs in the folder of this file, as the manager's user, without a shell. {node} becomes",
        "# the name of a host. wake reads the host's user-data from its standard input (doc/clouds/static.md).",
        f"wake = {wake}",
        f"sleep = {sleep}",
        "# Exit status 0: the host is awake. 1: it is asleep. Any other: not known.",
        f"probe = {probe}",
    )
    if not way.script:
        yield ""
        return
    yield from (
        "# So that not all hosts switch on at the same moment: four at once, then one a second.",
        "creates_per_s = 1",
        "creates_burst = 4",
        "",
        "[Timing]",
        "# Firmware of servers takes long to start.",
        "boot_timeout = 20m",
        "",
        "[Policy]",
        "# A host that is off costs nothing, but takes minutes to come back.",
        "idle_timeout = 30m",
        "",
    )


def _nodes(hosts: OwnHosts) -> Iterator[str]:
    sizes = [
        OfferedSize(str(number), it.cores, it.gpus, it.memory_bytes, None)
        for number, it in enumerate(hosts.by_type)
    ]
    taken = {name for names in hosts.by_type.values() for name in names}
    for number, (name, (kind, names)) in enumerate(zip(type_names(sizes), hosts.by_type.items(), strict=True)):
        slots = [f"{name}{index}" for index in range(1, len(names) + 1)]
        begin = name if taken.isdisjoint(slots) else f"{name}-slot"
        yield f"[Node {name}]"
        yield "# What a job sees on each of the hosts. Declare less, never more, than they have."
        yield f"cores = {kind.cores}"
        if kind.gpus:
            yield f"gpus = {kind.gpus}"
        yield f"memory = {format_bytes(kind.memory_bytes)}"
        yield "# The price of the power that a host takes, or 0. The cheapest nodes are used first."
        yield f"price_per_hour = {hosts.price_per_hour}"
        yield "billing = per-second"
        if kind.gpus or number:
            yield "# Jobs can require this property, so that small jobs do not start on this type."
            yield f"properties = {name}"
        yield "# The names of the nodes in Flux. Any of the hosts can serve any of them."
        yield f"slots = {begin}{'[1-' + str(len(names)) + ']' if len(names) > 1 else '1'}"
        yield f"hosts = {compress_hostlist(names)}"
        yield ""
