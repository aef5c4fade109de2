"""The verb ``resize``: lengthen the bootstrap table and restart rank 0 once.

The number of ranks is fixed while an instance runs, so running jobs do not survive this change. The queue and the
job ids do: rank 0 shuts down cleanly and keeps its state directory. New hosts are added at the end of the table, so
every slot keeps its rank and its lease.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodemanager.config.site import JoinMethod, Site
from nodemanager.config.text.flux_toml import (
    ConfigFile,
    FluxConfigError,
    SlotTypes,
    bootstrap_hosts,
    read_slot_types,
    toml_with_hosts,
    toml_with_slot_types,
)
from nodemanager.core.notation import compress_hostlist
from nodemanager.core.ports import FluxError
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.flux import bindings
from nodemanager.flux.port import terminate_command
from nodemanager.flux.retype import read_schedulers
from nodemanager.flux.setup import bootstrap
from nodemanager.join.key_material import MaterialError, make_material

TIMEOUT_S = 10.0
RESTART_WITHIN_S = 120.0
_PAUSE_S = 0.2
_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.ASCII)


class ResizeError(Exception):
    """The resize failed. The message says whether the instance is unchanged, or what to do."""


@dataclass(frozen=True, slots=True)
class ResizePlan:
    """The planned change: the file's new text, and the new slots with their types."""

    file: ConfigFile
    text: str
    added: SlotTypes
    size: int  # the instance's ranks afterwards, including rank 0

    def __str__(self) -> str:
        by_type: dict[TypeName, list[SlotName]] = {}
        for slot, name in self.added.items():
            by_type.setdefault(name, []).append(slot)
        slots = ", ".join(f"{compress_hostlist(slots)} of type {name}" for name, slots in by_type.items())
        return f"{self.file.path} gets {len(self.added)} slots: {slots}. The instance will have {self.size} ranks."


def plan_resize(site: Site, counts: Mapping[TypeName, int]) -> ResizePlan:
    """Make the longer table. Nothing is changed yet. Raises :class:`ResizeError`."""
    if site.flux.simulated:
        raise ResizeError(f"{site.path}: [Flux] uri = simulated: there is no instance to resize")
    try:
        file = ConfigFile.find(site.flux.bootstrap_dir)
        config = file.read()
        division = read_slot_types(config) or {
            slot: node_type.name for node_type in site.node_types for slot in node_type.slots
        }
        hosts = bootstrap_hosts(config)
        added = new_slots(counts, division, hosts, {name: node.slots for name, node in site.nodes.items()})
        text = toml_with_hosts(file.text(), list(added))
        text = toml_with_slot_types(text, {**division, **added}, site.node_types)
    except FluxConfigError as error:
        raise ResizeError(str(error)) from error
    return ResizePlan(file, text, added, len(hosts) + len(added))


def new_slots(
    counts: Mapping[TypeName, int],
    division: SlotTypes,
    hosts: Iterable[str],
    types: Mapping[TypeName, Sequence[SlotName]],
) -> dict[SlotName, TypeName]:
    """Name the new slots, in the order of their ranks. Raises :class:`ResizeError` if there are none.

    ``types``: the site's types, each with its slots as the site names them. The slots a type has now may differ.
    """
    unknown = sorted(counts.keys() - types.keys())
    if unknown:
        raise ResizeError(f"the site has no node type {unknown[0]}")
    taken = {*hosts, *division}
    added: dict[SlotName, TypeName] = {}
    for name, count in counts.items():
        own = [slot for slot, of_type in division.items() if of_type == name]
        if count < len(own):
            raise ResizeError(
                f"{name} has {len(own)} slots, and resize cannot remove any: to give some to another type, use"
                " flux-node-manager slots"
            )
        for slot in _new_names(types[name], name, taken, count - len(own)):
            added[slot] = name
            taken.add(slot)
    if not added:
        raise ResizeError("the types have these numbers of slots already")
    return added


def _new_names(own: Sequence[SlotName], name: TypeName, taken: Iterable[str], count: int) -> list[SlotName]:
    """Continue the numbering of the type's own names: cloud5 after cloud4, node-10 after node-09.

    ``own``: the type's slots as the site names them. Slots added since are among the ``taken`` names.
    """
    match = _NUMBERED.fullmatch(own[-1]) if own else None
    prefix, digits = match.groups() if match else (name, "0")
    known, number = set(taken), int(digits)
    names: list[SlotName] = []
    while len(names) < count:
        number += 1
        slot = f"{prefix}{number:0{len(digits)}}"
        if slot not in known:
            names.append(SlotName(slot))
    return names


# --- the restart ------------------------------------------------------------------------------------------


def resize(
    site: Site, resize_plan: ResizePlan, say: Callable[[str], None], *, force: bool, restarted: bool
) -> None:
    """Write the table, restart rank 0, and wait until the instance has its new size.

    Raises :class:`ResizeError`. While jobs run, nothing is changed unless ``force`` is given. If nothing is known
    to restart rank 0, nothing is changed unless ``restarted`` says that something does.
    """
    try:
        with bindings.connection(site.flux.uri) as handle:
            stop = _Rank0Restart(handle, site, resize_plan.file, say)
            stop.check_instance()
            if not restarted:
                stop.check_supervisor()
            _restart(stop, resize_plan, force=force)
    except (FluxError, FluxConfigError, MaterialError) as error:
        raise ResizeError(f"rank 0 cannot be restarted: {error}") from error
    _wait_for_size(site, resize_plan.size)


def _restart(stop: _Rank0Restart, resize_plan: ResizePlan, *, force: bool) -> None:
    """Restart rank 0 with the longer table. A failure before the restart itself leaves everything unchanged."""
    before = resize_plan.file.text()
    try:
        stop.check_jobs(force=force)
        stop.write(resize_plan.text)
        stop.restart()
    except (FluxError, FluxConfigError, MaterialError, ResizeError):
        stop.write(before)
        stop.reload_schedulers()
        raise


class _Rank0Restart:
    """One restart of rank 0. Its schedulers are unloaded first, so that no job starts that would be lost."""

    def __init__(self, handle: bindings.Handle, site: Site, file: ConfigFile, say: Callable[[str], None]) -> None:
        self._handle = handle
        self._site = site
        self._file = file
        self._say = say
        self._unloaded: list[str] = []

    def check_instance(self) -> None:
        """Check that the file belongs to the instance. Raises :class:`ResizeError`."""
        running = bindings.ask(self._handle, "config.get", timeout_s=TIMEOUT_S)
        if bootstrap_hosts(running) != bootstrap_hosts(self._file.read()):
            raise ResizeError(
                f"{self._file.path} has a different bootstrap table from the instance at {self._site.flux.uri}:"
                " bootstrap_dir is not its configuration, or was edited since rank 0 started"
            )

    def check_supervisor(self) -> None:
        """Check that something restarts rank 0 when it ends. Raises :class:`ResizeError`."""
        if not self._site.flux.restart_command and not is_restarted_by_systemd(self._pid()):
            raise ResizeError(
                "nothing is known to restart rank 0: set restart_command in [Flux], run rank 0 as a systemd service"
                " with Restart=, or give --i-restart-it and start rank 0 again when it ends. Nothing has changed"
            )

    def _pid(self) -> int:
        return int(bindings.ask(self._handle, "attr.get", {"name": "broker.pid"}, timeout_s=TIMEOUT_S)["value"])

    def check_jobs(self, *, force: bool) -> None:
        """Unload the schedulers, and check that no job runs unless ``force``. Raises :class:`ResizeError`."""
        active = self._count_jobs()
        if active[0] and not force:
            raise ResizeError(_jobs_run_text(active[0]))
        self._unload_schedulers()
        running, pending = self._count_jobs()
        if running and not force:
            raise ResizeError(_jobs_run_text(running))
        self._say(
            f"Rank 0 restarts now: {running} running jobs are lost, {pending} waiting jobs stay in the queue."
        )

    def write(self, text: str) -> None:
        """Write the table, and also for the join service if nodes join by ticket.

        Every broker ends with rank 0, and its client then asks the join service for the new bootstrap.
        """
        self._file.write(text)
        if self._site.flux.join is JoinMethod.SERVICE:
            make_material(self._site, self._site.flux.bootstrap_dir)

    def restart(self) -> None:
        """Run the site's restart command, or end the broker for its supervisor to restart."""
        if self._site.flux.restart_command:
            _run_restart_command(self._site.flux.restart_command)
        else:
            bindings.ask(self._handle, "rexec.exec", terminate_command(self._pid()), timeout_s=TIMEOUT_S)

    def reload_schedulers(self) -> None:
        """Load the schedulers again after a failure."""
        for path in reversed(self._unloaded):
            bindings.ask(
                self._handle, "module.load", {"path": path, "args": [], "exec": False}, timeout_s=TIMEOUT_S
            )
        self._unloaded.clear()

    def _count_jobs(self) -> tuple[int, int]:
        """The numbers of running and of waiting jobs."""
        states = bindings.ask(self._handle, "job-list.job-stats", {}, timeout_s=TIMEOUT_S)["job_states"]
        return states["run"] + states["cleanup"], states["depend"] + states["priority"] + states["sched"]

    def _unload_schedulers(self) -> None:
        for module in read_schedulers(bindings.ask(self._handle, "module.list", timeout_s=TIMEOUT_S)):
            payload = {"name": module.name, "cancel": False}
            bindings.ask(self._handle, "module.remove", payload, timeout_s=TIMEOUT_S)
            self._unloaded.append(module.path)


def systemd_unit(cgroup: str) -> str | None:
    """Return the systemd service that a ``/proc/PID/cgroup`` names (cgroups(7)); None if it names none."""
    for line in cgroup.splitlines():
        unit = line.rpartition("/")[2]
        # user@UID.service is a whole login session, which restarts nothing in it.
        if unit.endswith(".service") and not unit.startswith("user@"):
            return unit
    return None


def is_restarted_by_systemd(pid: int) -> bool:
    """Whether the process belongs to a systemd service that systemd starts again after a clean end."""
    try:
        unit = systemd_unit(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"))
        if unit is None:
            return False
        command = ["systemctl", "show", "--property=Restart", "--value", unit]
        asked = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)  # noqa: S603
    except (OSError, UnicodeError, subprocess.SubprocessError):
        return False
    return asked.stdout.strip() in ("always", "on-success")


def _jobs_run_text(running: int) -> str:
    run = "1 job runs" if running == 1 else f"{running} jobs run"
    return f"{run} and would be lost: wait for the end, or give --force"


def _run_restart_command(command: str) -> None:
    try:
        subprocess.run(shlex.split(command), check=True, timeout=RESTART_WITHIN_S)  # noqa: S603 - the site's own
    except (OSError, subprocess.SubprocessError) as error:
        raise ResizeError(f"restart_command = {command}: {error}; nothing has changed") from error


def _wait_for_size(site: Site, size: int) -> None:
    deadline_s = time.monotonic() + RESTART_WITHIN_S
    while not _has_size(site.flux.uri, size):
        if time.monotonic() > deadline_s:
            command = shlex.join(bootstrap.start_command(site, site.flux.bootstrap_dir))
            raise ResizeError(
                f"rank 0 is not back with {size} ranks after {RESTART_WITHIN_S:g} s. The longer table is written."
                f" Start rank 0 again, for example with\n  {command}"
            )
        time.sleep(_PAUSE_S)


def _has_size(uri: str, size: int) -> bool:
    try:
        with bindings.connection(uri) as handle:
            bindings.ask(handle, "sched.resource-status", timeout_s=TIMEOUT_S)
            found = bindings.ask(handle, "attr.get", {"name": "size"}, timeout_s=TIMEOUT_S)["value"]
    except FluxError:
        return False
    return int(found) == size
