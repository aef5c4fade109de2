"""Every section and key of a site: the allowed values, the unit, the default.

A field's name carries its unit (``settle_s``); the key in the file is the field's alias (``settle``). Text values
are parsed by the field's :class:`ValueFormat`; other values are taken as they are.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
import unicodedata
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from nodemanager.config.text.providers import PROVIDERS
from nodemanager.core.jobs import PackingPolicy, QueuePolicy, Unserved
from nodemanager.core.notation import NotationError, expand_hostlist, parse_bytes, parse_fsd
from nodemanager.core.slots import Billing, ForeignDrain, Market, Misfit, NodePlacement, OnlyFor, SlotName
from nodemanager.core.upkeep.rules import Disruption, Drift
from nodemanager.core.upkeep.windows import WINDOW_ALLOWED, Window, read_windows

MIB = 1 << 20
WHOLE_MAX = 1_000_000_000
DURATION_MAX_S = 10 * 365 * 86_400.0
PROPERTY_FORBIDDEN = "!&'\"^`|()"  # RFC 20, RFC 31

# A Flux instance's address: opened directly, or found first (flux-uri(1)).
INSTANCE_SCHEMES = ("local", "ssh", "jobid", "pid", "slurm", "lsf")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
NAME_ALLOWED = 'up to 63 letters, digits, ".", "_" and "-", beginning with a letter or digit'

# An ensemble's name is part of a key of the KVS, where a dot separates folders.
ENSEMBLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
ENSEMBLE_NAME_ALLOWED = 'up to 63 letters, digits, "_" and "-"'

# A peer's name is shown as the node of its jobs.
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)
HOST_NAME_ALLOWED = 'up to 63 letters, digits, "." and "-", beginning with a letter or digit'

_CLUSTER = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_NAME_OR_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]", re.ASCII)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)  # RFC 1123
_MICROVERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}", re.ASCII)
_PUBLIC_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( .*)?|", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", re.ASCII)
_BILLING_WINDOWS_S = {"hourly": 3600.0, "per-minute": 60.0, "per-second": 1.0, "free": 0.0}


class Mode(StrEnum):
    """Whether the manager acts."""

    OBSERVE = "observe"  # show the decisions, change nothing
    ACT = "act"


class SizeOwner(StrEnum):
    """Who changes the size of a MiniCluster."""

    US = "us"  # only the manager: nodes that others add are adopted, and leave when they are idle
    SHARED = "shared"  # others too: the manager never removes nodes that they add


class NoticeKind(StrEnum):
    """What operators may be told by ``[Notify] command``."""

    BUDGET = "budget"  # 90 % of a budget of the site is spent
    BREAKER = "breaker"  # nodes of a type keep failing: no more are bought for a while
    SAFE_MODE = "safe-mode"
    LEAK = "leak"  # the provider has a node of ours that no launch knows
    NEVER_RUNS = "never-runs"  # no node type, or no limit or budget, ever lets a job run


class Viewers(StrEnum):
    """The users who may see jobs on the web interface."""

    OWNER = "owner"  # those who may connect to the socket or have the token
    EVERYBODY = "everybody"


class Burst(StrEnum):
    """Which jobs may run in a peer."""

    ASK = "ask"  # those submitted with --dependency=delegate:TARGET
    PEERS = "peers"  # also others, if a peer is better than own nodes
    NEVER = "never"


class DelegateTo(StrEnum):
    """The targets that users may give."""

    PEERS = "peers"  # the site's [Peer NAME] sections
    ANY = "any"  # any URI too; ssh uses the manager's keys


class Bridge(StrEnum):
    """Whether the manager speaks to Flux through a process that flux-core's own Python runs."""

    AUTO = "auto"  # where this Python cannot import flux-core's bindings
    ALWAYS = "always"
    NEVER = "never"


class JoinMethod(StrEnum):
    """How a node gets what it needs to join the instance."""

    DIRECTORY = "directory"  # nodes read the bootstrap folder from a file system they share
    SERVICE = "service"  # nodes redeem a ticket at the join service
    IMAGE = "image"  # the image contains the bootstrap and the certificate; a slot is a host name
    FLUB = "flub"  # nodes ask rank 0 for any free rank; needs a flux-core with pull request 5184


SIMULATED_URI = "simulated"
NEVER = "never"  # no property: nothing is waited for


# --- how a value is written -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """The text format of a value: a description of the allowed values, and the function that reads it."""

    allowed: str
    read: Callable[[str], object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._read_text, handler(source))

    def _read_text(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except NotationError as error:
            raise ValueError(error.fault) from error
        except ValueError as error:
            raise ValueError(str(error) or f"{self.allowed} is needed") from error


def _require(truth: object) -> None:
    """Refuse a text; the error message is the format's own description (``allowed``)."""
    if not truth:
        raise ValueError


def _whole(least: int, most: int = WHOLE_MAX) -> ValueFormat:
    def read(text: str) -> int:
        _require(re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) and least <= int(text) <= most)
        return int(text)

    limits = f"from {least} to {most}" if most < WHOLE_MAX else f"of {least} or more"
    return ValueFormat(f"a whole number {limits}", read)


def _number_above_0(text: str) -> float:
    _require(_DECIMAL.fullmatch(text) and float(text) > 0)
    return float(text)


def _number_of_0_or_more(text: str) -> float:
    _require(_DECIMAL.fullmatch(text))
    return float(text)


def _probability(text: str) -> float:
    _require(_DECIMAL.fullmatch(text) and float(text) <= 1)
    return float(text)


def _price(text: str) -> Decimal:
    _require(_DECIMAL.fullmatch(text))
    return Decimal(text)


def _duration(text: str) -> float:
    duration_s = parse_fsd(text)
    if duration_s > DURATION_MAX_S:
        raise ValueError("a duration of at most ten years is needed")
    return duration_s


def _duration_above_0(text: str) -> float:
    duration_s = _duration(text)
    _require(duration_s > 0)
    return duration_s


def _size_bytes(text: str) -> int:
    size_bytes = parse_bytes(text)
    _require(size_bytes > 0)
    return size_bytes


def _size_of_a_mib_or_more(text: str) -> int:
    size_bytes = parse_bytes(text)
    _require(size_bytes >= MIB)
    return size_bytes


def _market(text: str) -> Market | None:
    _require(text == "any" or text in {market.value for market in Market})
    return None if text == "any" else Market(text)


def _one_of(choices: type[StrEnum]) -> ValueFormat:
    def read(text: str) -> StrEnum:
        _require(text in {choice.value for choice in choices})
        return choices(text)

    return ValueFormat(" or ".join(choices), read)


# What other programs call them.
_PROVIDERS_ELSEWHERE = {
    "aws": "ec2",
    "amazon": "ec2",
    "google": "gce",
    "gcp": "gce",
    "gcloud": "gce",
    "nova": "openstack",
    "k8s": "minicluster",
    "kubernetes": "minicluster",
    "ssh": "static",
    "localhost": "local",
}


def _provider(text: str) -> str:
    if meant := _PROVIDERS_ELSEWHERE.get(text.lower()):
        raise ValueError(f"write {meant}")
    _require(text in PROVIDERS)
    return text


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        _require(pattern.fullmatch(text))
        return text

    return read


def _word(text: str) -> str:
    _require(text and not any(character.isspace() for character in text))
    return text


def _kubernetes_name(text: str) -> str:
    _require(not text or _LABEL.fullmatch(text))
    return text


def _word_or_nothing(text: str) -> str:
    return _word(text) if text else ""


def _url(text: str) -> str:
    if text:
        _http(text)
        # libcloud cannot parse a host address in brackets.
        _require(not set("@[]?# ") & set(text))
    return text


def _http(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _require(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:
        raise ValueError from None  # in our words
    return parts


def _command(text: str) -> str:
    _require("\n" not in text)
    try:
        shlex.split(text)
    except ValueError:  # an unclosed quote
        raise ValueError from None
    return text


def _path(text: str) -> Path:
    _require(text and "\n" not in text)
    return Path(text)


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text)) if text else ""
    except ValueError:
        raise ValueError from None  # in our words


def _yes_or_no(text: str) -> bool:
    _require(text in {"yes", "no"})
    return text == "yes"


def _command_line(text: str) -> str:
    _require(text.strip() and text.isprintable())
    return text


def _host_and_port(text: str) -> str:
    """Check ``HOST:PORT``; an IPv6 address is in brackets."""
    host, colon, port = text.rpartition(":")
    is_ipv6 = host[:1] + host[-1:] == "[]" and is_ipv6_address(host[1:-1])
    _require(colon and (is_ipv6 or NAME.fullmatch(host)) and re.fullmatch(r"[0-9]{1,5}", port, re.ASCII))
    _require(0 < int(port) <= 65_535)
    return text


def _name_or_address(text: str) -> str:
    _require(is_ipv6_address(text) or NAME.fullmatch(text))
    return text


def is_ipv6_address(text: str) -> bool:
    """Whether the text is an IPv6 address. One with a zone, ``fe80::1%eth0``, means another host to each node."""
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def bracketed(host: str) -> str:
    """Return the host as it is written before ``:PORT``: an IPv6 address in brackets."""
    return f"[{host}]" if is_ipv6_address(host) else host


def is_loopback(host: str) -> bool:
    """Whether only processes on this machine reach an address. A name other than localhost counts as remote."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _hosts_and_ports(text: str) -> tuple[str, ...]:
    return tuple(_host_and_port(item.strip()) for item in text.split(",")) if text else ()


def _comma_list(text: str) -> tuple[str, ...]:
    return tuple(_word(item.strip()) for item in text.split(",")) if text else ()


def _joined_list(text: str) -> str:
    return ",".join(_comma_list(text))


def _zone_subnets(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``us-east-1a:subnet-1, us-east-1b:subnet-2`` in order, with one subnet per zone."""
    pairs = []
    for item in _comma_list(text):
        zone, _, subnet = item.partition(":")
        _require(zone and subnet)
        pairs.append((zone, subnet))
    zones = [zone for zone, _ in pairs]
    if len(set(zones)) < len(zones):
        twice = next(zone for zone in zones if zones.count(zone) > 1)
        raise ValueError(f'zone "{twice}" has two subnets: give one per zone')
    return tuple(pairs)


def _builtin(text: str) -> str:
    _require(text == "builtin")
    return text


def _currency(text: str) -> str:
    is_code = len(text) == 3 and text.isascii() and text.isalpha() and text.isupper()
    _require(not text or is_code or (len(text) == 1 and unicodedata.category(text) == "Sc"))
    return text


def _endpoint(text: str) -> str:
    if text:
        parts = _http(text)
        _require("@" not in parts.netloc and text == f"{parts.scheme}://{parts.netloc}")
    return text


def _grpc_listen(text: str) -> str:
    _require(not text.startswith("unix"))
    return _listen(text)


def _tcp_address(text: str) -> str:
    _require(text != "off")
    return _grpc_listen(text)


def _listen(text: str) -> str:
    """Read ``unix``, ``unix:PATH``, ``off``, or a TCP address to listen on: ``127.0.0.1:8080``, ``[::1]:8080``."""
    if text in ("unix", "off"):
        return text
    if text.startswith("unix:"):
        _require(text.removeprefix("unix:") and "\n" not in text)
        return text
    try:
        parts = urlsplit(f"//{text}")
        valid = parts.hostname and parts.port and parts.netloc == text and "@" not in text
        (parts.hostname or "").encode("idna")  # as a resolver will
    except ValueError:
        raise ValueError from None  # in our words
    _require(valid and not any(character.isspace() for character in text))
    return text


def _instance_uri(text: str) -> str:
    parts = urlsplit(_word(text))
    _require(parts.scheme in INSTANCE_SCHEMES and (parts.netloc or parts.path))
    _require(not parts.query and not parts.fragment)
    return text


def _hosts(text: str) -> tuple[str, ...]:
    names = _comma_list(text)
    for name in names:
        _require(name == "*" or _NAME_OR_ADDRESS.fullmatch(name.removeprefix("*.")))
    return names


def _notice_kinds(text: str) -> frozenset[NoticeKind]:
    names = _comma_list(text)
    _require(names and set(names) <= set(NoticeKind))
    return frozenset(map(NoticeKind, names))


def _properties(text: str) -> frozenset[str]:
    names = _comma_list(text)
    for name in names:
        _require(not set(name) & set(PROPERTY_FORBIDDEN))
    return frozenset(names)


def _property_or_never(text: str) -> str:
    _require(len(_properties(text)) == 1)
    return text


def _names_of(what: str) -> Callable[[str], tuple[str, ...]]:
    """Return the reader of a host list of slots or hosts."""

    def read(text: str) -> tuple[str, ...]:
        names = expand_hostlist(text)
        for name in names:
            if not NAME.fullmatch(name):
                raise ValueError(f'"{name}" is no {what} name: {NAME_ALLOWED}')
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f'{what} "{twice}" is listed twice: list it once')
        _require(names)
        return names

    return read


def _share(text: str) -> float:
    share = text.removesuffix("%").rstrip()
    _require(share != text and _DECIMAL.fullmatch(share) and float(share) <= 100)
    return float(share) / 100


def _end_of_day(text: str) -> float:
    """Read a day; return the moment at which it ends in UTC, in seconds since the epoch."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ValueError from None  # in our words
    _require(day.isoformat() == text)
    end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    return end.timestamp()


def _disruption_max(text: str) -> tuple[int | None, float]:
    """Read a count or a share of the nodes. The one that is not given is None or 0."""
    share = text.removesuffix("%").rstrip()
    if share == text:
        return _whole(0).read(text), 0.0  # type: ignore[return-value]
    _require(_DECIMAL.fullmatch(share) and float(share) <= 100)
    return None, float(share) / 100


def _billing_window_s(text: str) -> float:
    if text in _BILLING_WINDOWS_S:
        return _BILLING_WINDOWS_S[text]
    try:
        return _duration_above_0(text)
    except NotationError:
        raise ValueError from None  # more likely a misspelt name than a misspelt duration


_Count = Annotated[int, _whole(0)]
_Positive = Annotated[int, _whole(1)]
_Rate = Annotated[float, ValueFormat("a number above 0", _number_above_0)]
_Probability = Annotated[float, ValueFormat("a number from 0 to 1", _probability)]
_RateOrNone = Annotated[float, ValueFormat("a number of 0 or more", _number_of_0_or_more)]
_PRICE = ValueFormat("a price of 0 or more", _price)
_Price = Annotated[Decimal, _PRICE]
_DURATION = ValueFormat('a duration such as "90s" or "5m"', _duration)
_Duration = Annotated[float, _DURATION]
_DAY = ValueFormat('a day such as "2027-01-31"', _end_of_day)
_PERIOD = ValueFormat('a duration above 0 such as "90s" or "5m"', _duration_above_0)
_Period = Annotated[float, _PERIOD]
_Bytes = Annotated[int, ValueFormat('a size such as "4GiB"', _size_bytes)]
_Word = Annotated[str, ValueFormat("a name without spaces", _word)]
_OptionalWord = Annotated[str, ValueFormat("a name without spaces", _word_or_nothing)]
_KubernetesName = Annotated[
    str, ValueFormat('a name of up to 63 characters "a-z", "0-9" and "-"', _kubernetes_name)
]
_Command = Annotated[str, ValueFormat("a command and its arguments, in one line", _command)]
_Host = Annotated[str, ValueFormat("a host name", _matching(NAME))]
_Path = Annotated[Path, ValueFormat("a path", _path)]
_Words = Annotated[tuple[str, ...], ValueFormat("a list of names separated by commas", _comma_list)]
_JoinedWords = Annotated[str, ValueFormat("a name, or a list of names separated by commas", _joined_list)]
_YesOrNo = Annotated[bool, ValueFormat("yes or no", _yes_or_no)]
_ZoneSubnets = Annotated[
    tuple[tuple[str, str], ...],
    ValueFormat('a list such as "us-east-1a:subnet-1, us-east-1b:subnet-2", one subnet per zone', _zone_subnets),
]

_InstanceUri = Annotated[
    str, ValueFormat('an instance\'s URI such as "ssh://HOST/PATH" or "local:///PATH"', _instance_uri)
]

_Billing = Annotated[
    float,
    ValueFormat(f'{", ".join(_BILLING_WINDOWS_S)} or a step such as "20s"', _billing_window_s),
]
_Properties = Annotated[
    frozenset[str],
    ValueFormat(f"a list of names separated by commas, without spaces and {PROPERTY_FORBIDDEN}", _properties),
]
_Slots = Annotated[tuple[SlotName, ...], ValueFormat('a host list such as "cloud[1-4]"', _names_of("slot"))]
_HostNames = Annotated[tuple[str, ...], ValueFormat('a host list such as "node[1-8]"', _names_of("host"))]
_DISRUPTION_MAX = ValueFormat('a number of nodes, or a share such as "10%"', _disruption_max)
_WINDOWS = ValueFormat(WINDOW_ALLOWED, read_windows)
_Windows = Annotated[tuple[Window, ...], _WINDOWS]


# --- the sections -----------------------------------------------------------------------------------------


class SectionSettings(BaseModel):
    """The keys of one section of a site."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class SiteSettings(SectionSettings):
    """The cluster, and whether the manager acts."""

    cluster: Annotated[str, ValueFormat('a name of 1 to 32 characters "a-z", "0-9" and "-"', _matching(_CLUSTER))]
    cluster_uuid: Annotated[str, ValueFormat("a UUID", _uuid)] = ""
    state_dir: _Path
    mode: Annotated[Mode, _one_of(Mode)] = Mode.OBSERVE
    currency: Annotated[str, ValueFormat('a code such as "EUR", or one symbol such as "$"', _currency)] = ""


class FluxSettings(SectionSettings):
    """The Flux instance, and how nodes join it."""

    uri: _OptionalWord = ""  # "" means FLUX_URI, or the system instance
    bridge: Annotated[Bridge, _one_of(Bridge)] = Bridge.AUTO
    head_host: _Host = "head"  # the leader's name in the bootstrap table
    head_address: Annotated[str, ValueFormat("a host name or IP address", _name_or_address)] = ""
    port: Annotated[int, _whole(1, 65_535)] = 8050
    join: Annotated[JoinMethod, _one_of(JoinMethod)] = JoinMethod.DIRECTORY
    bootstrap_dir: _Path = Path("flux")  # the output of ``init``; if a site does not give it, state_dir/flux
    head_cores: _Positive = 1
    image_start: _Command = 'hostnamectl set-hostname "$SLOT" && systemctl restart flux'  # with ``join = image``
    boot_server: _OptionalWord = ""  # with ``flub``: the URI at which nodes reach rank 0; "" means ``uri``
    restart_command: _Command = ""  # ``resize`` restarts rank 0 with it; "": stop it and wait for its supervisor

    @property
    def simulated(self) -> bool:
        """Whether the instance is simulated."""
        return self.uri == SIMULATED_URI


class CloudSettings(SectionSettings):
    """The provider, and the defaults of its nodes."""

    provider: Annotated[str, ValueFormat(" or ".join(PROVIDERS), _provider)]
    outer_uri: _OptionalWord = ""  # for ``flux``: "" means the instance that encloses the manager
    image: _OptionalWord = ""
    network: _JoinedWords = ""  # several are joined by ","
    zones: _Words = ()
    price_list: Annotated[Path | None, ValueFormat("a path", _path)] = None
    region: _OptionalWord = ""
    endpoint: Annotated[str, ValueFormat('"https://HOST" or "http://HOST:PORT"', _endpoint)] = ""
    subnets: _ZoneSubnets = ()
    security_groups: _Words = ()
    key_name: _OptionalWord = ""
    instance_profile: _OptionalWord = ""
    auth_url: Annotated[str, ValueFormat('an address such as "https://cloud.example:5000/v3"', _url)] = ""
    microversion: Annotated[str, ValueFormat('a version such as "2.52"', _matching(_MICROVERSION))] = "2.52"
    config_drive: _YesOrNo = False
    project: _OptionalWord = ""
    node_service_account: _OptionalWord = ""
    resource_group: _OptionalWord = ""
    ssh_public_key: Annotated[str, ValueFormat('a line such as "ssh-ed25519 AAAA..."', _matching(_PUBLIC_KEY))] = ""
    name: _KubernetesName = ""
    namespace: _KubernetesName = ""  # "" means that of the kubeconfig or of the manager's pod
    # None means the service account of the manager's pod.
    kubeconfig: Annotated[Path | None, ValueFormat("a path", _path)] = None
    owner: Annotated[SizeOwner, _one_of(SizeOwner)] = SizeOwner.US
    service: Annotated[str, ValueFormat('"HOST:PORT"', _tcp_address)] = ""
    service_material: _Path = Path("service")
    wake: _Command = ""
    sleep: _Command = ""
    probe: _Command = ""
    calls_in_flight_max: Annotated[int, _whole(1, 64)] = 8
    creates_per_s: _Rate = 5.0
    creates_burst: _Positive = 20
    nodes_per_call: Annotated[int, _whole(1, 1000)] = 500
    identity_certificate: Annotated[Path | None, ValueFormat("a path", _path)] = None
    boot_delay_s: _Duration = Field(default=0.0, validation_alias="boot_delay")
    call_timeout_s: _Period = Field(default=60.0, validation_alias="call_timeout")
    # None means only the limits of the whole site.
    nodes_max: Annotated[int | None, _whole(1)] = None
    price_per_hour_max: Annotated[Decimal | None, ValueFormat("a price of 0 or more", _price)] = None
    priority: Annotated[int, _whole(0, 9)] = 0
    # None means that it is unknown.
    egress_price_per_gib: Annotated[Decimal | None, ValueFormat("a price of 0 or more", _price)] = None
    per_day: Annotated[Decimal | None, _PRICE] = None
    per_month: Annotated[Decimal | None, _PRICE] = None


class LimitsSettings(SectionSettings):
    """The limits that no plan exceeds. ``nodes_max`` and ``price_per_hour_max`` must be given."""

    nodes_max: _Positive
    nodes_min: _Count = 0
    price_per_hour_max: _Price


class TimingSettings(SectionSettings):
    """Waits, periods and timeouts."""

    settle_s: _Duration = Field(default=1.0, validation_alias="settle")
    settle_max_s: _Duration = Field(default=10.0, validation_alias="settle_max")
    probe_s: _Period = Field(default=10.0, validation_alias="probe")
    relist_s: _Period = Field(default=60.0, validation_alias="relist")
    sweep_s: _Period = Field(default=600.0, validation_alias="sweep")
    boot_timeout_s: _Period = Field(default=900.0, validation_alias="boot_timeout")
    rejoin_timeout_s: _Period = Field(default=120.0, validation_alias="rejoin_timeout")
    stale_after_s: _Period = Field(default=180.0, validation_alias="stale_after")
    orphan_grace_s: _Duration = Field(default=600.0, validation_alias="orphan_grace")
    create_grace_s: _Duration = Field(default=120.0, validation_alias="create_grace")
    absences: _Positive = 3  # a node counts as gone once so many lists in a row lack it
    boot_retry_s: _Period = Field(default=900.0, validation_alias="boot_retry")
    safe_mode_max_s: _Period = Field(default=1800.0, validation_alias="safe_mode_max")
    housekeeping_max_s: _Period = Field(default=1800.0, validation_alias="housekeeping_max")
    manager_silence_max_s: _Period = Field(default=3600.0, validation_alias="manager_silence_max")


class PolicySettings(SectionSettings):
    """Rules for buying and retiring nodes."""

    idle_confirmations: _Positive = 2  # a node may be retired once so many looks in a row show it idle
    idle_timeout_s: _Duration = Field(default=300.0, validation_alias="idle_timeout")
    queue_policy: Annotated[QueuePolicy, _one_of(QueuePolicy)] = QueuePolicy.FIFO
    unserved: Annotated[Unserved, _one_of(Unserved)] = Unserved.HOLD_USERS
    stop_lead_s: _Duration = Field(default=60.0, validation_alias="stop_lead")  # before a billing window ends
    patience_s: _Duration = Field(default=0.0, validation_alias="patience")
    packing: Annotated[PackingPolicy, _one_of(PackingPolicy)] = PackingPolicy.SPREAD
    misfit: Annotated[Misfit, _one_of(Misfit)] = Misfit.DRAIN  # with ``local`` the default is accept
    foreign_drain: Annotated[ForeignDrain, _one_of(ForeignDrain)] = ForeignDrain.RETIRE
    foreign_drain_after_s: _Duration = Field(default=300.0, validation_alias="foreign_drain_after")
    boot_failures_max: _Positive = 3  # in a row, of a node type and image
    unready_max: _Probability = 0.5  # a share of the nodes that were up
    spot_share_max: _Probability = 1.0  # of all nodes
    spot_reclaims_assumed: _RateOrNone = 0.01  # of a spot node, until reclaims are measured
    consolidate: _YesOrNo = False
    consolidate_gain: Annotated[float, ValueFormat('a share such as "5%"', _share)] = 0.05
    drift: Annotated[Drift, _one_of(Drift)] = Drift.REPLACE
    wait_for_data: Annotated[str, ValueFormat("never or a property", _property_or_never)] = NEVER
    early_release: _YesOrNo = False
    data_max_s: _Period = Field(default=3600.0, validation_alias="data_max")
    burst: Annotated[Burst, _one_of(Burst)] = Burst.ASK
    delegate_to: Annotated[DelegateTo, _one_of(DelegateTo)] = DelegateTo.PEERS


class WebSettings(SectionSettings):
    """The web interface: status, control and the dashboard. ``load_site`` makes the paths absolute."""

    listen: Annotated[str, ValueFormat('"unix", "unix:PATH", "HOST:PORT" or "off"', _listen)] = "unix"
    token_file: _Path = Path("token")
    tokens_file: Annotated[Path | None, ValueFormat("a path", _path)] = None
    hosts: Annotated[
        tuple[str, ...], ValueFormat('a list of names such as "head.example" or "*.example", without ports', _hosts)
    ] = ()
    jobs_shown_to: Annotated[Viewers, _one_of(Viewers)] = Viewers.OWNER
    grpc_listen: Annotated[str, ValueFormat('"HOST:PORT" or "off"', _grpc_listen)] = "off"
    grpc_material: _Path = Path("grpc")
    grpc_plaintext: _YesOrNo = False

    @property
    def listens_beyond_this_machine(self) -> bool:
        """Whether other machines may reach the dashboard."""
        on_tcp = self.listen != "off" and not self.listen.startswith("unix")
        return on_tcp and not is_loopback(self.listen.rpartition(":")[0])

    @property
    def exposes_plaintext(self) -> bool:
        """Whether other machines would reach the gRPC service, which has neither TLS nor token."""
        served = self.grpc_plaintext and self.grpc_listen != "off"
        return served and not is_loopback(self.grpc_listen.rpartition(":")[0])


class BudgetSettings(SectionSettings):
    """The budgets; None means no such budget."""

    per_day: _Price | None = None
    per_month: _Price | None = None
    user_per_day: _Price | None = None
    user_per_month: _Price | None = None
    queue_per_day: _Price | None = None
    queue_per_month: _Price | None = None

    @property
    def limits(self) -> dict[tuple[str, str], Decimal]:
        """The given budgets, by account kind ("" for the site, "user", "queue") and period."""
        given = {
            ("", "day"): self.per_day,
            ("", "month"): self.per_month,
            ("user", "day"): self.user_per_day,
            ("user", "month"): self.user_per_month,
            ("queue", "day"): self.queue_per_day,
            ("queue", "month"): self.queue_per_month,
        }
        return {whose: limit for whose, limit in given.items() if limit is not None}


class DisruptionSettings(SectionSettings):
    """How many nodes upkeep may take out of service at once, and when it may begin with one."""

    nodes_or_share: Annotated[tuple[int | None, float], _DISRUPTION_MAX] = Field(
        default=(None, 0.1), validation_alias="max"
    )
    windows: _Windows = ()

    @property
    def disruption(self) -> Disruption:
        """The rule for the whole fleet."""
        return Disruption(*self.nodes_or_share, self.windows)


class ScheduleSettings(SectionSettings):
    """One ``[Schedule NAME]``: settings that apply within some windows of the week. None: as otherwise."""

    when: _Windows
    node_types: _Words = ()
    nodes_min: Annotated[int | None, _whole(0)] = None
    nodes_max: Annotated[int | None, _whole(0)] = None
    price_per_hour_max: Annotated[Decimal | None, _PRICE] = None
    spares: Annotated[int | None, _whole(0)] = None
    idle_timeout_s: Annotated[float | None, _DURATION] = Field(default=None, validation_alias="idle_timeout")


class NotifySettings(SectionSettings):
    """The command that tells operators what happened; "" runs none."""

    command: Annotated[str, ValueFormat("a command line", _command)] = ""
    events: Annotated[frozenset[NoticeKind], ValueFormat(f"a list of {', '.join(NoticeKind)}", _notice_kinds)] = (
        frozenset(NoticeKind)
    )


class JournalSettings(SectionSettings):
    """The history file."""

    size_max_bytes: Annotated[int, ValueFormat('a size of 1MiB or more such as "1GiB"', _size_of_a_mib_or_more)] = (
        Field(default=1024 * MIB, validation_alias="size_max")
    )


class SimulationSettings(SectionSettings):
    """The simulated cloud and the simulated Flux."""

    time_scale: _Rate = 1.0  # simulated seconds per second
    seed: _Count = 0
    workload: Annotated[str, ValueFormat("builtin", _builtin)] = "builtin"
    boot_delay_s: _Duration = Field(default=90.0, validation_alias="boot_delay")
    stop_delay_s: _Duration = Field(default=20.0, validation_alias="stop_delay")
    boot_failures: _Probability = 0.0
    spot_reclaims_per_hour: _RateOrNone = 0.0
    capacity: _Count = 0


class JoinSettings(SectionSettings):
    """How nodes join with ``[Flux] join = service``, and the settings that they get in their user-data."""

    listen: Annotated[str, ValueFormat('an address and a port such as "0.0.0.0:8443"', _host_and_port)] = (
        "0.0.0.0:8443"
    )
    # The addresses at which nodes reach the service; if a site gives none, head_address and the port of ``listen``.
    addresses: Annotated[
        tuple[str, ...], ValueFormat("a list of host:port separated by commas", _hosts_and_ports)
    ] = ()
    material_dir: _Path = Path("join")  # if a site does not give it, state_dir/join
    flux_version: _OptionalWord = ""  # "" means the version of the flux on the service's PATH
    check_source: _YesOrNo = False
    destroy_on_replay: _YesOrNo = False
    renew_s: _Period = Field(default=10.0, validation_alias="renew")
    requests_per_s: _Rate = 20.0  # for each source address
    requests_burst: _Positive = 200
    # The rest is for the node, in its user-data.
    client: _OptionalWord = ""  # the path of flux-node-join in the image; "": fetch it from the service
    flux: _Word = "flux"
    node_user: _OptionalWord = ""  # "" means the user that runs the user-data
    node_dir: _Path = Path("/var/lib/flux-node-join")
    hosts_file: _Path = Path("/etc/hosts")
    poweroff: Annotated[str, ValueFormat("a shell command in one line", _command_line)] = "poweroff"
    systemd: _YesOrNo = True


class NodeSettings(SectionSettings):
    """One ``[Node NAME]``. ``size`` defaults to NAME; ``image``, ``zones``, ``network``, ... to ``[Cloud]``."""

    size: _OptionalWord = ""
    sizes: Annotated[
        tuple[str, ...], ValueFormat('a list of sizes and patterns such as "c7i.4xlarge, c7a.*"', _comma_list)
    ] = ()
    cores: _Positive
    gpus: _Count = 0
    memory_bytes: _Bytes = Field(validation_alias="memory")
    price_per_hour: Annotated[Decimal | None, ValueFormat("a price of 0 or more", _price)] = (
        None  # must be given, unless the price list has all sizes
    )
    billing_window_s: _Billing = Field(default=3600.0, validation_alias="billing")
    billing_minimum_s: _Duration = Field(default=0.0, validation_alias="billing_minimum")
    spot_price_per_hour: Annotated[Decimal | None, ValueFormat("a price of 0 or more", _price)] = None
    market: Annotated[Market | None, ValueFormat("on-demand or spot or any", _market)] = (
        Market.ON_DEMAND
    )  # None: any
    properties: _Properties = frozenset()
    slots: _Slots
    hosts: _HostNames = ()
    placement: Annotated[NodePlacement, _one_of(NodePlacement)] = NodePlacement.ANYWHERE
    only_for: Annotated[OnlyFor | None, _one_of(OnlyFor)] = None  # None: gpu, but rather than no job at all, any
    spares: _Count = 0
    prepaid: _Count = 0
    prepaid_until_at: Annotated[float, _DAY] = Field(default=0.0, validation_alias="prepaid_valid_until")
    price_until_at: Annotated[float, _DAY] = Field(default=0.0, validation_alias="price_valid_until")
    max_age_s: Annotated[float | None, _PERIOD] = Field(default=None, validation_alias="max_age")
    disruption_max: Annotated[tuple[int | None, float] | None, _DISRUPTION_MAX] = None
    disruption_windows: Annotated[tuple[Window, ...] | None, _WINDOWS] = None  # None means those of [Disruption]
    mode: Annotated[Mode | None, _one_of(Mode)] = None  # None means the site's mode
    cloud: _OptionalWord = ""
    image: _OptionalWord = ""
    zones: _Words = ()
    network: _JoinedWords = ""  # several are joined by ","
    subnets: _ZoneSubnets = ()
    security_groups: _Words = ()
    key_name: _OptionalWord = ""
    instance_profile: _OptionalWord = ""

    @property
    def billing(self) -> Billing:
        """How the provider charges for a node of this type."""
        return Billing(self.billing_window_s, self.billing_minimum_s)


class PeerSettings(SectionSettings):
    """One ``[Peer NAME]``: another Flux instance that jobs of this one may run in."""

    uri: _InstanceUri
    price_per_core_hour: _Price = Decimal(0)
    jobs_max: _Positive = 1000
    output_max_bytes: _Bytes = Field(default=10 * MIB, validation_alias="output_max")


class EnsembleSettings(SectionSettings):
    """One ``[Ensemble NAME]``: an ensemble that the service runs."""

    file: _Path
    weight: _Rate = 1.0
    nodes_min: _Count = 0
    nodes_max: _Positive | None = None
    per_day: _Price | None = None
    allow_custom: _YesOrNo = False


def allowed_keys(settings: type[SectionSettings]) -> dict[str, str]:
    """List a section's keys in order, with the description of the allowed values of each."""
    return {
        str(field.validation_alias or name): next(
            (written.allowed for written in field.metadata if isinstance(written, ValueFormat)), ""
        )
        for name, field in settings.model_fields.items()
    }
