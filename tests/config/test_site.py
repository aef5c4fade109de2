from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from unittest.mock import ANY

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.middleware.trustedhost import TrustedHostMiddleware

from nodemanager.config.defaults import with_default_misfit
from nodemanager.config.load import load_site
from nodemanager.config.site import (
    ConfigError,
    Fault,
    Mode,
    Site,
    name_file,
    site_warnings,
    uuid_file,
)
from nodemanager.config.text.providers import PROVIDERS
from nodemanager.config.text.settings import (
    BudgetSettings,
    CloudSettings,
    DisruptionSettings,
    EnsembleSettings,
    FluxSettings,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    NodeSettings,
    NotifySettings,
    PolicySettings,
    SectionSettings,
    SimulationSettings,
    SiteSettings,
    TimingSettings,
    Viewers,
    WebSettings,
    allowed_keys,
)
from nodemanager.core.slots import Billing, ForeignDrain, Market, Misfit, NodeType, OnlyFor, SlotName, TypeName
from tests.paths import CONFIG

# The variables that the examples name.
ENVIRONMENT = {"OS_APPLICATION_CREDENTIAL_SECRET": "secret", "AZURE_CLIENT_SECRET": "secret"}

# Section -> key -> text: the keys that a site must give.
LEAST: Mapping[str, Mapping[str, str]] = {
    "Site": {"cluster": "lab", "state_dir": "state"},
    "Flux": {"head_address": "10.0.0.1"},
    "Cloud": {"provider": "local"},
    "Limits": {"nodes_max": "4", "price_per_hour_max": "10"},
    "Node cpu": {"cores": "4", "memory": "8GiB", "price_per_hour": "0.25", "slots": "cpu[1-4]"},
}


def text_of(*changes: tuple[str, str, str | None]) -> str:
    """The smallest site, with some keys changed, added, or (None) removed."""
    sections = {name: dict(keys) for name, keys in LEAST.items()}
    for section, key, text in changes:
        keys = sections.setdefault(section, {})
        keys.pop(key, None)
        if text is not None:
            keys[key] = text
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {text}\n" for key, text in keys.items())
        for name, keys in sections.items()
    )


def site_of(
    folder: Path, *changes: tuple[str, str, str | None], environment: Mapping[str, str] | None = None
) -> Site:
    (folder / "site.ini").write_text(text_of(*changes), encoding="utf-8")
    return load_site(folder / "site.ini", environment or {})


def faults_of(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> tuple[Fault, ...]:
    (folder / "site.ini").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_site(folder / "site.ini", environment or {})
    return refused.value.faults


def the_fault(folder: Path, *changes: tuple[str, str, str | None]) -> Fault:
    (fault,) = faults_of(folder, text_of(*changes))
    return fault


# --- which types act ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "node", "acts", "told"),
    [
        (None, None, False, "observe"),
        ("act", None, True, "act"),
        (None, "act", True, "act (gpu only observed)"),
        ("act", "observe", True, "act (cpu only observed)"),
    ],
)
def test_a_node_type_may_act_or_be_observed_by_itself(
    tmp_path: Path, site: str | None, node: str | None, acts: bool, told: str
) -> None:
    another = [("Node gpu", key, text) for key, text in LEAST["Node cpu"].items() if key != "slots"]
    read = site_of(
        tmp_path, ("Site", "mode", site), ("Node cpu", "mode", node), *another, ("Node gpu", "slots", "gpu1")
    )
    assert (read.acts, read.mode_text) == (acts, told)


def test_a_type_without_gpus_is_not_kept_for_jobs_that_ask_for_them(tmp_path: Path) -> None:
    fault = the_fault(tmp_path, ("Node cpu", "only_for", "gpu"))
    assert (fault.key, fault.problem) == ("only_for", "the type has no GPUs: give gpus, or remove the key")
    (read,) = site_of(tmp_path, ("Node cpu", "only_for", "gpu"), ("Node cpu", "gpus", "1")).node_types
    assert read.only_for is OnlyFor.GPU


# --- what is read -----------------------------------------------------------------------------------------


def test_the_least_site_has_every_default(tmp_path: Path) -> None:
    assert site_of(tmp_path) == Site(
        path=tmp_path / "site.ini",
        cluster="lab",
        cluster_uuid="",
        state_dir=tmp_path / "state",
        mode=Mode.OBSERVE,
        flux=FluxSettings(head_address="10.0.0.1", bootstrap_dir=tmp_path / "state" / "flux"),
        cloud=CloudSettings(provider="local", service_material=tmp_path / "service"),
        credentials={},
        limits=LimitsSettings(nodes_max=4, price_per_hour_max=Decimal(10)),
        timing=TimingSettings(),
        policy=PolicySettings(misfit=Misfit.ACCEPT),
        join=JoinSettings(
            addresses=("10.0.0.1:8443",),
            material_dir=tmp_path / "state" / "join",
            node_dir=Path("flux-node-join"),
            hosts_file=Path("hosts"),
            poweroff='kill -KILL "$FLUX_NODE_JOIN_PARENT"',
            systemd=False,
        ),
        budget=BudgetSettings(),
        disruption=DisruptionSettings(),
        web=WebSettings(
            listen=f"unix:{tmp_path}/state/web.sock",
            token_file=tmp_path / "state" / "token",
            grpc_material=tmp_path / "state" / "grpc",
        ),
        journal=JournalSettings(),
        notify=NotifySettings(),
        simulation=SimulationSettings(),
        node_types=(
            NodeType(
                name=TypeName("cpu"),
                size="cpu",
                cores=4,
                gpus=0,
                memory_bytes=2**33,
                price_per_hour=Decimal("0.25"),
                billing=Billing(3600.0),
                slots=(SlotName("cpu1"), SlotName("cpu2"), SlotName("cpu3"), SlotName("cpu4")),
                made_from=ANY,  # a digest of settings with the path of this test
            ),
        ),
        networks={TypeName("cpu"): ""},
        peers={},
        ensembles={},
        schedules={},
        nodes={
            TypeName("cpu"): NodeSettings(
                cores=4,
                memory_bytes=2**33,
                price_per_hour=Decimal("0.25"),
                slots=(SlotName("cpu1"), SlotName("cpu2"), SlotName("cpu3"), SlotName("cpu4")),
            )
        },
    )


# Section, key, text, the field of the section's settings, its value.
READ: list[tuple[str, str, str, str, object]] = [
    ("Flux", "uri", "ssh://boss", "uri", "ssh://boss"),
    ("Flux", "head_host", "boss", "head_host", "boss"),
    ("Flux", "port", "9000", "port", 9000),
    ("Flux", "join", "directory", "join", "directory"),
    ("Flux", "bootstrap_dir", "/shared/flux", "bootstrap_dir", Path("/shared/flux")),
    ("Flux", "head_cores", "8", "head_cores", 8),
    ("Cloud", "image", "img-1", "image", "img-1"),
    ("Cloud", "network", "net-1", "network", "net-1"),
    ("Cloud", "zones", "a, b", "zones", ("a", "b")),
    ("Cloud", "calls_in_flight_max", "2", "calls_in_flight_max", 2),
    ("Cloud", "creates_per_s", "0.5", "creates_per_s", 0.5),
    ("Cloud", "creates_burst", "3", "creates_burst", 3),
    ("Cloud", "boot_delay", "2s", "boot_delay_s", 2.0),
    ("Cloud", "call_timeout", "1h30m", "call_timeout_s", 5400.0),
    ("Limits", "nodes_min", "1", "nodes_min", 1),
    ("Limits", "price_per_hour_max", "0", "price_per_hour_max", Decimal(0)),
    ("Timing", "settle", "500ms", "settle_s", 0.5),
    ("Timing", "settle_max", "20s", "settle_max_s", 20.0),
    ("Timing", "probe", "5s", "probe_s", 5.0),
    ("Timing", "relist", "30s", "relist_s", 30.0),
    ("Timing", "boot_timeout", "5m", "boot_timeout_s", 300.0),
    ("Timing", "stale_after", "90s", "stale_after_s", 90.0),
    ("Timing", "orphan_grace", "0s", "orphan_grace_s", 0.0),
    ("Timing", "create_grace", "1m", "create_grace_s", 60.0),
    ("Timing", "absences", "5", "absences", 5),
    ("Timing", "boot_retry", "5m", "boot_retry_s", 300.0),
    ("Timing", "safe_mode_max", "1h", "safe_mode_max_s", 3600.0),
    ("Timing", "housekeeping_max", "10m", "housekeeping_max_s", 600.0),
    ("Timing", "manager_silence_max", "1d", "manager_silence_max_s", 86_400.0),
    ("Policy", "idle_confirmations", "1", "idle_confirmations", 1),
    ("Policy", "idle_timeout", "30s", "idle_timeout_s", 30.0),
    ("Policy", "boot_failures_max", "5", "boot_failures_max", 5),
    ("Policy", "unready_max", "0.3", "unready_max", 0.3),
    ("Policy", "stop_lead", "2m", "stop_lead_s", 120.0),
    ("Policy", "misfit", "retype", "misfit", Misfit.RETYPE),
    ("Policy", "foreign_drain", "hold", "foreign_drain", ForeignDrain.HOLD),
    ("Policy", "foreign_drain_after", "2m", "foreign_drain_after_s", 120.0),
    ("Flux", "image_start", 'start "$SLOT"', "image_start", 'start "$SLOT"'),
    ("Flux", "boot_server", "ssh://head/run/flux/local", "boot_server", "ssh://head/run/flux/local"),
    ("Join", "listen", "127.0.0.1:9443", "listen", "127.0.0.1:9443"),
    ("Join", "listen", "[fd00::5]:9443", "listen", "[fd00::5]:9443"),
    ("Join", "addresses", "a.example:1, 10.0.0.2:2", "addresses", ("a.example:1", "10.0.0.2:2")),
    ("Join", "material_dir", "/srv/join", "material_dir", Path("/srv/join")),
    ("Join", "flux_version", "0.88.0", "flux_version", "0.88.0"),
    ("Join", "check_source", "yes", "check_source", True),
    ("Join", "destroy_on_replay", "yes", "destroy_on_replay", True),
    ("Join", "renew", "30s", "renew_s", 30.0),
    ("Join", "requests_per_s", "5", "requests_per_s", 5.0),
    ("Join", "requests_burst", "7", "requests_burst", 7),
    ("Join", "client", "/usr/bin/flux-node-join", "client", "/usr/bin/flux-node-join"),
    ("Join", "flux", "/opt/flux/bin/flux", "flux", "/opt/flux/bin/flux"),
    ("Join", "node_user", "flux", "node_user", "flux"),
    ("Join", "node_dir", "/srv/node", "node_dir", Path("/srv/node")),
    ("Join", "hosts_file", "/srv/hosts", "hosts_file", Path("/srv/hosts")),
    ("Join", "poweroff", "halt -p", "poweroff", "halt -p"),
    ("Join", "systemd", "yes", "systemd", True),
    ("Web", "listen", "off", "listen", "off"),
    ("Web", "listen", "unix:/run/fnm.sock", "listen", "unix:/run/fnm.sock"),
    ("Web", "listen", "[::1]:8080", "listen", "[::1]:8080"),
    ("Web", "token_file", "/etc/fnm/token", "token_file", Path("/etc/fnm/token")),
    ("Web", "hosts", "head, head.example.org", "hosts", ("head", "head.example.org")),
    ("Web", "jobs_shown_to", "everybody", "jobs_shown_to", Viewers.EVERYBODY),
    ("Web", "grpc_listen", "head.example:50051", "grpc_listen", "head.example:50051"),
    ("Web", "grpc_listen", "off", "grpc_listen", "off"),
    ("Web", "grpc_material", "/etc/fnm/grpc", "grpc_material", Path("/etc/fnm/grpc")),
    ("Web", "grpc_plaintext", "yes", "grpc_plaintext", True),
    ("Simulation", "time_scale", "60", "time_scale", 60.0),
    ("Simulation", "seed", "7", "seed", 7),
    ("Simulation", "workload", "builtin", "workload", "builtin"),
    ("Simulation", "boot_delay", "10s", "boot_delay_s", 10.0),
    ("Simulation", "stop_delay", "1s", "stop_delay_s", 1.0),
]


@pytest.mark.parametrize(("section", "key", "text", "field", "value"), READ)
def test_a_key_is_read_into_its_field(
    tmp_path: Path, section: str, key: str, text: str, field: str, value: object
) -> None:
    assert getattr(getattr(site_of(tmp_path, (section, key, text)), section.lower()), field) == value


def test_the_site_section_is_read(tmp_path: Path) -> None:
    known = str(uuid.UUID(int=7))
    site = site_of(
        tmp_path, ("Site", "mode", "act"), ("Site", "cluster_uuid", known.upper()), ("Site", "state_dir", "/a/../b")
    )
    assert (site.mode, site.cluster_uuid, site.state_dir) == (Mode.ACT, known, Path("/b"))


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("size", "c5.large", "size", "c5.large"),
        ("gpus", "2", "gpus", 2),
        ("market", "spot", "market", Market.SPOT),
        ("properties", "fast, big", "properties", frozenset({"fast", "big"})),
        ("billing", "hourly", "billing", Billing(3600.0)),
        ("billing", "per-minute", "billing", Billing(60.0)),
        ("billing", "per-second", "billing", Billing(1.0)),
        ("billing", "free", "billing", Billing(0.0)),
        ("billing", "20s", "billing", Billing(20.0)),
        ("billing_minimum", "1m", "billing", Billing(3600.0, 60.0)),
        ("image", "img-2", "image", "img-2"),
        ("zones", "c", "zones", ("c",)),
        ("slots", "b,\n  a[1-2]", "slots", ("b", "a1", "a2")),
    ],
)
def test_a_key_of_a_node_type_is_read(tmp_path: Path, key: str, text: str, field: str, value: object) -> None:
    (node_type,) = site_of(tmp_path, ("Node cpu", key, text)).node_types
    assert getattr(node_type, field) == value


def test_a_node_type_has_the_image_zones_and_network_of_the_cloud_unless_it_names_its_own(tmp_path: Path) -> None:
    gpu = {**LEAST["Node cpu"], "slots": "gpu1", "image": "img-2", "zones": "z2", "network": "net-2"}
    site = site_of(
        tmp_path,
        ("Cloud", "image", "img-1"),
        ("Cloud", "zones", "z1"),
        ("Cloud", "network", "net-1"),
        *(("Node gpu", key, text) for key, text in gpu.items()),
    )
    assert [(node.image, node.zones) for node in site.node_types] == [("img-1", ("z1",)), ("img-2", ("z2",))]
    assert site.networks == {"cpu": "net-1", "gpu": "net-2"}
    assert site.slots == ("cpu1", "cpu2", "cpu3", "cpu4", "gpu1")


def test_a_relative_socket_and_folder_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "site.ini").write_text(
        text_of(("Flux", "uri", "local://../run/flux"), ("Flux", "bootstrap_dir", "../shared"))
    )
    monkeypatch.chdir(tmp_path)
    flux = load_site("etc/site.ini", {}).flux
    assert (flux.uri, flux.bootstrap_dir) == (f"local://{tmp_path}/run/flux", tmp_path / "shared")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        "unix:",
        "head",
        "head:0",
        "head:70000",
        "http://head:80",
        "a@b:80",
        "a..b:80",
        "a b:80",
        "x" * 64 + ":80",
    ],
)
def test_where_to_listen_is_a_socket_or_a_host_with_its_port(tmp_path: Path, text: str) -> None:
    assert the_fault(tmp_path, ("Web", "listen", text)).problem.startswith('"unix", "unix:PATH", "HOST:PORT"')


@pytest.mark.parametrize(
    ("head_address", "listen", "addresses"),
    [
        ("10.0.0.5", "0.0.0.0:8443", ("10.0.0.5:8443",)),
        ("localhost", "127.0.0.1:8443", ("localhost:8443",)),
        ("fd00::5", "[::]:8443", ("[fd00::5]:8443",)),
        ("::1", "[::1]:8443", ("[::1]:8443",)),
    ],
)
def test_the_join_service_is_where_rank_0_is(
    tmp_path: Path, head_address: str, listen: str, addresses: tuple[str, ...]
) -> None:
    join = site_of(tmp_path, ("Flux", "head_address", head_address)).join
    assert (join.listen, join.addresses) == (listen, addresses)


def test_a_workload_that_does_not_exist_is_a_fault(tmp_path: Path) -> None:
    assert the_fault(tmp_path, ("Simulation", "workload", "nosuch.toml")).problem == "builtin is needed"


def test_grpc_without_tls_is_for_the_loopback_interface_only(tmp_path: Path) -> None:
    plaintext = ("Web", "grpc_plaintext", "yes")
    for address in ("127.0.0.1:50051", "localhost:50051", "[::1]:50051", "off"):
        assert site_of(tmp_path, plaintext, ("Web", "grpc_listen", address)).web.grpc_listen == address
    for address in ("0.0.0.0:50051", "head.example:50051", "[::]:50051"):
        fault = the_fault(tmp_path, plaintext, ("Web", "grpc_listen", address))
        assert (fault.key, "loopback" in fault.problem) == ("grpc_plaintext", True)
    assert the_fault(tmp_path, ("Web", "grpc_listen", "unix:/x")).problem.startswith('"HOST:PORT" or "off"')


@pytest.mark.parametrize("text", ["foo.*", "*foo", "a b", "head:8080", "http://head", "*.*", "a, ,b", "[head]"])
def test_hosts_are_names_without_ports(tmp_path: Path, text: str) -> None:
    assert the_fault(tmp_path, ("Web", "hosts", text)).problem.startswith("a list of names such as")


def test_hosts_may_be_addresses_and_whole_domains(tmp_path: Path) -> None:
    hosts = ("head", "head.example", "*.example", "10.0.0.1", "[fe80::1]", "*")
    web = site_of(tmp_path, ("Web", "hosts", ", ".join(hosts))).web
    assert web.hosts == hosts
    TrustedHostMiddleware(lambda *_: None, web.hosts)  # type: ignore[arg-type]


def test_a_socket_of_one_s_own_is_relative_to_the_file_and_the_token_lies_with_the_state(tmp_path: Path) -> None:
    web = site_of(tmp_path, ("Web", "listen", "unix:run/web.sock")).web
    assert (web.listen, web.token_file) == (f"unix:{tmp_path}/run/web.sock", tmp_path / "state" / "token")


def test_variables_are_expanded_everywhere(tmp_path: Path) -> None:
    site = site_of(
        tmp_path, ("Site", "state_dir", "${ROOT}/${NAME}/$x"), environment={"ROOT": "/srv", "NAME": "${ROOT}"}
    )
    assert site.state_dir == Path("/srv/${ROOT}/$x")


@pytest.mark.parametrize("example", sorted(CONFIG.glob("*.ini")), ids=lambda path: path.name)
def test_every_example_loads_without_a_warning(example: Path) -> None:
    assert site_warnings(load_site(example, ENVIRONMENT)) == ()


def test_there_are_examples() -> None:
    assert {"local.ini", "embedded.ini", "ec2.ini"} <= {path.name for path in CONFIG.glob("*.ini")}


# --- what is refused --------------------------------------------------------------------------------------

SECTIONS: Mapping[str, type[SectionSettings]] = {
    "Site": SiteSettings,
    "Flux": FluxSettings,
    "Cloud": CloudSettings,
    "Limits": LimitsSettings,
    "Timing": TimingSettings,
    "Policy": PolicySettings,
    "Web": WebSettings,
    "Simulation": SimulationSettings,
    "Node cpu": NodeSettings,
}
BAD = "a b\n  !"  # no key allows this, except for paths
PATHS = {"state_dir", "bootstrap_dir", "token_file", "tokens_file", "kubeconfig"}


@pytest.mark.parametrize(
    ("section", "key"), [(name, key) for name in SECTIONS for key in allowed_keys(SECTIONS[name])]
)
def test_every_key_refuses_what_it_does_not_allow_and_says_what_it_does(
    tmp_path: Path, section: str, key: str
) -> None:
    fault = the_fault(tmp_path, (section, key, "" if key in PATHS else BAD))
    allowed = allowed_keys(SECTIONS[section])[key]
    assert (fault.section, fault.key, fault.value) == (section, key, "" if key in PATHS else "a b\n!")
    assert fault.problem.startswith(("column ", f"{allowed} is needed", '"!" is no slot', '"!" is no host'))


@pytest.mark.parametrize(
    ("section", "key", "text", "problem"),
    [
        ("Site", "cluster", "UPPER", 'a name of 1 to 32 characters "a-z", "0-9" and "-" is needed'),
        ("Site", "cluster", "x" * 33, 'a name of 1 to 32 characters "a-z", "0-9" and "-" is needed'),
        ("Site", "mode", "Act", "observe or act is needed"),
        ("Flux", "port", "65536", "a whole number from 1 to 65535 is needed"),
        ("Flux", "head_address", "tcp://boss", "a host name or IP address is needed"),
        ("Flux", "head_address", "[fd00::5]", "a host name or IP address is needed"),
        ("Flux", "head_address", "fe80::5%eth0", "a host name or IP address is needed"),
        ("Join", "listen", "fd00::5:9443", 'an address and a port such as "0.0.0.0:8443" is needed'),
        ("Limits", "nodes_max", "ten", "a whole number of 1 or more is needed"),
        ("Limits", "nodes_max", "0", "a whole number of 1 or more is needed"),
        ("Limits", "nodes_max", "-1", "a whole number of 1 or more is needed"),
        ("Limits", "nodes_max", "1_0", "a whole number of 1 or more is needed"),
        ("Limits", "price_per_hour_max", "-1", "a price of 0 or more is needed"),
        ("Limits", "price_per_hour_max", "NaN", "a price of 0 or more is needed"),
        ("Limits", "price_per_hour_max", "1e9", "a price of 0 or more is needed"),
        ("Cloud", "creates_per_s", "0", "a number above 0 is needed"),
        ("Cloud", "zones", "a,,b", "a list of names separated by commas is needed"),
        ("Timing", "probe", "0s", 'a duration above 0 such as "90s" or "5m" is needed'),
        ("Timing", "settle", "5 minutes", "column 2: a unit is needed: ms, s, m, h or d"),
        ("Timing", "settle", "infinity", "a duration of at most ten years is needed"),
        (
            "Node cpu",
            "memory",
            "4G",
            'column 2: the unit must be one of B, KiB, MiB, GiB, TiB; did you mean "4GiB"?',
        ),
        ("Node cpu", "billing", "0s", 'hourly, per-minute, per-second, free or a step such as "20s" is needed'),
        ("Node cpu", "slots", "", 'a host list such as "cloud[1-4]" is needed'),
        ("Node cpu", "slots", "a[1-2],a2", 'slot "a2" is listed twice: list it once'),
        ("Node cpu", "slots", "a[1-2", 'column 2: this "[" has no "]"'),
        (
            "Node cpu",
            "properties",
            "a|b",
            "a list of names separated by commas, without spaces and !&'\"^`|() is needed",
        ),
    ],
)
def test_a_refusal_says_what_is_allowed(tmp_path: Path, section: str, key: str, text: str, problem: str) -> None:
    assert the_fault(tmp_path, (section, key, text)).problem == problem


@pytest.mark.parametrize(
    ("section", "key"), [(name, key) for name, keys in LEAST.items() for key in keys if key != "head_address"]
)
def test_a_key_that_must_be_given_is_missed_at_its_section(tmp_path: Path, section: str, key: str) -> None:
    text = text_of((section, key, None))
    (fault,) = faults_of(tmp_path, text)
    assert (fault.section, fault.key, fault.value) == (section, key, None)
    assert fault.problem == f"must be given: {allowed_keys(SECTIONS[section])[key]}"
    assert text.splitlines()[fault.line - 1] == f"[{section}]"


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        (
            [("Flux", "head_address", None)],
            "head_address",
            "must be given: the address at which nodes reach rank 0",
        ),
        (
            [("Cloud", "provider", "simulated")],
            "provider",
            "a simulated cloud has no nodes for a real Flux: choose another provider",
        ),
        (
            [("Flux", "join", "service"), ("Cloud", "provider", "flux"), ("Join", "check_source", "yes")],
            "check_source",
            "provider = flux gives only the names of its nodes: write no",
        ),
        ([("Limits", "nodes_min", "5")], "nodes_min", "must not be above nodes_max = 4"),
        ([("Timing", "settle", "11s")], "settle", "must not be longer than settle_max"),
        (
            [("Timing", "stale_after", "60s")],
            "stale_after",
            "must be longer than probe and relist, or all data is stale",
        ),
        (
            [("Flux", "head_host", "cpu3")],
            "slots",
            'slot "cpu3" is already the name of the leader (head_host): give it another name',
        ),
        (
            [("Node gpu", key, text) for key, text in {**LEAST["Node cpu"], "slots": "cpu[4-9]"}.items()],
            "slots",
            'slot "cpu4" is already a slot of [Node cpu]: give it another name',
        ),
    ],
)
def test_two_keys_that_contradict_each_other_are_refused(
    tmp_path: Path, changes: list[tuple[str, str, str | None]], key: str, problem: str
) -> None:
    fault = the_fault(tmp_path, *changes)
    assert (fault.key, fault.problem) == (key, problem)


@pytest.mark.parametrize("provider", ["local", "ec2"])
def test_a_local_cloud_accepts_misfits(provider: str) -> None:
    site = PolicySettings()
    judged = with_default_misfit(site, CloudSettings(provider=provider))
    assert judged.misfit is (Misfit.ACCEPT if provider == "local" else Misfit.DRAIN)


def test_by_flub_all_slots_are_of_one_type(tmp_path: Path) -> None:
    second = [("Node gpu", key, value) for key, value in (("cores", "1"), ("memory", "1GiB"), ("slots", "gpu1"))]
    fault = the_fault(
        tmp_path,
        ("Flux", "join", "flub"),
        *second,
        ("Node gpu", "price_per_hour", "1"),
    )
    assert (fault.section, fault.key) == ("Flux", "join")
    assert "one [Node NAME]" in fault.problem


def test_a_simulated_flux_needs_no_address_and_goes_with_any_cloud(tmp_path: Path) -> None:
    simulated = ("Flux", "uri", "simulated"), ("Flux", "head_address", None)
    assert site_of(tmp_path, *simulated).flux.simulated
    assert site_of(tmp_path, *simulated, ("Cloud", "provider", "simulated")).cloud.provider == "simulated"


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ("Limits", "node_max", "nodes_max"),
        ("Limits", "Nodes_Min", "nodes_min"),
        ("Timing", "boot_time_out", "boot_timeout"),
        ("Timing", "settle_s", "settle"),
        ("Node cpu", "price", "price_per_hour"),
        ("Node cpu", "xyzzy", ""),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    tmp_path: Path, section: str, key: str, nearest: str
) -> None:
    fault = the_fault(tmp_path, (section, key, "1"))
    assert (fault.section, fault.key, fault.value, fault.nearest) == (section, key, None, nearest)
    assert (f'did you mean "{nearest}"?' if nearest else "the keys are size, sizes, cores") in str(fault)


@pytest.mark.parametrize(
    ("section", "nearest"),
    [("limits", "Limits"), ("Nodes gpu", "Node gpu"), ("Cloud Credential", "Cloud Credentials"), ("Xyzzy", "")],
)
def test_an_unknown_section_is_refused_with_the_nearest_known_one(
    tmp_path: Path, section: str, nearest: str
) -> None:
    fault = the_fault(tmp_path, (section, "secret", "hunter2"))
    assert (fault.section, fault.nearest) == (section, nearest)
    assert "hunter2" not in str(fault)


def test_a_node_type_needs_a_good_name(tmp_path: Path) -> None:
    text = text_of().replace("[Node cpu]", "[Node a b]")
    (fault,) = faults_of(tmp_path, text)
    assert "[Node NAME] needs a name" in fault.problem


def test_all_faults_are_reported_at_once_each_at_its_line(tmp_path: Path) -> None:
    text = """stray = 1
[Site]
cluster = lab
state_dir = ${NOWHERE}
[Limits]
nodes_max = 10
nodes_max = ten
price_per_hour_max = cheap
[Flux]
this is no key
head_adress = 10.0.0.1
= no key
[Limits]
nodes_mni = 0
[Node cpu]
cores = 0
memory = 8GiB
price_per_hour =
slots = head
"""
    faults = faults_of(tmp_path, text)
    file = tmp_path / "site.ini"
    assert [str(fault).removeprefix(str(file)) for fault in faults] == [
        f": [Cloud] provider: must be given: {' or '.join(PROVIDERS)}",
        ":1: stray: this key must be in a [Section]",
        ":4: [Site] state_dir: the environment variable NOWHERE is not set: set it, or correct its name",
        ":7: [Limits] nodes_max: this key is already given at line 6: remove one",
        ':7: [Limits] nodes_max = "ten": a whole number of 1 or more is needed',
        ':8: [Limits] price_per_hour_max = "cheap": a price of 0 or more is needed',
        ":9: [Flux] head_address: must be given: the address at which nodes reach rank 0",
        ':10: a "[Section]", a "key = value" or a comment is needed',
        ':11: [Flux] head_adress: no such key; did you mean "head_address"?',
        ':12: a "[Section]", a "key = value" or a comment is needed',
        ":13: [Limits]: this section already begins at line 5: merge the two",
        ':14: [Limits] nodes_mni: no such key; did you mean "nodes_min"?',
        ':16: [Node cpu] cores = "0": a whole number of 1 or more is needed',
        ':18: [Node cpu] price_per_hour = "": a price of 0 or more is needed',
    ]


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("Web", "command = /x/post-to-chat {}"),
        ("Web", "listen = {}"),
        ("Web", "hosts = a b {}"),
        ("Notify", "webhook = {}"),
        ("Notify", "commnd = /x/post-to-chat {}"),
        ("Notify", "events = {}"),
        ("Site", "pass = hunter2"),
        ("Site", "hook = {}"),
        ("Nowhere", "hook = {}"),
        ("Nowhere", "{}"),
        ("Site", "{} = 1"),
        ("Limits", "nodes_max = {}"),
        ("Cloud", "auth_url = {} {}"),
    ],
)
@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.example.org/services/T0/hunter2",
        "https://example.org?token-hunter2",
        "HTTPS://ada:hunter2@example.org",
        "http://hunter2@example.org/",
    ],
)
def test_no_fault_shows_a_secret_wherever_it_was_written(
    tmp_path: Path, section: str, line: str, address: str
) -> None:
    faults = faults_of(tmp_path, f"[{section}]\n{line.format(address, address)}\n")
    assert any(fault.line for fault in faults)
    assert "hunter2" not in "\n".join(map(str, faults))


def test_a_fault_still_shows_the_host_of_an_address(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, "[Web]\nlisten = https://head.example:5/x/y\n")
    assert ':2: [Web] listen = "https://head.example:5/…": "unix"' in "\n".join(map(str, faults))


def test_the_error_is_one_line_for_each_fault(tmp_path: Path) -> None:
    (tmp_path / "site.ini").write_text("[Site]\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load_site(tmp_path / "site.ini")
    assert str(refused.value).splitlines() == [str(fault) for fault in refused.value.faults]


def test_a_site_without_a_node_type_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, text_of().partition("[Node cpu]")[0])
    assert str(fault) == f"{tmp_path}/site.ini: at least one [Node NAME] section must be given"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"[Site]\ncluster = \xff\n", "the file must be UTF-8 text"), (b"[Site]\n\0", "the file must be text")],
)
def test_a_file_that_is_no_text_is_a_fault(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "site.ini").write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        load_site(tmp_path / "site.ini")


@pytest.mark.parametrize("path", ["nothing.ini", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_site(tmp_path / path)


def test_what_would_steer_a_terminal_is_escaped(tmp_path: Path) -> None:
    fault = the_fault(tmp_path, ("Site", "mode", "\x1b[2J\u202e"))
    assert str(fault).isprintable()


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    assert len(str(the_fault(tmp_path, ("Site", "cluster", "x" * 10_000)))) < 300 + len(str(tmp_path))


# --- the cluster's UUID -----------------------------------------------------------------------------------


def keep_uuid(folder: Path, text: str) -> None:
    uuid_file(folder / "state").parent.mkdir()
    uuid_file(folder / "state").write_text(text, encoding="utf-8")


def test_the_uuid_that_init_left_is_the_sites(tmp_path: Path) -> None:
    known = str(uuid.UUID(int=7))
    keep_uuid(tmp_path, known + "\n")
    assert site_of(tmp_path).cluster_uuid == known
    assert site_of(tmp_path, ("Site", "cluster_uuid", known)).cluster_uuid == known


def test_a_site_that_names_another_uuid_than_init_left_is_refused(tmp_path: Path) -> None:
    keep_uuid(tmp_path, str(uuid.UUID(int=7)))
    fault = the_fault(tmp_path, ("Site", "cluster_uuid", str(uuid.UUID(int=8))))
    assert "holds another one" in fault.problem


@pytest.mark.parametrize("text", ["", "not a uuid", "\xff"])
def test_a_file_that_holds_no_uuid_is_refused(tmp_path: Path, text: str) -> None:
    keep_uuid(tmp_path, text)
    assert the_fault(tmp_path).file == uuid_file(tmp_path / "state")


def test_another_name_than_that_of_the_nodes_is_refused(tmp_path: Path) -> None:
    # Nodes are listed by this name: a renamed cluster silently lost all its nodes.
    keep_uuid(tmp_path, str(uuid.UUID(int=7)))
    name_file(tmp_path / "state").write_text("lab\n", encoding="utf-8")
    assert site_of(tmp_path, ("Site", "cluster", "lab")).cluster == "lab"
    fault = the_fault(tmp_path, ("Site", "cluster", "lab2"))
    assert (fault.section, fault.key) == ("Site", "cluster")
    assert "write cluster = lab," in fault.problem
    assert str(name_file(tmp_path / "state")) in fault.problem


# --- secrets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["Site", "Cloud", "Limits", "Node cpu", "Cloud Credential"])
@pytest.mark.parametrize("key", ["secret_access_key", "Password", "client_secret", "token", "api_key"])
def test_a_secret_in_a_wrong_section_is_not_shown(tmp_path: Path, section: str, key: str) -> None:
    fault = the_fault(tmp_path, (section, key, "hunter2"))
    assert fault.section == section
    assert "hunter2" not in str(fault)


def a_secret_file(folder: Path, content: bytes = b"hunter2\n", mode: int = 0o600) -> None:
    (folder / "secret").write_bytes(content)
    (folder / "secret").chmod(mode)


def test_secrets_come_from_the_environment_and_from_files_and_are_never_shown(tmp_path: Path) -> None:
    a_secret_file(tmp_path)
    site = site_of(
        tmp_path,
        ("Cloud Credentials", "token", "${TOKEN}"),
        ("Cloud Credentials", "password_file", "secret"),
        ("Cloud Credentials", "username", "anna"),
        environment={"TOKEN": "hunter3"},
    )
    assert {key: secret.get_secret_value() for key, secret in site.credentials.items()} == {
        "token": "hunter3",
        "password": "hunter2",
        "username": "anna",
    }
    assert not any(secret in f"{site}{site!r}" for secret in ("hunter2", "hunter3", "anna"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_secret_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    a_secret_file(tmp_path, mode=mode)
    fault = the_fault(tmp_path, ("Cloud Credentials", "password_file", "secret"))
    assert fault.problem == f"others may read {tmp_path}/secret: chmod 600 {tmp_path}/secret"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n", "is empty: write the secret into it"),
        (b"\xffhunter2", "must be UTF-8 text"),
        (b"x" * 70_000, "has more than 65536 bytes"),
    ],
)
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    a_secret_file(tmp_path, content)
    fault = the_fault(tmp_path, ("Cloud Credentials", "password_file", "secret"))
    assert fault.problem == f"{tmp_path}/secret {problem}"


@pytest.mark.parametrize(
    ("path", "problem"),
    [("nowhere", "cannot be read"), (".", "cannot be read"), ("pipe", "must be a regular file")],
)
def test_a_secret_that_is_no_file_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    os.mkfifo(tmp_path / "pipe", mode=0o600)
    assert problem in the_fault(tmp_path, ("Cloud Credentials", "password_file", path)).problem


def test_a_secret_may_stand_in_a_site_that_only_its_owner_can_read(tmp_path: Path) -> None:
    credentials = ("Cloud Credentials", "secret_key", "hunter2")
    (tmp_path / "site.ini").touch(mode=0o644)
    assert "others may read this file" in the_fault(tmp_path, credentials).problem
    (tmp_path / "site.ini").chmod(0o600)
    assert site_of(tmp_path, credentials).credentials["secret_key"].get_secret_value() == "hunter2"


def test_no_fault_shows_a_credential(tmp_path: Path) -> None:
    text = text_of() + (
        "[Cloud Credentials]\n"
        "secret = hunter2\n"
        "secret = hunter2\n"
        "secret_file = hunter2\n"
        "hunter2 without a key\n"
        "empty =\n"
        "token = hunter2${UNSET}\n"
    )
    (tmp_path / "site.ini").touch(mode=0o644)
    faults = faults_of(tmp_path, text)
    assert len(faults) == 6
    assert not any("hunter2" in f"{fault}{fault!r}" for fault in faults)


# --- what is allowed and hardly wanted --------------------------------------------------------------------


def gpu_type(**changes: str) -> list[tuple[str, str, str | None]]:
    keys = {**LEAST["Node cpu"], "slots": "gpu1", "gpus": "1", **changes}
    return [("Node gpu", key, text) for key, text in keys.items()]


def test_a_gpu_type_without_a_property_is_warned_of(tmp_path: Path) -> None:
    (warning,) = site_warnings(site_of(tmp_path, *gpu_type()))
    assert "[Node gpu] is a GPU type without a property" in warning
    assert site_warnings(site_of(tmp_path, *gpu_type(properties="gpu"))) == ()


def test_nodes_that_may_be_too_old_when_they_join_are_warned_of(tmp_path: Path) -> None:
    short = site_of(tmp_path, ("Timing", "boot_timeout", "10m"), ("Node cpu", "max_age", "10m"))
    (warning,) = site_warnings(short)
    assert "max_age = 10m is not above boot_timeout = 10m" in warning
    assert site_warnings(site_of(tmp_path, ("Timing", "boot_timeout", "10m"), ("Node cpu", "max_age", "1h"))) == ()


def test_a_prepaid_type_above_the_price_limit_is_bought_and_not_warned_of(tmp_path: Path) -> None:
    dear = ("Node cpu", "price_per_hour", "1000")
    assert "will never be bought" in site_warnings(site_of(tmp_path, dear))[0]
    assert site_warnings(site_of(tmp_path, dear, ("Node cpu", "prepaid", "1"))) == ()


def test_a_key_of_another_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    fault = the_fault(tmp_path, ("Limits", "stop_lead", "1m"))
    assert fault.problem == "no such key here: it belongs in [Policy]"


def test_a_comment_behind_a_value_is_told_where_it_belongs(tmp_path: Path) -> None:
    fault = the_fault(tmp_path, ("Limits", "nodes_max", "8 ; eight"))
    assert fault.problem == "a whole number of 1 or more is needed. A comment needs a line of its own"


@pytest.mark.parametrize(
    ("written", "meant"), [("aws", "ec2"), ("AWS", "ec2"), ("google", "gce"), ("k8s", "minicluster")]
)
def test_a_provider_by_another_name_is_told_its_name_here(tmp_path: Path, written: str, meant: str) -> None:
    assert f"write {meant}" in [
        fault.problem for fault in faults_of(tmp_path, text_of(("Cloud", "provider", written)))
    ]


@pytest.mark.parametrize("currency", ["EUR", "€", "$", ""])
def test_a_currency_is_a_code_or_a_symbol(tmp_path: Path, currency: str) -> None:
    assert site_of(tmp_path, ("Site", "currency", currency)).currency == currency


@pytest.mark.parametrize("currency", ["eur", "EURO", "E", "1", "€€", "\x1b", "<b>"])
def test_what_is_no_currency_is_a_fault(tmp_path: Path, currency: str) -> None:
    fault = the_fault(tmp_path, ("Site", "currency", currency))
    assert 'a code such as "EUR", or one symbol such as "$" is needed' in fault.problem


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "head.example:8080", "10.0.0.1:8080"])
def test_jobs_that_other_machines_may_see_are_warned_of(tmp_path: Path, listen: str) -> None:
    everybody = ("Web", "jobs_shown_to", "everybody")
    (warning,) = site_warnings(site_of(tmp_path, ("Web", "listen", listen), everybody))
    assert f"listen = {listen} with jobs_shown_to = everybody" in warning
    assert site_warnings(site_of(tmp_path, ("Web", "listen", listen))) == ()
    for private in ("127.0.0.1:8080", "[::1]:8080", "localhost:8080", "unix", "unix:/run/web.sock", "off"):
        assert site_warnings(site_of(tmp_path, ("Web", "listen", private), everybody)) == ()


def test_a_large_type_without_a_property_is_warned_of(tmp_path: Path) -> None:
    (warning,) = site_warnings(site_of(tmp_path, *gpu_type(gpus="0", cores="64")))
    assert "[Node gpu] is a large type without a property" in warning
    assert site_warnings(site_of(tmp_path, *gpu_type(gpus="0", cores="64", properties="large"))) == ()


def test_types_that_are_alike_need_no_guard(tmp_path: Path) -> None:
    assert site_warnings(site_of(tmp_path, *gpu_type(), ("Node cpu", "gpus", "1"))) == ()


def test_a_type_dearer_than_the_cap_is_warned_of(tmp_path: Path) -> None:
    (warning,) = site_warnings(site_of(tmp_path, ("Limits", "price_per_hour_max", "0.2")))
    assert "price_per_hour = 0.25 is above price_per_hour_max = 0.2" in warning


def test_nodes_for_jobs_that_flux_does_not_start_are_warned_of(tmp_path: Path) -> None:
    skips = ("Policy", "unserved", "skip")
    (warning,) = site_warnings(site_of(tmp_path, skips))
    assert "Flux starts none of them" in warning
    assert site_warnings(site_of(tmp_path, skips, ("Policy", "queue_policy", "backfill"))) == ()
    assert site_warnings(site_of(tmp_path, ("Policy", "unserved", "hold"))) == ()


# --- whatever is written ----------------------------------------------------------------------------------

LINES = st.one_of(
    st.sampled_from(text_of().splitlines()),
    st.sampled_from(
        ["[Cloud Credentials]", "[Node x]", "[DEFAULT]", "[", "]", "=", " = ", "\t x", "#", "; c", "${", "[]"]
    ),
    st.tuples(st.sampled_from(sorted(SECTIONS)), st.text(max_size=12)).map(lambda pair: f"[{pair[0]}]\n{pair[1]}"),
    st.tuples(
        st.sampled_from([key for section in SECTIONS.values() for key in allowed_keys(section)]),
        st.text(max_size=12),
    ).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    st.text(max_size=30),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(lines=st.lists(LINES, max_size=25), separator=st.sampled_from(["\n", "\r\n", "\n ", "\n\n"]))
def test_whatever_is_written_is_a_site_or_a_config_error(tmp_path: Path, lines: list[str], separator: str) -> None:
    (tmp_path / "site.ini").write_bytes(separator.join(lines).encode("utf-8", "surrogateescape"))
    with suppress(ConfigError):
        load_site(tmp_path / "site.ini", {"NAME": "value"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from([(name, key) for name, section in SECTIONS.items() for key in allowed_keys(section)]),
    text=st.text(max_size=20),
)
def test_whatever_a_key_says_brings_no_other_error(tmp_path: Path, key: tuple[str, str], text: str) -> None:
    (tmp_path / "site.ini").write_bytes(text_of((*key, text)).encode("utf-8", "surrogateescape"))
    with suppress(ConfigError):
        load_site(tmp_path / "site.ini", {})


@pytest.mark.parametrize(("written", "size"), [("64MiB", 64 << 20), ("1MiB", 1 << 20)])
def test_the_size_of_the_journal_is_limited(tmp_path: Path, written: str, size: int) -> None:
    assert site_of(tmp_path, ("Journal", "size_max", written)).journal.size_max_bytes == size


@pytest.mark.parametrize("written", ["0", "1023KiB", "many"])
def test_a_journal_s_size_below_a_mebibyte_is_refused(tmp_path: Path, written: str) -> None:
    assert the_fault(tmp_path, ("Journal", "size_max", written)).key == "size_max"


# --- ensembles --------------------------------------------------------------------------------------------


def test_an_ensemble_of_the_site_has_its_file_and_its_share(tmp_path: Path) -> None:
    text = text_of() + "[Ensemble work]\nfile = work.yaml\nweight = 2.5\nnodes_max = 3\n"
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    (ensemble,) = load_site(tmp_path / "site.ini", {}).ensembles.values()
    assert ensemble == EnsembleSettings(file=tmp_path / "work.yaml", weight=2.5, nodes_max=3)
    assert not ensemble.allow_custom


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("[Ensemble a.b]\nfile = x\n", "[Ensemble NAME] needs a name"),
        ("[Ensemble a]\n", "must be given"),
        ("[Ensemble a]\nfile = x\nnodes_min = 3\nnodes_max = 2\n", "must not be above nodes_max = 2"),
        ("[Ensembel a]\nfile = x\n", "no such section"),
    ],
)
def test_a_wrong_ensemble_is_a_fault(tmp_path: Path, section: str, expected: str) -> None:
    assert any(expected in str(fault) for fault in faults_of(tmp_path, text_of() + section))


# --- schedules --------------------------------------------------------------------------------------------

OFFICE = ("Schedule office", "when", "Mon-Fri 08:00-18:00 Europe/Berlin")


def test_schedules_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    late = ("Schedule late", "when", "Mon 20:00-21:00")
    read = site_of(tmp_path, OFFICE, ("Schedule office", "nodes_min", "2"), late, ("Schedule late", "spares", "1"))
    assert list(read.schedules) == ["office", "late"]
    assert (read.schedules["office"].nodes_min, read.schedules["late"].spares) == (2, 1)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("when", "", "must name a window"),
        ("when", "Mon-Fri 8-18", "a list such as"),
        ("nodes_min", "9", "must not be above nodes_max = 3"),
        ("nodes_max", "0", "0 closes a node type: name it in node_types"),
        ("node_types", "cpo", "there is no [Node cpo]"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(tmp_path: Path, key: str, value: str, problem: str) -> None:
    keys = {("Schedule office", "when"): OFFICE[2], ("Schedule office", "nodes_max"): "3"}
    keys[("Schedule office", key)] = value
    with pytest.raises(ConfigError) as raised:
        site_of(tmp_path, *((*place, text) for place, text in keys.items()))
    assert problem in str(raised.value)


def test_a_type_cannot_be_kept_at_more_nodes_than_it_has_slots(tmp_path: Path) -> None:
    of_type = ("Schedule office", "node_types", "cpu"), ("Schedule office", "nodes_min", "99")
    with pytest.raises(ConfigError, match=r"\[Node cpu\] has only \d+ slots"):
        site_of(tmp_path, OFFICE, *of_type)


def test_a_contract_ends_with_its_last_day(tmp_path: Path) -> None:
    until = ("Node cpu", "prepaid_valid_until", "2027-03-31")
    (of,) = site_of(tmp_path, ("Node cpu", "prepaid", "2"), until).node_types
    assert (of.prepaid, of.prepaid_until_at) == (2, 1806537600.0)  # 2027-04-01T00:00Z
