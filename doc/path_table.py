# ruff: noqa: INP001, SLF001 - a folder of pages, not a package; most of these functions are private
"""The functions that a purchase and a retirement run through, for ``lifecycle.md``: they are named by reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nodemanager.actors.cloud import CloudWorker
from nodemanager.actors.flux import FluxWorker
from nodemanager.actors.manager import Manager
from nodemanager.cloud.common.libcloud_port import LibcloudPort
from nodemanager.core.facts import LaunchesRecorded, NodeCreated, NodeDrained, QueueSeen, RanksChanged, RanksSeen
from nodemanager.core.orders import (
    BootNode,
    CreateNode,
    DestroyNode,
    DrainNode,
    EndLease,
    LookAtRanks,
    RecordLaunches,
    StopBroker,
)
from nodemanager.flux.instance import _WatchSession
from nodemanager.flux.port import RealFluxPort
from nodemanager.join.admission import JoinAdmission
from nodemanager.planner import calls, node_steps, observe_cloud, observe_flux, placement, plan, step_context, steps
from nodemanager.planner.brain import Brain

# By the step of ``design.md``: the facts or orders, and the functions in the order in which they run.
STEPS: Sequence[tuple[str, Sequence[type], Sequence[Callable[..., Any]]]] = (
    ("2", (QueueSeen,), (_WatchSession._on_job_events, Manager._take_fact, Brain.take, observe_flux.apply_queue)),
    (
        "3", (BootNode,),
        (Manager._act, Brain.decide, plan.plan, placement.place_jobs, placement.fleet_needs, plan.boot_orders),
    ),
    ("4", (RecordLaunches, LaunchesRecorded), (Manager._send_orders, RealFluxPort.record, calls.apply_recorded)),
    (
        "5", (CreateNode, NodeCreated),
        (node_steps.step_requested, CloudWorker._create, LibcloudPort.create, observe_cloud.apply_create),
    ),
    (
        "6", (RanksChanged, LookAtRanks, RanksSeen),
        (JoinAdmission._redeem, calls.require_look, FluxWorker._report_ranks, observe_flux.apply_ranks),
    ),
    (
        "9", (DrainNode, NodeDrained),
        (
            steps.step_nodes, node_steps.step_idle, step_context.should_retire, FluxWorker._drain,
            node_steps.second_look,
        ),
    ),
    (
        "10", (StopBroker, DestroyNode, EndLease),
        (node_steps.step_stopping, CloudWorker._destroy, observe_cloud.apply_cloud_list, node_steps.step_gone),
    ),
)  # fmt: skip


def rows() -> Iterator[tuple[str, ...]]:
    """Each step, with its facts or orders and its functions."""
    for step, said, functions in STEPS:
        where = (f"`{it.__module__.removeprefix('nodemanager.')}.{it.__qualname__}`" for it in functions)
        yield step, ", ".join(f"`{it.__name__}`" for it in said), ", ".join(where)
