"""Write the configuration that makes a stock Flux elastic, and the user-data with which a node joins it.

The bootstrap table of an elastic instance names more hosts than exist. These placeholders stay offline until a node
joins with one of their names. See flux-config-bootstrap(5), flux-config-resource(5).
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from nodemanager.config.site import JoinMethod, Site, uuid_file
from nodemanager.config.text.flux_toml import (
    FluxConfigError,
    admits_guests,
    read_conf_d,
)
from nodemanager.config.text.settings import bracketed, is_ipv6_address
from nodemanager.core.notation import compress_hostlist, format_idset
from nodemanager.core.slots import NodeType
from nodemanager.flux.delegate.setup import BYPASS, FROBNICATOR_FILE, flux_delegate_path, frobnicator_plugins
from nodemanager.flux.parse.versions import (
    GPUS_IN_SCHED_SIMPLE,
    Version,
    named_broker,
    no_gpus_text,
    parse_version,
    why_too_old,
)

# A crash of rank 0 loses at most this much of its queue. A checkpoint is cheap: it writes one reference.
_CHECKPOINT_PERIOD = "10s"
_KEYGEN_TIMEOUT_S = 60
_VERSION_TIMEOUT_S = 20
_SOCKET_PATH_MAX_BYTES = 107  # unix(7)


class BootstrapError(Exception):
    """Nothing was written; the message says why."""


class FluxTooOld(BootstrapError):
    """The flux on PATH is older than the oldest supported one. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The result of ``write_bootstrap``. Its text is for the operator."""

    output: Path
    cluster_uuid: str
    uri: str  # where rank 0 will listen for the manager
    start_command: tuple[str, ...]
    warnings: tuple[str, ...]  # differences between the site and the output; ``site_warnings`` has others
    is_new: bool = True

    def __str__(self) -> str:
        done = "Written" if self.is_new else "Unchanged"
        return "\n".join(
            (
                f"{done}: {self.output}, for cluster {self.cluster_uuid}.",
                "Start rank 0 with",
                f"  {shlex.join(self.start_command)}",
                f"Its address will be {self.uri}",
                *(f"Warning: {warning}" for warning in self.warnings),
            )
        )


def find_flux(flux_command: str = "flux") -> str:
    """Find the absolute path of the command. Raises :class:`BootstrapError` if it is not on PATH."""
    found = shutil.which(flux_command)
    if found is None:
        raise BootstrapError(
            f'the command "{flux_command}" is not on PATH: install flux-core '
            "(https://flux-framework.readthedocs.io, also on conda-forge), or add its bin directory to PATH"
        )
    return os.path.abspath(found)  # noqa: PTH100 - do not follow links: flux finds its own parts by its path


@cache
def flux_version(flux_command: str) -> Version | None:
    """Ask a flux command for its version; None if it does not say. Raises :class:`FluxTooOld`."""
    try:
        said = subprocess.run(  # noqa: S603 - a list of arguments, and no shell
            [flux_command, "version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    if why := why_too_old(said):
        raise FluxTooOld(f"{flux_command}: {why}")
    return parse_version(said)


# --- rank 0 -----------------------------------------------------------------------------------------------


def write_bootstrap(site: Site, output: Path, flux_command: str = "flux", *, nested: bool = False) -> Bootstrap:
    """Write ``conf.d/flux.toml``, ``curve.cert`` and rank 0's folders to ``output``, and the UUID to state_dir.

    ``nested``: rank 0 will run as a job of an outer instance; ``flux uri JOBID`` finds it there.

    Writes all or nothing, and never overwrites. Raises :class:`BootstrapError`.
    """
    flux = find_flux(flux_command)
    flux_version(flux)  # before anything is written
    output = Path(os.path.abspath(output))  # noqa: PTH100 - do not follow links
    _check_output(site, output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            written = Path(folder) / output.name
            _write_folder(site, written, output, flux)
            cluster_uuid = _publish(site, written, output)
    except OSError as error:
        raise BootstrapError(f"{error.filename or output}: {error.strerror}") from error
    return _describe(site, output, flux, cluster_uuid, nested=nested)


def find_bootstrap(
    site: Site, output: Path, flux_command: str = "flux", *, nested: bool = False
) -> Bootstrap | None:
    """Return what an earlier ``write_bootstrap`` wrote to ``output``; None if it would write something else now.

    Raises :class:`BootstrapError` if there is no flux.
    """
    output = Path(os.path.abspath(output))  # noqa: PTH100 - do not follow links
    try:
        found = (output / "conf.d" / "flux.toml").read_text(encoding="utf-8")
        complete = all((output / part).exists() for part in ("curve.cert", "state", "run"))
    except (OSError, UnicodeError):
        return None
    if not (complete and site.cluster_uuid) or found != flux_toml(site, output / "curve.cert"):
        return None
    return replace(_describe(site, output, find_flux(flux_command), site.cluster_uuid, nested=nested), is_new=False)


def _describe(site: Site, output: Path, flux: str, cluster_uuid: str, *, nested: bool) -> Bootstrap:
    uri = _uri(output)
    return Bootstrap(
        output=output,
        cluster_uuid=cluster_uuid,
        uri=uri,
        start_command=nested_command(site, output, flux) if nested else start_command(site, output, flux),
        warnings=_mismatches(site, output, uri),
    )


def start_command(site: Site, output: Path, flux: str = "flux") -> tuple[str, ...]:
    """Return the command that starts rank 0 with the files that ``write_bootstrap`` wrote to ``output``."""
    return (
        *(_flub_head_command if site.flux.join is JoinMethod.FLUB else _table_head_command)(site, output, flux),
        "-Sbroker.rc2_none",  # no initial program: the instance would end with it
        "-Sbroker.quorum=1",  # run even without a node
        f"-Sstatedir={output / 'state'}",
        f"-Srundir={output / 'run'}",
        f"-Slocal-uri={_uri(output)}",
    )


def _table_head_command(site: Site, output: Path, flux: str) -> list[str]:
    return broker_command(flux, output, site.flux.head_host)


def broker_command(flux_command: str, folder: Path, host: str) -> list[str]:
    """Return the command of a broker that takes its place in the table by its host name."""
    begin, end = named_broker(flux_command, host, flux_version(flux_command))
    return [*begin, f"--config-path={folder / 'conf.d'}", "-Sbroker.boot-method=config", *end]


def _flub_head_command(site: Site, output: Path, flux: str) -> list[str]:
    """Return the start of rank 0's command, with a rank for each slot and a flat tree.

    The tree is flat because a node must be able to reach its parent, and it can reach rank 0.
    """
    size = 1 + len(site.slots)
    place = [f"--config-path={output / 'conf.d'}", f"-Shostname={site.flux.head_host}"]
    return [flux, "broker", *place, "-Stbon.topo=kary:0", f"-Ssize={size}"]


def nested_command(site: Site, output: Path, flux: str = "flux") -> tuple[str, ...]:
    """Return the command that submits rank 0 to the outer instance. The job records its URI and runs the broker."""
    socket_path = shlex.quote(_uri(output).removeprefix("local://"))
    broker = shlex.join(start_command(site, output, flux))
    forget = "env -u FLUX_URI -u FLUX_JOB_ID -u FLUX_KVS_NAMESPACE"
    memo = f'{shlex.quote(flux)} job memo "$FLUX_JOB_ID" uri="ssh://$(hostname)"{socket_path}'
    script = f"{memo} && exec {forget} {broker}"
    return (flux, "submit", f"--job-name={site.cluster}", "-N1", "-n1", "sh", "-c", script)


def _check_output(site: Site, output: Path) -> None:
    if site.flux.simulated:
        raise BootstrapError(f"{site.path}: [Flux] uri = simulated: a simulated Flux needs no bootstrap")
    if site.state_dir.is_relative_to(output):
        raise BootstrapError(f"{output} must not contain state_dir, {site.state_dir}: choose another folder")
    if os.path.lexists(output):
        existing = next(iter(sorted(output.iterdir())), output) if output.is_dir() else output
        raise BootstrapError(
            f"{existing} exists and is not overwritten: choose another folder, or move it away. To start rank 0 "
            "with what it has, use flux-node-manager start-command"
        )
    socket_path = _uri(output).removeprefix("local://")
    if len(os.fsencode(socket_path)) > _SOCKET_PATH_MAX_BYTES:
        raise BootstrapError(
            f"{socket_path} is too long for a socket (at most {_SOCKET_PATH_MAX_BYTES} bytes): choose a folder "
            "with a shorter path"
        )


def _write_folder(site: Site, folder: Path, output: Path, flux: str) -> None:
    """Write to ``folder`` the files that will be moved to ``output``."""
    folder.mkdir(mode=0o700)
    (folder / "conf.d").mkdir(mode=0o700)
    # These must exist: when a broker ends, it removes the folders that it created, including its state and queue.
    (folder / "state").mkdir(mode=0o700)
    (folder / "run").mkdir(mode=0o700)
    try:
        (folder / "conf.d" / "flux.toml").write_text(flux_toml(site, output / "curve.cert"), encoding="utf-8")
    except UnicodeError as error:
        raise BootstrapError(f"{output!r}: the path must be UTF-8 text") from error
    make_certificate(folder / "curve.cert", site.cluster, flux)
    if site.delegates:
        shutil.copyfile(flux_delegate_path(), folder / FROBNICATOR_FILE)


def make_certificate(path: Path, name: str, flux: str) -> None:
    """Make a CURVE certificate with ``flux keygen``. Raises :class:`BootstrapError`."""
    try:
        keygen = subprocess.run(  # noqa: S603 - a list of arguments, and no shell
            [flux, "keygen", f"--name={name}", path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_KEYGEN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BootstrapError(f"{flux} keygen did not end within {_KEYGEN_TIMEOUT_S} s") from error
    if keygen.returncode != 0 or not path.is_file():
        raise BootstrapError(f"{flux} keygen failed ({keygen.returncode}): {keygen.stderr.strip()}")
    path.chmod(0o600)


def _publish(site: Site, written: Path, output: Path) -> str:
    """Move the cluster's UUID and the folder to their places, or neither; return the UUID."""
    cluster_uuid = site.cluster_uuid or str(uuid.uuid4())
    made = _write_uuid(uuid_file(site.state_dir), cluster_uuid, known=bool(site.cluster_uuid))
    try:
        written.rename(output)
    except OSError:
        if made:
            uuid_file(site.state_dir).unlink()
        raise
    return cluster_uuid


def ensure_uuid(site: Site) -> str:
    """Return the site's UUID; create it and write it to state_dir if needed. Raises :class:`BootstrapError`."""
    cluster_uuid = site.cluster_uuid or str(uuid.uuid4())
    try:
        _write_uuid(uuid_file(site.state_dir), cluster_uuid, known=bool(site.cluster_uuid))
    except OSError as error:
        raise BootstrapError(f"{error.filename or site.state_dir}: {error.strerror}") from error
    return cluster_uuid


def _write_uuid(file: Path, cluster_uuid: str, *, known: bool) -> bool:
    """Write the UUID's file; return True if the file is new. ``known``: the site already has the UUID."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.") as draft:
        draft.write(cluster_uuid + "\n")
        draft.flush()
        os.fsync(draft.fileno())
        try:
            os.link(draft.name, file)  # atomic, and never overwrites a file
        except FileExistsError:
            if known:
                return False
            raise BootstrapError(f"{file} exists by now and is not overwritten: run the command again") from None
    return True


def flux_toml(site: Site, certificate: Path) -> str:
    """Return the configuration that rank 0 and every node share. Hosts are in the order of their ranks."""
    head, address, port = site.flux.head_host, site.flux.head_address, site.flux.port
    bind, connect = f"tcp://{_bind_address(address)}:{port}", f"tcp://{bracketed(address)}:{port}"
    hosts = [
        f"    {{ host = {_toml(head)}, bind = {_toml(bind)}, connect = {_toml(connect)} }},",
        *(f"    {{ host = {_toml(compress_hostlist(node.slots))} }}," for node in site.node_types),
    ]
    ipv6 = ["enable_ipv6 = true"] if is_ipv6_address(address) else []
    table = ["[bootstrap]", f"curve_cert = {_toml(str(certificate))}", *ipv6, "hosts = [", *hosts, "]", ""]
    lines = [
        f"# Cluster {site.cluster}, written by flux-node-manager init.",
        "",
        # With FLUB, rank 0 tells brokers where to connect. A table would override that.
        *(table if site.flux.join is not JoinMethod.FLUB else []),
        "[resource]",
        "# A node's own host name and cores differ from those of its slot.",
        "noverify = true",
        "# Rank 0 runs no jobs.",
        'exclude = "0"',
        "",
        "[[resource.config]]",
        f"hosts = {_toml(head)}",
        f"cores = {_toml(_ids(site.flux.head_cores))}",
        *(line for node_type in site.node_types for line in _resource_config(node_type)),
        "",
        "[kvs]",
        f"checkpoint-period = {_toml(_CHECKPOINT_PERIOD)}",
        "",
        *_job_limits(site),
        *(_delegation(certificate.with_name(FROBNICATOR_FILE)) if site.delegates else []),
        "# Only Fluxion reads this. Its default policy denies jobs that need more nodes than are up.",
        "[sched-fluxion-qmanager]",
        'queue-policy = "easy"',
        "",
        "# The type of each slot, matching the resources above. To change it: flux-node-manager slots",
        "[node-manager.slots]",
        *(
            f"{_toml(node_type.name)} = {_toml(compress_hostlist(node_type.slots))}"
            for node_type in site.node_types
        ),
    ]
    return "\n".join(lines) + "\n"


def _delegation(frobnicator: Path) -> list[str]:
    """Have Flux accept ``--dependency=delegate:TARGET``. Without alloc-bypass such a job would take real cores."""
    return [
        "# Jobs submitted with --dependency=delegate:TARGET run in another instance.",
        "[ingest.frobnicator]",
        f"plugins = {_toml_list(frobnicator_plugins(frobnicator))}",
        "",
        "[job-manager]",
        f"plugins = [{{ load = {_toml(BYPASS)} }}]",
        "",
    ]


def _toml_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_toml, texts))}]"


def _job_limits(site: Site) -> list[str]:
    """Have Flux refuse a job that ``nodes_max`` never allows. In queue order it would hold up the whole queue."""
    nodes_max = site.limits.nodes_max
    if nodes_max >= len(site.slots):
        return []
    cores = sorted((node.cores for node in site.node_types for _ in node.slots), reverse=True)
    return [
        f"# Flux refuses jobs that nodes_max = {nodes_max} never allows. If you raise it, raise both limits here,",
        "# and run: flux config reload",
        "[policy.limits]",
        f"job-size.max.nnodes = {nodes_max}",
        f"job-size.max.ncores = {sum(cores[:nodes_max])}",
        "",
    ]


def _resource_config(node_type: NodeType) -> list[str]:
    properties = ", ".join(_toml(name) for name in sorted(node_type.properties))
    return [
        "",
        "[[resource.config]]",
        f"hosts = {_toml(compress_hostlist(node_type.slots))}",
        f"cores = {_toml(_ids(node_type.cores))}",
        *([f"gpus = {_toml(_ids(node_type.gpus))}"] if node_type.gpus else []),
        *([f"properties = [{properties}]"] if properties else []),
    ]


def _ids(count: int) -> str:
    return format_idset(range(count))


def _toml(text: str) -> str:
    """Write a TOML basic string, which is a JSON string except for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _bind_address(head_address: str) -> str:
    """Return the address to bind: a loopback address itself. Others may be a gateway's or a name, so bind all."""
    try:
        return bracketed(head_address) if ipaddress.ip_address(head_address).is_loopback else "*"
    except ValueError:
        return "*"


def _uri(output: Path) -> str:
    return f"local://{output / 'run' / 'local-0'}"


def _mismatches(site: Site, output: Path, uri: str) -> tuple[str, ...]:
    found = []
    if site.flux.bootstrap_dir != output:
        found.append(
            f"no node will join: nodes read bootstrap_dir = {site.flux.bootstrap_dir}, which is not {output}. "
            f"Write bootstrap_dir = {output} under [Flux]."
        )
    if site.flux.uri and site.flux.uri != uri:
        found.append(f"the manager will connect to uri = {site.flux.uri}, which is not {uri}.")
    return tuple(found)


def bootstrap_warnings(site: Site) -> tuple[str, ...]:
    """Warn if nodes read a bootstrap folder that has none, although the cluster has its UUID from ``init``."""
    folder = site.flux.bootstrap_dir
    if site.flux.simulated or site.flux.join is not JoinMethod.DIRECTORY:
        return ()
    if not site.cluster_uuid or (folder / "conf.d").is_dir():
        return ()
    text = (
        f"[Flux] bootstrap_dir = {folder}: nodes read their configuration there, and this machine finds none. No"
        " node joins without it. Correct bootstrap_dir, or run init again with --output of that folder."
    )
    return (text,)


def gpu_warning(site: Site) -> str:
    """Say that Flux's own scheduler knows no GPUs, if the site has some; "" if it does, or there is no flux here.

    Raises :class:`FluxTooOld`.
    """
    if site.flux.simulated or shutil.which("flux") is None:
        return ""
    version = flux_version(find_flux())
    if version is None or version >= GPUS_IN_SCHED_SIMPLE or not any(it.gpus for it in site.node_types):
        return ""
    return no_gpus_text(version)


# --- guests -----------------------------------------------------------------------------------------------


def site_admits_guests(site: Site) -> bool:
    """Whether the configuration in ``bootstrap_dir`` admits guests. Raises :class:`BootstrapError`."""
    try:
        return admits_guests(read_conf_d(site.flux.bootstrap_dir))
    except FluxConfigError as error:
        raise BootstrapError(str(error)) from error


def open_run_folder(site: Site) -> None:
    """Let guests reach the socket of a rank 0 that ``init`` set up, if its configuration admits guests.

    Raises :class:`BootstrapError`.
    """
    folder = site.flux.bootstrap_dir
    if site.flux.simulated or not (folder / "run").is_dir() or not site_admits_guests(site):
        return
    try:
        folder.chmod(0o711)
        (folder / "run").chmod(0o755)
    except OSError as error:
        raise BootstrapError(f"{error.filename or folder}: {error.strerror}") from error


def guest_warnings(site: Site) -> tuple[str, ...]:
    """Warn if the instance admits guests and a folder above rank 0's socket keeps them out."""
    _, local, path = site.flux.uri.partition("local://")
    try:
        if not local or not site_admits_guests(site):
            return ()
        opened = (site.flux.bootstrap_dir, site.flux.bootstrap_dir / "run")  # ``open_run_folder`` opens them
        above = [it for it in reversed(Path(path).parents) if it not in opened and it.is_dir()]
        closed = [str(it) for it in above if not it.stat().st_mode & stat.S_IXOTH]
    except (BootstrapError, OSError) as error:
        return (f"whether guests can reach rank 0's socket is unknown: {error}",)
    if not closed:
        return ()
    remedy = f"run chmod o+x {shlex.join(closed)}, or start rank 0 with another rundir and set uri to its socket"
    return (f"the instance admits guests, but they cannot reach its socket {path}: {remedy}",)
