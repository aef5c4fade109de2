"""Log lines about facts, moves of nodes and decisions, for the person who reads the service's log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import structlog

from nodemanager.core.facts import (
    CloudCallFailed,
    Fact,
    FluxCallFailed,
    LeftoversRemoved,
    NodeMeasured,
    NodeReported,
    OrderLapsed,
    QueueSeen,
    RanksMeasured,
)
from nodemanager.core.nodes import JoinPhase, NodeState
from nodemanager.core.notation import format_job_id
from nodemanager.core.orders import (
    BootNode,
    RecordLaunches,
)
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import Reason
from nodemanager.planner.node_index import node_index_of
from nodemanager.planner.plan import Action, Plan
from nodemanager.planner.reasons import REASON_BY_AVAILABILITY
from nodemanager.planner.snapshot import Node, Snapshot

BOOT = BootNode.__name__
# Reasons to wait that are not logged: the job's nodes are there, booting or ordered, or will be soon.
EXPECTED_WAITS = frozenset({*REASON_BY_AVAILABILITY.values(), Code.SETTLING, Code.NOT_YET_SCHEDULED})


class DecisionLog:
    """Logs each fact and each decision once. ``acts``: False if decisions are only reported."""

    def __init__(self, acts: bool) -> None:
        self._acts = acts
        self._log: Any = structlog.get_logger()
        self._logged: frozenset[str] = frozenset()  # what the latest plan logged, or still holds

    def log_fact(self, fact: Fact, known: Snapshot) -> None:
        """Log a fact that somebody should know of. ``known``: the snapshot before it."""
        match fact:
            case CloudCallFailed(operation=operation, kind=kind, detail=why):
                self._log.warning("cloud_call_failed", operation=operation, kind=str(kind), why=why)
            case LeftoversRemoved(leftovers=leftovers):
                for left in leftovers:
                    self._log.info("removed", what=left.kind, provider_id=left.provider_id, node=left.launch)
            case (
                FluxCallFailed(order=order, launches=launches, why=why)
                | OrderLapsed(order=order, launches=launches, why=why)
            ):
                what = "order_lapsed" if isinstance(fact, OrderLapsed) else "flux_call_failed"
                counted = _failed_before(order, known)
                self._log.warning(what, order=order, nodes=list(launches), why=why, **counted)
            case QueueSeen(unreadable=unreadable):
                for job in unreadable:
                    if job.id not in known.queues.unreadable and not job.set_aside:
                        self._log.warning("unreadable_job", job=str(job.id), why=job.why)
            case NodeReported():
                self._log_report(fact, known)
            case NodeMeasured() | RanksMeasured():
                self._log_hardware(fact, known)
            case _:
                pass

    def _log_hardware(self, fact: NodeMeasured | RanksMeasured, known: Snapshot) -> None:
        of_rank = node_index_of(known).launch_of_rank
        found = (
            {fact.launch: fact.hardware}
            if isinstance(fact, NodeMeasured)
            else {of_rank[rank]: had for rank, had in fact.hardware.items() if rank in of_rank}
        )
        for launch, had in found.items():
            if launch in known.nodes:
                self._log.info("node_measured", node=launch, **asdict(had))

    def _log_report(self, fact: NodeReported, known: Snapshot) -> None:
        """Log a node's report; a ticket used twice is an error. Reports of launches that have ended are skipped."""
        if fact.launch not in known.nodes:
            return
        match fact.phase:
            case JoinPhase.REPLAYED:
                self._log.error("ticket_replayed", node=fact.launch, why=fact.detail)
            case JoinPhase.FAILED | JoinPhase.RECLAIMED:
                self._log.warning("node_reported", node=fact.launch, phase=str(fact.phase), why=fact.detail)
            case _:
                self._log.info("node_reported", node=fact.launch, phase=str(fact.phase), why=fact.detail)

    def log_moves(self, before: Snapshot, after: Snapshot) -> None:
        """Log how nodes moved between two snapshots, new and ended leases, and nodes of another cluster."""
        if after.sources.claimed and not before.sources.claimed:
            self._log.info("claimed" if self._acts else "observes", launches=len(after.nodes))
        if after.nodes is not before.nodes:
            self._log_node_moves(before, after)
        if after.accounts is before.accounts:
            return
        known = before.intruders
        for intruder in after.intruders:
            if intruder not in known:
                self._log.error("foreign_cluster_uuid", provider_id=intruder.provider_id)

    def _log_node_moves(self, before: Snapshot, after: Snapshot) -> None:
        for id_, node in after.nodes.items():
            old = before.nodes.get(id_)
            if old is None and _is_another_try(node, after):
                continue
            if old is None or (old is not node and old.state is not node.state):
                was = str(old.state) if old is not None else "unknown"
                self._log.info("node", node=id_, was=was, now=str(node.state), why=node.moves[-1:])
        for id_ in before.nodes.keys() - after.nodes.keys():
            if not _is_another_try(before.nodes[id_], after):
                self._log.info("lease_ended", node=id_)

    def log_set_aside(self, before: Snapshot, after: Snapshot) -> None:
        """Log each job that is new among those set aside: a fault of this program."""
        known = before.queues.unreadable
        if after.queues.unreadable is known:
            return
        for job in after.queues.unreadable.values():
            if job.set_aside and not (job.id in known and known[job.id].set_aside):
                self._log.error("job_set_aside", job=format_job_id(job.id), userid=job.userid, why=job.why)

    def log_plan(self, new_plan: Plan) -> None:
        """Log each decision once. In observe mode every plan makes the same decisions again."""
        verb = "decided" if self._acts else "would"
        # While leases cannot be recorded, each try orders the same boots again.
        tries_again = any(it.code == Code.RECORD_NOT_WRITTEN for it in new_plan.faults)
        for action in new_plan.actions:
            is_new = _order_line(action) not in self._logged
            if is_new or (self._acts and not (tries_again and isinstance(action, BootNode))):
                self._log.info(verb, order=_order_line(action), **_because(action))
        for action in new_plan.would:
            if _order_line(action) not in self._logged:
                self._log.info("would", order=_order_line(action), **_because(action))
        lines = {_order_line(action) for action in (*new_plan.actions, *new_plan.would)}
        # Until the queue has settled, or before the next try, a plan has no decisions on buying.
        if not new_plan.settled or tries_again:
            lines |= {line for line in self._logged if line.startswith(BOOT)}
        if new_plan.stands_still is not None:
            # The numbers change with every plan; only other words are worth a new line.
            words = {name: text for name, text in new_plan.stands_still.figures.items() if isinstance(text, str)}
            lines.add(f"{new_plan.stands_still.code} {words}")
            if not lines <= self._logged:
                self._log.warning("stands_still", because=str(new_plan.stands_still))
        for warning in new_plan.warnings:
            line = f"{warning.code} {_warning_subject(warning)}"
            lines.add(line)
            if line not in self._logged:
                self._log.warning(warning.code, **warning.figures)
        self._logged = frozenset(lines | self._log_waiting_jobs(new_plan))

    def _log_waiting_jobs(self, new_plan: Plan) -> set[str]:
        """Log the number of waiting jobs by reason, whenever it changes. Return the line's key."""
        waiting = {code: count for code, count in new_plan.count_by_reason().items() if code not in EXPECTED_WAITS}
        line = f"waiting {sorted(waiting.items())}"
        if waiting and line not in self._logged:
            self._log.info("jobs_wait", **waiting)
        return {line}


def _failed_before(order: str, known: Snapshot) -> dict[str, int]:
    """How often in a row the same call failed before, if leases cannot be recorded."""
    fault = known.sources.record_fault
    return {"failed_before": fault.failures} if fault is not None and order == RecordLaunches.__name__ else {}


def _is_another_try(node: Node, now: Snapshot) -> bool:
    """Whether a lease is one that Flux refused to record, or another try. The failed call and a warning tell it."""
    return now.sources.record_fault is not None and node.state is NodeState.REQUESTED and not node.create.recorded


def _warning_subject(warning: Reason) -> object:
    figures = warning.figures
    return next((figures[name] for name in ("node", "node_type", "job", "operation") if name in figures), "")


def _order_line(action: Action) -> str:
    return f"{action.name} {action.subject_in_log}"


def _because(action: Action) -> dict[str, str]:
    return {"because": str(action.why)} if action.why is not None else {}
