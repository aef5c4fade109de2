"""The verb ``expand``: give an instance that runs inside an outer Flux more nodes, as one job of the outer one.

Each task of the job is a broker that joins the inner instance as a slot. Cancelling the job removes these nodes.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from nodemanager.config.site import Site
from nodemanager.core.nodes import FluxRank, Launch
from nodemanager.core.notation import NotationError, format_job_id, parse_job_id
from nodemanager.core.ports import Clock, FluxError
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.flux import bindings
from nodemanager.flux.claim import owner_of
from nodemanager.flux.instance import RealFlux
from nodemanager.flux.setup import node_script, outer
from nodemanager.flux.submit import submit

TIMEOUT_S = 10.0
_RUNNING = 16


class ExpandError(Exception):
    """Nothing was submitted; the message says why."""


def expand(site: Site, job: str, count: int, clock: Clock) -> tuple[str, tuple[SlotName, ...]]:
    """Submit ``count`` brokers to the enclosing instance, for the instance that runs there as ``job``.

    Returns the new job's id and the slots. Raises :class:`ExpandError`, ``FluxError`` and ``BootstrapError``.
    """
    with bindings.connection("") as handle:
        inner = _running_job_id(handle, job)
        promised = outer.slots_of_jobs(handle, _job_name(site), timeout_s=TIMEOUT_S)
        slots, type_name = _choose_slots(site, count, clock, promised)
        node_type = next(node_type for node_type in site.node_types if node_type.name == type_name)
        user = {outer.USER_KEY: {"expands": inner, "slots": list(slots)}}
        command = ["/bin/sh", "-c", task_script(site, slots)]
        jobspec = outer.jobspec_of(_job_name(site), command, count, node_type, user=user)
        job_id = submit(handle, jobspec, timeout_s=TIMEOUT_S)
    return format_job_id(job_id), slots


def _job_name(site: Site) -> str:
    return f"expand-{site.cluster}"


def task_script(site: Site, slots: Sequence[SlotName]) -> str:
    """Return the script of the job's tasks. Each task runs the user-data of its own slot."""
    arms = "".join(
        f"{task}) exec /bin/sh -c {shlex.quote(node_script.user_data(site, slot))} ;;\n"
        for task, slot in enumerate(slots)
    )
    return f'case "$FLUX_TASK_RANK" in\n{arms}esac\n'


def _running_job_id(handle: bindings.Handle, job: str) -> int:
    try:
        job_id = parse_job_id(job)
    except NotationError as error:
        raise ExpandError(f'"{job}" is not a job id') from error
    request = {"id": job_id, "attrs": ["state"]}
    try:
        found = bindings.ask(handle, "job-list.list-id", request, timeout_s=TIMEOUT_S)["job"]
    except bindings.CallFailed as failure:
        if not failure.answered:
            raise
        raise ExpandError(f"the enclosing instance has no job {job}") from failure
    if found.get("state") != _RUNNING:
        raise ExpandError(f"job {job} is not running")
    return job_id


def _choose_slots(
    site: Site, count: int, clock: Clock, promised: frozenset[SlotName]
) -> tuple[tuple[SlotName, ...], TypeName]:
    """Choose free slots of one type, lowest ranks first. ``promised`` slots belong to jobs that may not run yet."""
    with bindings.connection(site.flux.uri) as handle:
        owner = owner_of(handle, timeout_s=TIMEOUT_S)
    if owner is not None:
        # The manager would not know of these slots, and might lease the same ones.
        raise ExpandError(
            f"a manager runs there ({owner}) and may lease the same slots; a second broker on a slot disconnects"
            " the first. Stop the manager first, or use provider = flux, with which it adds nodes by itself"
        )
    flux = RealFlux(site.flux.uri, site.cluster_uuid, clock, timeout_s=TIMEOUT_S)
    port = flux.port()
    try:
        free = free_slots(site, port.ranks(), port.launches())
    finally:
        port.close()
    free = {name: [slot for slot in slots if slot not in promised] for name, slots in free.items()}
    for type_name, slots in free.items():
        if len(slots) >= count:
            return tuple(slots[:count]), type_name
    most = max((len(slots) for slots in free.values()), default=0)
    raise FluxError(f"{count} slots of one type are needed, but at most {most} are free")


def free_slots(site: Site, ranks: Sequence[FluxRank], launches: Sequence[Launch]) -> dict[TypeName, list[SlotName]]:
    """List the slots of each type that are offline, not leased and not drained (a drained one would get no job)."""
    by_site = {slot: node_type.name for node_type in site.node_types for slot in node_type.slots}
    leased = {launch.slot for launch in launches}
    free: dict[TypeName, list[SlotName]] = {}
    for rank in ranks:
        name = rank.type_name or by_site.get(rank.host)
        taken = rank.online or rank.allocated or rank.excluded or rank.drain_reason is not None
        if name is not None and not taken and rank.host not in leased:
            free.setdefault(name, []).append(rank.host)
    return free
