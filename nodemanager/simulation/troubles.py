"""What each kind of act does to a run, and how it ends. The kinds themselves, and how often, are in ``script``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from nodemanager.facts import (
    DecisionsPaused,
    DecisionsResumed,
    FailureKind,
    HoldPlaced,
    NodeReleased,
    RetirementAsked,
)
from nodemanager.model import (
    CloudState,
    Identity,
    JobId,
    JobState,
    LaunchId,
    Mark,
    ProviderId,
    SlotName,
    SlotsWish,
    TypeName,
)
from nodemanager.simulation.script import JOIN_KNOBS, KNOBS, Act

if TYPE_CHECKING:
    from nodemanager.simulation.scenario import Scenario

T = TypeVar("T")
End = Callable[[], None]
Trouble = Callable[["Scenario", Act], End | None]

FOREIGN_UUID = "f0e1900f-0000-4000-8000-000000000000"
AWAY_S = 250.0  # longer than nodes that joined by ticket wait for a manager


def strike(run: Scenario, act: Act) -> End | None:
    """Let it happen; what is returned ends it."""
    if act.kind in KNOBS or act.kind in JOIN_KNOBS:
        _turn(run, act)
        return None
    return TROUBLES[act.kind](run, act)


def pick(things: Sequence[T], amount: float) -> T | None:
    return things[min(int(amount * len(things)), len(things) - 1)] if things else None


# --- what is likely, for the whole phase ------------------------------------------------------------------

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
    "boot.dead": "p_boot_fail",
    "boot.hangs": "p_boot_hang",
    "boot.slow": "p_boot_slow",
}
FLUX_KNOBS: Mapping[str, str] = {
    "flux.fails": "p_fail",
    "flux.lost_reply": "p_lost_reply",
    "flux.half_changed": "p_half_changed",
}


def _turn(run: Scenario, act: Act) -> None:
    if act.kind in JOIN_KNOBS:
        run.turn_join_knob(act.kind.partition(".")[2], JOIN_KNOBS[act.kind] * act.amount)
        return
    likely = KNOBS[act.kind] * act.amount
    faults = run.provider.faults
    match act.kind:
        case "cloud.no_tokens":
            faults.idempotent = False
        case "cloud.late_list":
            faults.list_lag_s = (0.0, likely)
        case "boot.error":
            faults.p_boot_fail, faults.boot_fail_state = likely, CloudState.FAILED
        case "boot.loops":
            run.boots.p_loop = likely
        case "boot.wrong_slot":
            run.boots.p_wrong_slot = likely
        case kind if kind in CLOUD_KNOBS:
            setattr(faults, CLOUD_KNOBS[kind], likely)
        case kind:
            setattr(run.flux.faults, FLUX_KNOBS[kind], likely)


# --- the cloud --------------------------------------------------------------------------------------------


def _refuse_all(run: Scenario, kind: FailureKind) -> End:
    run.provider.faults.refuse_all = kind

    def end() -> None:
        run.provider.faults.refuse_all = None

    return end


def _outage(run: Scenario, act: Act) -> End:
    """Every call answers 500."""
    return _refuse_all(run, FailureKind.TRANSIENT if act.amount < 0.7 else FailureKind.AMBIGUOUS)


def _credentials(run: Scenario, act: Act) -> End:
    del act
    return _refuse_all(run, FailureKind.CREDENTIALS)


def _quota(run: Scenario, act: Act) -> End:
    run.provider.faults.quota = int(act.amount * run.policy.nodes_max)

    def end() -> None:
        run.provider.faults.quota = None

    return end


def _stockout(run: Scenario, act: Act) -> End:
    node_type = pick(run.policy.node_types, act.amount)
    name = node_type.name if node_type is not None else ""
    run.provider.faults.capacity_of[name] = 0

    def end() -> None:
        run.provider.faults.capacity_of.pop(name, None)

    return end


def _slow_end(run: Scenario, act: Act) -> End:
    """What is destroyed now stays half-terminated for long."""
    faults, usual = run.provider.faults, run.provider.faults.stop_delay_s
    faults.stop_delay_s = (60.0 * act.amount, 120.0)

    def end() -> None:
        faults.stop_delay_s = usual

    return end


def _stranger(run: Scenario, act: Act) -> None:
    del act
    run.provider.add_stranger()


def _impostor(run: Scenario, act: Act) -> None:
    """Somebody's node with our cluster's name, and another's UUID."""
    slot = pick(sorted(run.flux.rank_of), act.amount)
    if slot is not None:
        launch = LaunchId(f"{slot}-of-another")
        type_name = run.flux.division[slot]
        run.provider.add_stranger(Identity(run.policy.cluster, FOREIGN_UUID, launch, slot, type_name))


def _forgotten(run: Scenario, act: Act) -> None:
    """A node of ours, for a slot that is free, of a launch that nobody remembers."""
    taken = {node.identity.slot for node in run.rules.ours_standing() if node.identity is not None}
    slot = pick([it for it in sorted(run.flux.rank_of) if it not in taken | run.flux.records.keys()], act.amount)
    if slot is not None:
        launch = LaunchId(f"{slot}-forgotten-{act.number}")
        ours = Identity(run.policy.cluster, run.policy.cluster_uuid, launch, slot, run.flux.division[slot])
        run.rules.planted.add(run.provider.add_stranger(ours))


# --- nodes that run ---------------------------------------------------------------------------------------


def _connected(run: Scenario) -> list[SlotName]:
    return [slot for slot, rank in sorted(run.flux.rank_of.items()) if run.flux.online(rank)]


def _vanishes(run: Scenario, act: Act) -> None:
    node = pick(run.ours_standing(), act.amount)
    if node is not None:
        run.provider.kill(node)


def _broker_dies(run: Scenario, act: Act) -> None:
    slot = pick(_connected(run), act.amount)
    if slot is not None:
        run.flux.broker_down(slot, lost=act.number % 2 == 0)


def _cut(run: Scenario, act: Act) -> End | None:
    """The network to it: its broker joins again once that is back, if its machine still stands."""
    slot = pick(_connected(run), act.amount)
    machine = run.flux.machine_of(slot) if slot is not None else None
    if slot is None or machine is None:
        return None
    run.flux.broker_down(slot, lost=True)

    def end() -> None:
        if ProviderId(machine) in run.running():
            run.reconnected(slot, machine)

    return end


def _hangs(run: Scenario, act: Act) -> End | None:
    slot = pick(_connected(run), act.amount)
    if slot is None:
        return None
    run.flux.hang(slot)
    return lambda: run.flux.hang(slot, hung=False)


def _torpid(run: Scenario, act: Act) -> End | None:
    slot = pick(_connected(run), act.amount)
    if slot is None:
        return None
    run.flux.set_torpid(slot, torpid=True)
    return lambda: run.flux.set_torpid(slot, torpid=False)


def _housekeeping(run: Scenario, act: Act) -> End:
    """What runs after the jobs that come now takes long."""
    run.flux.set_housekeeping(act.lasts_s)
    return lambda: run.flux.set_housekeeping(run.script.housekeeping_s)


# --- Flux -------------------------------------------------------------------------------------------------


def _restart(run: Scenario, act: Act) -> None:
    run.restart_rank_0(act.lasts_s)


def _unreachable(run: Scenario, act: Act) -> End:
    del act
    run.flux.unreachable = True

    def end() -> None:
        run.flux.unreachable = False

    return end


def _journal_lost(run: Scenario, act: Act) -> None:
    del act
    run.flux.lose_journal()


def _scheduler_reloaded(run: Scenario, act: Act) -> None:
    run.flux.reload_scheduler(act.lasts_s)


def _wish(run: Scenario, act: Act) -> None:
    """Somebody wants two types to share their slots otherwise."""
    names = [node_type.name for node_type in run.policy.node_types]
    one, other = names[act.number % 3], names[(act.number + 1) % 3]
    have = list(run.flux.division.values())
    both = have.count(one) + have.count(other)
    # One of each is left: a job that no rank could ever run is refused, by Flux and in this run's end.
    share = 1 + int(act.amount * (both - 1))
    run.flux.wish_slots(SlotsWish(f"wish-{act.number}", {one: share, other: both - share}))


def _resized(run: Scenario, act: Act) -> None:
    """Somebody gives a type two slots more, for which rank 0 restarts."""
    size = len(run.flux.rank_of)
    node_type = pick(run.policy.node_types, act.amount)
    name = node_type.name if node_type is not None else TypeName("")
    run.resize({SlotName(f"more{size + number}"): name for number in (1, 2)}, act.lasts_s)


# --- the manager ------------------------------------------------------------------------------------------


def _killed(run: Scenario, act: Act) -> None:
    run.kill(act.amount, act.lasts_s)


def _killed_at_a_call(run: Scenario, act: Act) -> None:
    run.kill_at_a_call(act.amount, act.lasts_s)


def _another(run: Scenario, act: Act) -> End:
    """Somebody starts a second one beside it, and ends one of them later."""
    run.start_process()
    return lambda: run.end_one(act.amount)


def _frozen(run: Scenario, act: Act) -> None:
    run.freeze(act.amount, act.lasts_s)


def _away(run: Scenario, act: Act) -> None:
    """It stays away until idle nodes that joined by ticket have ended themselves."""
    run.kill(act.amount, AWAY_S)


def _clock_jumps(run: Scenario, act: Act) -> None:
    """The manager's wall clock jumps by up to an hour, forth or back."""
    run.world.skew_s = 7200.0 * (act.amount - 0.5)


# --- people -----------------------------------------------------------------------------------------------


def _pending(run: Scenario) -> list[JobId]:
    return [job for job in run.flux.active_jobs() if run.flux.job_state(job) is JobState.SCHED]


def _cancels(run: Scenario, act: Act) -> None:
    job = pick(run.flux.active_jobs(), act.amount)
    if job is not None and run.flux_is_up():
        run.flux.cancel(job)


def _holds_a_job(run: Scenario, act: Act) -> None:
    """It stays held: it is no demand, and is there at the end."""
    job = pick(_pending(run), act.amount)
    if job is not None and run.flux_is_up():
        run.flux.set_urgency(job, 0)
        run.demand.held.add(job)


def _operator_drains(run: Scenario, act: Act) -> End | None:
    rank = pick(sorted(run.flux.rank_of.values()), act.amount)
    if rank is None or run.flux.drain_reason(rank) is not None:
        return None
    run.flux.drain(rank, "looked at")

    def end() -> None:
        if run.flux.drain_reason(rank) == "looked at":
            run.flux.undrain(rank)

    return end


def _mark(run: Scenario) -> Mark:
    return Mark("operator", run.world.wall_at())


def _leased(run: Scenario, act: Act) -> LaunchId | None:
    launch = pick(sorted(run.flux.records.values(), key=lambda launch: launch.rank), act.amount)
    return launch.id if launch is not None else None


def _operator_holds(run: Scenario, act: Act) -> End | None:
    launch = _leased(run, act)
    if launch is None:
        return None
    run.tell(HoldPlaced(launch, _mark(run)))
    return lambda: run.tell(NodeReleased(launch))


def _operator_retires(run: Scenario, act: Act) -> None:
    launch = _leased(run, act)
    if launch is not None:
        run.tell(RetirementAsked(launch, _mark(run)))


def _operator_pauses(run: Scenario, act: Act) -> End:
    del act
    run.tell(DecisionsPaused(_mark(run)))
    return lambda: run.tell(DecisionsResumed())


def _stops_the_queue(run: Scenario, act: Act) -> End:
    del act
    run.flux.stop_queue()
    return run.flux.start_queue


TROUBLES: Mapping[str, Trouble] = {
    "cloud.outage": _outage,
    "cloud.credentials": _credentials,
    "cloud.quota": _quota,
    "cloud.stockout": _stockout,
    "cloud.slow_end": _slow_end,
    "cloud.stranger": _stranger,
    "cloud.impostor": _impostor,
    "cloud.forgotten": _forgotten,
    "node.vanishes": _vanishes,
    "node.broker_dies": _broker_dies,
    "node.cut": _cut,
    "node.hangs": _hangs,
    "node.torpid": _torpid,
    "node.housekeeping": _housekeeping,
    "flux.restart": _restart,
    "flux.cut": _unreachable,
    "flux.journal_lost": _journal_lost,
    "flux.scheduler_reloaded": _scheduler_reloaded,
    "flux.wish": _wish,
    "flux.resized": _resized,
    "manager.killed": _killed,
    "manager.killed_at_a_call": _killed_at_a_call,
    "manager.another": _another,
    "manager.frozen": _frozen,
    "manager.away": _away,
    "manager.clock_jumps": _clock_jumps,
    "user.cancels": _cancels,
    "user.holds_a_job": _holds_a_job,
    "operator.drains": _operator_drains,
    "operator.holds": _operator_holds,
    "operator.retires": _operator_retires,
    "operator.pauses": _operator_pauses,
    "operator.stops_the_queue": _stops_the_queue,
}
