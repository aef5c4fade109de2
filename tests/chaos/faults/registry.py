"""All faults by kind, and how to apply one. ``tests.chaos.run.script`` decides how often each kind happens."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.core.nodes import CloudState
from tests.chaos.faults.cloud import CLOUD_FAULTS
from tests.chaos.faults.flux import FLUX_FAULTS
from tests.chaos.faults.history import HISTORY_FAULTS
from tests.chaos.faults.manager import MANAGER_FAULTS
from tests.chaos.faults.nodes import NODE_FAULTS
from tests.chaos.faults.peers import PEER_FAULTS, turn_peer_knob
from tests.chaos.faults.people import PEOPLE_FAULTS
from tests.chaos.faults.types import EndFault, FaultAction
from tests.chaos.faults.upkeep import UPKEEP_FAULTS
from tests.chaos.run.run import Run
from tests.chaos.run.script import GROUP_KNOBS, JOIN_KNOBS, KNOBS, PEER_KNOBS, Act

FAULTS: Mapping[str, FaultAction] = {
    **CLOUD_FAULTS,
    **NODE_FAULTS,
    **FLUX_FAULTS,
    **MANAGER_FAULTS,
    **HISTORY_FAULTS,
    **PEOPLE_FAULTS,
    **UPKEEP_FAULTS,
    **PEER_FAULTS,
}


def apply_fault(run: Run, act: Act) -> EndFault | None:
    """Apply a fault to a run. Call the returned function to end the fault; None if there is nothing to end."""
    if act.kind in KNOBS or act.kind in JOIN_KNOBS or act.kind in GROUP_KNOBS:
        _turn_knob(run, act)
        return None
    if act.kind in PEER_KNOBS:
        turn_peer_knob(run, act)
        return None
    return FAULTS[act.kind](run, act)


# --- faults that last for the whole phase -----------------------------------------------------------------

CLOUD_KNOBS: Mapping[str, str] = {
    "cloud.lost_reply": "p_lost_reply",
    "cloud.refused_unclearly": "p_refused_ambiguous",
    "cloud.transient": "p_transient",
    "cloud.throttle": "p_throttle",
    "cloud.empty_list": "p_empty_list",
    "cloud.truncated_list": "p_truncated_list",
    "cloud.stale_list": "p_stale_list",
    "cloud.shuffled_list": "p_shuffled_list",
    "cloud.capacity": "p_capacity",
    "cloud.destroy_ignored": "p_destroy_ignored",
    "cloud.group_only": "p_group_only",
    "cloud.group_full": "p_group_full",
    "boot.dead": "p_boot_fail",
    "boot.hangs": "p_boot_hang",
    "boot.slow": "p_boot_slow",
}
FLUX_KNOBS: Mapping[str, str] = {
    "flux.fails": "p_fail",
    "flux.lost_reply": "p_lost_reply",
    "flux.half_changed": "p_half_changed",
}


def _turn_knob(run: Run, act: Act) -> None:
    if act.kind in JOIN_KNOBS:
        run.turn_join_knob(act.kind.partition(".")[2], JOIN_KNOBS[act.kind] * act.amount)
        return
    value = {**KNOBS, **GROUP_KNOBS}[act.kind] * act.amount
    faults = run.provider.faults
    match act.kind:
        case "cloud.no_tokens":
            faults.idempotent = False
        case "cloud.late_list":
            faults.list_lag_s = (0.0, max(value, run.script.list_lag_s))
        case "boot.error":
            faults.p_boot_fail, faults.boot_fail_state = value, CloudState.FAILED
        case "boot.loops":
            run.boots.p_loop = value
        case "boot.wrong_slot":
            run.boots.p_wrong_slot = value
        case kind if kind in CLOUD_KNOBS:
            setattr(faults, CLOUD_KNOBS[kind], value)
        case kind:
            setattr(run.flux.faults, FLUX_KNOBS[kind], value)
