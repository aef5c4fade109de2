"""The orders that the steps of several states share: drain, keep, wait."""

from __future__ import annotations

from nodemanager.core.drains import drain_text
from nodemanager.core.jobs import JobId
from nodemanager.core.orders import CordonNode, DrainNode, KillHousekeeping, UndrainNode
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason, because
from nodemanager.core.slots import CloudName
from nodemanager.planner.health.node_health import GivenUp, overdue_housekeeping_s, survives_kills
from nodemanager.planner.observe import hardware
from nodemanager.planner.state.node import Node
from nodemanager.planner.steps.context import Step, StepContext
from nodemanager.planner.steps.taking_jobs import takes_jobs


def is_drained(node: Node) -> bool:
    """Whether the node is drained, no matter who did it."""
    return node.rank is not None and node.rank.drain_reason is not None


def _drain(node: Node, reason: Reason, *, boot_failed: bool = False, for_operator: bool = False) -> Step:
    """Drain the node so that it can be stopped."""
    note = hardware.drain_note(reason) if reason == node.health.misfit else ""
    order = DrainNode(node.id, node.launch.rank, reason, note, boot_failed=boot_failed, for_operator=for_operator)
    return Step(reason, order)


def drain_again(node: Node, otherwise: Reason) -> Step:
    """Order a drain once more, for the reason for which the node leaves; ``otherwise`` if that is unknown."""
    return _drain(node, node.stop.retiring or otherwise, for_operator=node.stop.by_operator)


def cordon(node: Node, why: Reason, note: str = "") -> Step:
    """Drain a busy node: no new job starts, running jobs finish. Does nothing if it is drained already."""
    text = f"{drain_text(node.id)} {note}".rstrip()
    return Step(why, None if is_drained(node) else CordonNode(node.id, node.launch.rank, text, why))


def reprieve(node: Node, context: StepContext, reason: Reason) -> Step:
    """Undrain the node and keep it."""
    if context.stack is not None:
        context.stack.note_staying(node)
    context.count_live += 1
    context.count_usable += 1
    context.of_types.note(node.launch.type_name, 1, takes_jobs=True)
    return Step(reason, UndrainNode(node.id, node.launch.rank, reason))


def retire(node: Node, reason: Reason, context: StepContext) -> Step:
    """Drain the node, and stop counting it for the steps of the nodes after it."""
    if context.stack is not None:
        context.stack.note_leaving(node)
    takes = takes_jobs(node, context.snapshot, context.policy)
    context.count_live -= 1
    context.count_usable -= takes
    context.of_types.note(node.launch.type_name, -1, takes_jobs=takes)
    return _drain(node, reason)


def give_up(node: Node, given_up: GivenUp, context: StepContext) -> Step:
    """Drain a node that is not up."""
    if context.stack is not None:
        context.stack.note_leaving(node)
    return _drain(node, given_up.reason, boot_failed=given_up.boot_failed)


def wait_for_jobs(node: Node, why: Reason, context: StepContext) -> Step:
    """Wait for what runs there, but kill a housekeeping that lasts too long."""
    runs = node.rank is not None and node.rank.housekeeping_since_at is not None
    lasts_s = overdue_housekeeping_s(node, context.policy, context.now_s)
    if not runs or lasts_s is None or survives_kills(node):
        return Step(why)
    stuck = because(
        Code.HOUSEKEEPING_STUCK, lasts_s=lasts_s, housekeeping_max_s=context.policy.timing.housekeeping_max_s
    )
    return Step(stuck, KillHousekeeping(node.id, node.launch.rank, node.health.housekeeping_kills > 0, stuck))


def wait_for_answer(cloud: CloudName, context: StepContext) -> Step:
    """Wait until a call to the cloud is answered: too many are in flight."""
    most = context.policy.calls_of(cloud).calls_in_flight_max
    return Step(because(Code.CALLS_IN_FLIGHT_MAX, calls_in_flight_max=most), held=True)


def process_survives(node: Node) -> Reason | None:
    """Why the node does not end although it was told to, if a guest's process keeps it."""
    if node.cloud is None or not node.cloud.survivors:
        return None
    return because(Code.PROCESS_SURVIVES, detail=node.cloud.survivors)


def job_names(jobs: tuple[JobId, ...]) -> tuple[str, ...]:
    """The jobs' ids as text, for a reason."""
    return tuple(str(job) for job in jobs)
