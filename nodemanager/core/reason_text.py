"""Reasons as sentences and moments as clock times, for display only: nothing here is stored.

A reason is shown as its code and figures if ``SENTENCES`` lacks the code, or if a figure of the sentence is
missing. ``doc/reasons.md`` says what to do about each reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from nodemanager.core.notation import compress_hostlist, format_fsd, format_job_id
from nodemanager.core.reason_codes import Code, Figure
from nodemanager.core.reasons import Reason

# Figures that name a moment by the monotonic clock, which means nothing outside this process.
MOMENT_FIGURES: Mapping[str, str] = {
    "deadline_s": "deadline_at",
    "retry_s": "retry_at",
    "until_s": "until_at",
    "settles_at_s": "settles_at",
    "since_s": "since_at",
}
JOB_FIGURES = frozenset({"job", "jobs"})  # if they hold ids; ``jobs`` may also be a count
_USER = re.compile(r"\buser ([0-9]{1,10})\b")  # an account, as ``planner.budget`` names it
# "1 jobs" and "1 other jobs", where a sentence counts: no digit, "." or letter before it.
_ONE_OF_MANY = re.compile(r"(?<![\w.,-])1( other|) (job|node|shape|time|signal|core|GPU)s\b")
_TRAILING_MOMENT = re.compile(r" at (-?[0-9]+\.[0-9]+)$")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One moment read from both clocks, which converts monotonic moments to wall-clock time."""

    now_s: float
    wall_at: float

    def to_wall(self, moment_s: float) -> float:
        """Convert a monotonic moment to wall-clock time."""
        return self.wall_at + (moment_s - self.now_s)

    def figures(self, reason: Reason) -> dict[str, Figure]:
        """Convert a reason's figures: moments to wall-clock time (``until_s`` to ``until_at``), job ids to F58."""
        return dict(self._figure(name, value) for name, value in reason.figures.items())

    def sentence(self, reason: Reason) -> str:
        """Write a reason as a sentence for people."""
        return to_sentence(reason.code, self.figures(reason))

    def _figure(self, name: str, value: Figure) -> tuple[str, Figure]:
        if name in MOMENT_FIGURES and isinstance(value, float):
            return MOMENT_FIGURES[name], self.to_wall(value)
        if name in JOB_FIGURES and isinstance(value, tuple):
            return name, tuple(map(_job_id, value))
        return name, _job_id(value) if name in JOB_FIGURES and isinstance(value, str) else value

    def with_wall_time(self, line: str) -> str:
        """Replace the monotonic moment at the end of a line (" at 12.345") by wall-clock time."""
        return _TRAILING_MOMENT.sub(lambda found: f" at {format_wall_time(self.to_wall(float(found[1])))}", line)


def with_user_names(text: str, name_of: Callable[[int], str]) -> str:
    """Replace the ids of users in a sentence ("user 1000") by their names."""
    return _USER.sub(lambda found: f"user {name_of(int(found[1]))}", text)


def _job_id(text: str) -> str:
    return format_job_id(int(text)) if text.isascii() and text.isdecimal() else text


def format_wall_time(at: float) -> str:
    """``2026-11-21T14:03:20Z``"""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_sentence(code: str, figures: Mapping[str, Figure]) -> str:
    """Write a reason as a sentence. ``figures`` come from :meth:`ClockReading.figures`, or from a stored history.

    A history may hold codes and figures of another version: these are shown as they are.
    """
    shown = {name: _format_figure(name, value) for name, value in figures.items()}
    template = SENTENCES.get(code)
    if template is not None:
        template += "".join(ending for figure, ending in ENDINGS.get(code, ()) if shown.get(figure))
        try:
            sentence = template.format_map(shown).removesuffix(": ")  # some have no text
            return _ONE_OF_MANY.sub(lambda found: f"1{found[1]} {found[2]}", sentence)
        except KeyError:
            pass
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    return code.replace("_", " ") + (f": {rest}" if rest else "")


def _format_figure(name: str, value: Figure) -> str:
    if isinstance(value, tuple):
        return compress_hostlist(value) if name == "nodes" else ", ".join(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return str(value)
    if name.endswith("_at"):
        return format_wall_time(float(value))
    if name.endswith("_s"):
        return format_duration(float(value))
    if isinstance(value, Decimal):
        return format_money(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_money(amount: Decimal | float) -> str:
    """Write an amount to four digits, with 2 to 6 decimals: "12.50", "0.0116", "0.000234"."""
    value = float(amount)
    if not math.isfinite(value):
        return str(value)
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    whole, _, decimals = f"{value:.{max(2, min(6, digits))}f}".partition(".")
    return f"{whole}.{decimals.rstrip('0'):0<2}"


def format_duration(span_s: float) -> str:
    """Write a duration to the second, or to the minute above an hour: "1m40s", "3h05m"."""
    whole = round(abs(span_s))
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else (f"{seconds}s" if seconds else format_fsd(0.0))


SENTENCES: Mapping[str, str] = {
    # nothing is decided
    Code.NOT_THE_ACTOR: "nothing is decided: {why}",
    Code.NOT_SEEN_YET: "nothing is decided: {source} has not answered yet",
    Code.STALE: "nothing is decided: {source} last answered {age_s} ago, longer than {stale_after_s}",
    Code.PAUSED: "nothing is decided: paused by {by} since {since_at}",
    Code.INSTANCE_DIFFERS: "nothing is done: the instance does not match the site: {why}",
    Code.SAFE_MODE: "nothing is done: {why}; until {ends}",
    # no node is bought
    Code.NOT_STEERABLE: "no node is bought while nobody can steer the manager: {why}",
    Code.RECORD_NOT_WRITTEN: (
        "no node is bought: Flux refused to record leases, {failures} times in a row; next try at {retry_at}: {why}"
    ),
    # a job waits
    Code.SETTLING: "nodes are bought once the queue is quiet",
    Code.FITS_ON_A_NODE_THAT_IS_UP: "fits on {nodes}: about to start",
    Code.NODE_KEPT_FOR_IT: "{nodes} kept for it",
    Code.NODE_FREE_SOON: "waits for {nodes}: free in {free_in_s} at the latest",
    Code.NODE_COMING: "booting {nodes}",
    Code.NODE_CREATE_FAILED: "{nodes} ordered, but the provider failed to create it (tried again): {detail}",
    Code.NODE_QUEUED_OUTSIDE: "{nodes} waits in the queue of the outer instance",
    Code.NODE_PENDING_AT_PROVIDER: "{nodes} ordered, but it does not run yet: {detail}",
    Code.NODE_ORDERED: "{nodes} ordered",
    Code.BEHIND_A_STUCK_JOB: "behind job {job}, which cannot get its nodes",
    Code.BEYOND_LIMITS: (
        "can never run: it needs {node_count} nodes at {price_per_hour} an hour, and the site allows {nodes_max}"
        " nodes at {price_per_hour_max} an hour"
    ),
    Code.BEYOND_SCHEDULE: "the limits do not allow its nodes until {until_at}, when a schedule changes them",
    Code.BEYOND_CLOUD: (
        "can never run: it needs {node_count} nodes of {node_type}, and the cloud {cloud} allows fewer: {why}"
    ),
    Code.BEYOND_BUDGET: (
        "an hour of the {node_count} nodes that it needs costs {price_per_hour}, above the budget of {budget} for a"
        " {period} of {account}: they are never bought at once"
    ),
    Code.TOO_FEW_SLOTS: "too few slots: the site has only {slots} that fit, {short} more needed",
    Code.BUDGET_SPENT: "the {period}'s budget of {budget} is spent ({spent}): nothing new starts",
    Code.SPEND_TO_RECORD: "gone: its cost is recorded first",
    Code.HELD: "held: its urgency or priority is 0",
    Code.DEPENDENCY: "waits for its dependency",
    Code.COPY_WAITS: "starts only if job {job} fails, and is cancelled if that ends well",
    Code.NOT_YET_SCHEDULED: "Flux has not handed it to the scheduler yet",
    Code.QUEUE_STOPPED: "queue {queue} is stopped",
    Code.TOO_MANY_SHAPES: "its user's jobs have {shapes} different shapes, and one plan has time for {considered}",
    Code.TOO_MUCH_TO_PLAN: (
        "not all waiting jobs can get nodes now, and with {shapes} different shapes among them one plan has no time"
        " to find out whether this one can"
    ),
    Code.USER_DRAINS_NODES: (
        "{failures} jobs of {account} made Flux drain nodes, {job} the last: nothing is bought for {account} until"
        " {retry_at}"
    ),
    Code.GANG_REFUSED: (
        "the provider has too few nodes for all of it: {node_count} existed when it refused one more {node_type};"
        " next try at {until_at}: {detail}"
    ),
    Code.JOBS_HELD: "{job_count} jobs held, {job} the first: they cannot be served for long",
    Code.JOBS_RELEASED: "{job_count} jobs released, {job} the first: they can be served",
    Code.UNREADABLE: "its jobspec cannot be read: {why}",
    Code.SET_ASIDE: "this job cannot be handled: {why}",
    Code.NO_TYPE_FITS: "no node type fits: the nearest, {nearest}, lacks {lacks}",
    Code.ONLY_FOR_GPU_JOBS: "it needs {node_types}, which the site buys only for jobs that ask for GPUs",
    Code.ONLY_OBSERVED: "{node_type} is only observed: [Node {node_type}] mode = act would allow it",
    Code.CLOUD_CLOSED: "nothing is done in the cloud {cloud}: {why}",
    Code.CLOUD_BUDGET_SPENT: "the cloud {cloud} has spent its {budget} for the {period} ({spent}): its nodes leave",
    Code.CLOUD_BUDGET_USED_UP: "its nodes will use up the {budget} of the cloud {cloud} for the {period}",
    Code.CLOUD_BUDGET_LEFT: (
        "the rest of the {budget} of the cloud {cloud} for the {period} does not pay for its nodes ({spent} spent,"
        " {forecast} with running jobs)"
    ),
    Code.CLOUD_FULL: "the cloud {cloud} gets no more nodes: {why}",
    Code.NO_NODE_TYPE: "the site has no node type",
    Code.TYPE_LIMIT: "[Schedule {schedule}] allows {nodes_max} nodes of {node_type}",
    Code.NO_FREE_SLOT: "{short} short of {node_type}: too few of the {slots} slots that fit are free",
    Code.ALL_SLOTS_TAKEN: "all {slots} slots of {node_type} are taken",
    Code.NODES_MAX: "the fleet has reached nodes_max, {short} more needed",
    Code.SPOT_SHARE_MAX: "{node_type} is bought only as spot nodes, and more of them would exceed spot_share_max",
    Code.PRICE_PER_HOUR_MAX: "a {node_type} node costs more an hour than the {left} left under price_per_hour_max",
    Code.AT_QUOTA: "the provider allows {node_count} nodes ({scope}), next try at {until_at}: {detail}",
    Code.BREAKER_OPEN: "{failures} boots of {node_type} failed in a row ({why}), next try at {retry_at}",
    Code.BREAKER_TRYING: "{failures} boots of {node_type} failed in a row, one more is on trial",
    Code.BUDGET_CHEAPEST_ONLY: "the {period}'s budget is nearly spent: only the cheapest types are bought",
    Code.BUDGET_NO_NEW_NODES: "existing nodes use up the {period}'s budget of {budget}: nothing is bought",
    Code.BUDGET_LEFT: "the rest of the {period}'s budget of {budget} does not pay for its nodes",
    Code.BUDGET_OF_ACCOUNT: "with this job, {account} would exceed the {period}'s budget of {budget}",
    # a create fails
    Code.CREATE_CAPACITY: "a create failed (capacity): {detail}",
    Code.CREATE_THROTTLED: "a create failed (throttled): {detail}",
    Code.CREATE_CREDENTIALS: "a create failed (credentials): {detail}",
    Code.CREATE_CONFIG: "a create failed (config): {detail}",
    Code.CREATE_GONE: "a create failed (gone): {detail}",
    Code.CREATE_TRANSIENT: "a create failed (transient): {detail}",
    Code.BLOCKED_CREATE_CAPACITY: "not bought until {until_at}: a create failed (capacity): {detail}",
    Code.BLOCKED_CREATE_THROTTLED: "not bought until {until_at}: a create failed (throttled): {detail}",
    Code.BLOCKED_CREATE_CREDENTIALS: "not bought until {until_at}: a create failed (credentials): {detail}",
    Code.BLOCKED_CREATE_CONFIG: "not bought until {until_at}: a create failed (config): {detail}",
    Code.BLOCKED_CREATE_GONE: "not bought until {until_at}: a create failed (gone): {detail}",
    Code.BLOCKED_CREATE_TRANSIENT: "not bought until {until_at}: a create failed (transient): {detail}",
    # a type is bought, or not
    Code.BOUGHT: "{node_count} bought now",
    Code.NODES_BEING_REMOVED: "not bought while {nodes} leave: the provider would start these again",
    Code.NOTHING_IS_SHORT: "running and booting nodes serve every waiting job",
    Code.JOB_HELD_UP: "nothing is bought: job {job} holds up the queue ({why})",
    Code.FITS_NO_JOB_THAT_IS_SHORT: "no job that needs nodes fits on it",
    Code.KEPT_FOR_GPU_JOBS: "it is bought for jobs that ask for GPUs, and none of them needs a node",
    Code.ANOTHER_MIX_IS_CHEAPER: "{node_types} serve the jobs for {price_per_hour} an hour, and no mix is cheaper",
    Code.ANOTHER_TYPE_IS_CHEAPER: "{node_type} is no smaller, is free, and costs no more: {price_per_hour} an hour",
    Code.ANOTHER_SIZE_IS_CHEAPER: (
        "{size} ({market}) is cheaper and serves the same jobs: {price_per_hour} an hour; this one is bought if"
        " that one runs out"
    ),
    Code.ONE_ZONE_SHORT: "no zone has room for all its nodes: {zone} has {have} of them, {short} more needed",
    Code.JOBS_SET_ASIDE: (
        "{job_count} jobs cannot be handled, {job} the first: report it, with the line job_set_aside of the log"
    ),
    Code.JOB_NEVER_RUNS: (
        "job {job} needs more nodes than a limit or a budget ever allows, and holds up {job_count} other jobs:"
        " raise it, or flux cancel {job}"
    ),
    Code.GPU_NODE_TAKEN: "job {job} waits for a {node_type} node: jobs without GPUs fill {nodes}",
    Code.IDLE_BELOW_BUSY_NODE: "{node_count} idle nodes below job {jobs} on {node}: only the highest can leave",
    Code.JOB_ACROSS_ZONES: "job {job} wants one zone, but will start across {zones}",
    Code.DRAINED_YET_PAID: (
        "somebody drained {nodes}: no job starts there, at a cost of {price_per_hour} an hour;"
        " flux resource undrain ends this"
    ),
    Code.GPU_NODE_UNGUARDED: "job {job} wants no GPU, but may start on {node_type}",
    Code.PRICE_OUT_OF_DATE: "the price of {node_type} in the site was valid until {ended_at}",
    Code.NODES_DRIFTED: "{node_count} nodes of type {node_type} were made differently ({changed}): {nodes}",
    Code.REQUEUED: "job {job} is submitted again: the provider takes back its node {node}",
    Code.ORIGINAL_ENDED: "job {job} has ended: how it ended decides whether its copy starts",
    Code.COPY_STARTS: "starts in place of job {job}, which ended as {result}",
    Code.COPY_NOT_NEEDED: "not needed: job {job}, which it would have replaced, ended as {result}",
    Code.COPY_UNDECIDED: "Flux no longer knows how job {job} ended: submit it again if it failed",
    Code.UNFIT: "{node} gets no more work ({why})",
    Code.HANGS_AT_WORK: "{node} is busy, and its broker has not answered for {hangs_s}",
    Code.DATA_NOT_SAFE: (
        "the data of job {jobs} on {node} is not safe, {lasts_s} after its end: copy it, then flux-node-manager"
        " data-safe"
    ),
    Code.ANSWER_MISREAD: "the answer of {source} to {operation} was not understood, {times} times: {detail}",
    Code.VANISHED_NOT_DESTROYED: (
        "the provider has not listed {node} for {unlisted_s}, and no destroy of it succeeds: {detail}"
    ),
    Code.GONE_AT_PROVIDER_YET_UP: "{absences} lists of the provider lack {node}, but it is still up",
    # the slots change
    Code.SLOTS_WISHED: "{slots} slots change their type: requested",
    Code.DECLARED_AS_MEASURED: "{node_type} is declared as its nodes were measured",
    Code.SLOTS_CHANGING: "nothing is decided while slots change",
    Code.SLOTS_IN_USE: "{node_type} should give up {to_give} slots, but only {free} are free",
    Code.SLOTS_DO_NOT_ADD_UP: "{types} have {have} slots together, but the request adds up to {wanted}",
    Code.SLOTS_UNKNOWN_TYPE: "the site has no type {node_type}",
    # a node is bought, recorded, created
    Code.DEMAND: "bought for {job_count} jobs",
    Code.NODES_MIN: "kept: nodes_min",
    Code.SPARE: "one of {spares} spares",
    Code.LEASE_TO_RECORD: "its lease is recorded first",
    Code.LEASE_NOT_WANTED: "not created yet, and no longer needed: its slot is given back",
    Code.LEASE_ABOVE_LIMITS: (
        "not created yet, and the fleet has {node_count} nodes (limit {nodes_max}) at {price_per_hour} an hour"
        " (limit {price_per_hour_max}): its slot is given back"
    ),
    Code.CREATING: "being created",
    Code.CREATE_PACED: "its create waits for its turn ({creates_per_s} a second)",
    Code.CREATE_CALLS_PACED: "its create waits for a call: the provider takes {calls_per_s} a second",
    Code.CALLS_IN_FLIGHT_MAX: "its call waits for its turn ({calls_in_flight_max} at once)",
    Code.CALL_IN_FLIGHT: "{call} in flight, until {deadline_at} at the latest",
    Code.RETRY_LATER: "its last call may still take effect, next call at {retry_at} ({tries} failed)",
    Code.LOOKED_FOR: "may exist: searched for in the provider's lists since {since_at}",
    Code.UNKNOWN_TYPE: "the site no longer has type {node_type}",
    Code.UNKNOWN_SIZE: "the site no longer buys {node_type} as {size}: its slot is given back",
    Code.BOOTING: "booting for {waited_s} (given up after {boot_timeout_s})",
    Code.QUEUED_OUTSIDE: (
        "waits in the queue of the outer instance for {waited_s} (given up after {boot_timeout_s})"
    ),
    Code.PENDING_AT_PROVIDER: "does not run after {waited_s} (given up after {boot_timeout_s}): {detail}",
    Code.FILLS_A_GAP: "bought because {node} is wanted, and nodes come in the order of their slots",
    Code.LOWER_SLOT_IS_FREE: "not created: a lower slot is free, and nodes come in the order of their slots",
    # a node stays
    Code.BUSY: "busy",
    Code.WANTED: "needed by {jobs}",
    Code.IDLE_UNCONFIRMED: "idle in {looks} of {needs} looks",
    Code.IDLE_NOT_LONG: "idle for {idle_s} (leaves after {idle_timeout_s})",
    Code.PAID_TIME_LEFT: "idle for {idle_s}, paid for {window_left_s} more (leaves when {stop_lead_s} are left)",
    Code.NEXT_WINDOW_BEGINS: (
        "idle for {idle_s}, paid for only {window_left_s} more; no stop took less than {quickest_stop_s},"
        " so the next window is billed anyway (leaves in {goes_in_s})"
    ),
    Code.PREPAID: "kept: one of {prepaid} prepaid {node_type} nodes",
    Code.HELD_BY_DRAIN: "drained by somebody else: {drain_reason}",
    Code.DRAINED_BY_FLUX: "Flux itself drained it {lasts_s} ago: {drain_reason}; it is retired after "
    "{foreign_drain_after_s}",
    Code.HELD_BY_OPERATOR: "held by {by} since {since_at}",
    Code.HELD_FOR_DATA: "kept: the data of job {jobs}, which ended {lasts_s} ago, is not safe yet",
    Code.MAY_REJOIN: "its broker disconnected {away_s} ago and may come back",
    Code.WANTED_AGAIN: "needed again by {jobs}: kept",
    Code.JOB_SLIPPED_IN: "a job started on it: kept",
    Code.DRAINED_FOR_ANOTHER: "its rank still has the drain of an earlier node: undrained",
    Code.BUSY_YET_DRAINED_BY_US: "busy, and drained by us for a reason that no longer applies: undrained",
    Code.FIXED_BY_PROVIDER: "idle, but the provider keeps it: {detail}",
    Code.OWED_TO_OTHERS: "takes no more jobs, and leaves when none runs there: {detail}",
    Code.KEPT_BY_HIGHER_NODE: "not needed, but only the highest node can leave, and {node} stays",
    # a node is replaced
    Code.TOO_OLD: "{age_s} old, older than max_age ({max_age_s})",
    Code.DRIFTED: "the site makes {node_type} nodes differently now: {changed}",
    Code.REPLACED_BY_OPERATOR: "to be replaced, by {by}",
    Code.REPLACES: "bought to replace {node} ({why})",
    Code.REPLACED_FIRST: "is replaced ({why}): drained once a new {node_type} node is up",
    Code.WAITS_FOR_JOBS_TO_START: "is replaced ({why}): {jobs} start there first",
    Code.WAITS_FOR_WINDOW: "is replaced ({why}) from {opens_at} on",
    Code.WAITS_FOR_TURN: "is replaced ({why}) in its turn: {under_way} of at most {disruption_max} are under way",
    # a node empties
    Code.EMPTIES: "takes no new job so that it empties: the other nodes have room for its {cores} cores in use",
    Code.NOT_REFILLED: "takes no new job so that it empties: nodes of {node_type} can do its work"
    " for {instead_per_hour} an hour instead of {price_per_hour}",
    Code.EMPTIES_NO_MORE: "takes jobs again: the other nodes have no room for its work",
    Code.NO_SURGE_NEEDS_IT: "leaves early: {cores_free} cores are free elsewhere, a usual surge is {surge_cores}",
    # a rank of a batch job's own instance is idle
    Code.RANK_CRITICAL: "stays: the instance dies with it, or other ranks are connected through it",
    Code.WAITING_JOBS_NEED_IT: "stays: {job_count} jobs of the instance wait",
    Code.KEPT_BY_MIN: "stays: the instance keeps {nodes_min} nodes",
    Code.RANK_GIVEN_BACK: "is given back to the outer instance: idle for {idle_s} (at least {idle_timeout_s})",
    # a node leaves
    Code.NODE_GIVEN_BACK: "job {job} has given it back: it is terminated, and its slot is free when the job ends",
    Code.WINDOW_CLOSES: "idle for {idle_s}, paid for only {window_left_s} more",
    Code.MAKES_ROOM: "makes room for job {job}",
    Code.TYPE_ABOVE_NODES_MAX: "there are {node_count} nodes of {node_type}, and a schedule allows {nodes_max}",
    Code.ABOVE_NODES_MAX: "the fleet has {node_count} nodes, and nodes_max is {nodes_max}",
    Code.RETIRED_BY_OPERATOR: "retired by {by}",
    Code.NEVER_JOINED: "did not join within {boot_timeout_s}",
    Code.VANISHED: "the provider has not listed it for {unlisted_s}, and it has not joined",
    Code.FAILED_AT_PROVIDER: "failed at the provider: {detail}",
    Code.LESS_THAN_DECLARED: "has less than its slot declares as {node_type}: {lacks}",
    Code.BROKER_LOST: "its broker disconnected {away_s} ago",
    Code.HANGS: "idle, and its broker has not answered for {hangs_s}",
    Code.RECLAIMED: "the provider takes it back: {detail}",
    Code.IMPAIRED: "the provider reports a fault: {detail}",
    Code.HOUSEKEEPING_SURVIVES: "its housekeeping survived {kills} signals, SIGKILL among them: no more are sent",
    Code.HOUSEKEEPING_STUCK: "its housekeeping has run for {lasts_s}, longer than {housekeeping_max_s}",
    Code.FLAPS: "its broker disconnected {times} times within {within_s}",
    Code.FOUND_DRAINED: "an earlier run of the manager began to retire it",
    Code.IDLE_NODES_BELOW: "takes no new job: {node} and others below are idle, and can leave only after it",
    Code.LEAVES_WITH_OTHERS: "waits for the drains of the nodes that leave with it",
    Code.DRAIN_UNANSWERED: "Flux did not answer its drain: drained again",
    Code.STILL_SCHEDULABLE: "drained, but the scheduler has not noticed: drained again",
    Code.NOT_DRAINED: "not drained after the drain: drained again",
    Code.BROKER_STOPPING: "its broker was told to stop {told_s} ago",
    Code.PROCESS_SURVIVES: "only root or its user can end what still runs there: {detail}",
    Code.JOIN_FAILED: "reported that it cannot join: {detail}",
    Code.TICKET_REPLAYED: "two clients presented its ticket",
    Code.RELEASED_BY_OPERATOR: "released by an operator",
    Code.STOPPING: "being terminated, until the provider shows it gone",
    Code.NOTHING_TO_DESTROY: "to be terminated, but the provider has never shown it",
    Code.ORPHAN: "without a launch for {waited_s}",
    Code.GONE_YET_ONLINE: "gone at the provider, but its rank is still online",
    Code.GONE: "gone",
    # a job runs in another instance
    Code.DELEGATION_STOPPED: "no job is delegated now: {detail}",
    Code.DELEGATED_NEW: "to run in another instance; not looked at yet",
    Code.DELEGATED_DEPENDENCY: "to run in another instance; waits for a dependency first",
    Code.DELEGATION_CHOOSING: "asks the peers whether it fits",
    Code.PEER_CHOSEN: "chosen for wait {wait}, {price_per_hour} an hour; others: {others}",
    Code.NO_PEER_READY: "no peer can take it now: {detail}",
    Code.DELEGATION_REFUSED: "no peer can ever take it: {detail}",
    Code.DELEGATED_HELD: "held, at {peer} as {remote}",
    Code.DELEGATED_PENDING: "waits at {peer} as {remote}",
    Code.DELEGATED_STARTING: "has started at {peer}",
    Code.DELEGATED_RUNNING: "runs at {peer} as {remote}",
    Code.DELEGATED_ENDING: "is ending",
    Code.DELEGATION_CALL_FAILED: "a call failed and is tried again: {detail}",
    Code.SENT_TO_A_PEER: "on its way to a peer",
    Code.GIVEN_BACK: "no peer takes it, so it runs here",
    Code.PEER_UNREACHABLE: "{peer} cannot be reached: {detail}",
    Code.ENSEMBLE_KEEPS: "{node_count} nodes are kept for it",
    Code.ENSEMBLE_ASKS_FOR_NOTHING: "it asks for no nodes",
    Code.ENSEMBLE_AT_ITS_MAX: "it asks for {wanted} nodes, and {scope} nodes_max = {nodes_max}",
    Code.ENSEMBLE_SHARE: "it asks for {wanted} nodes, and its share of nodes_max = {nodes_max} is {have}: {others}",
    Code.ENSEMBLE_BUDGET_SPENT: "its nodes have cost {spent} today (UTC), and its per_day = {budget}",
}
# Added to the sentence if the reason has this figure.
_OPERATOR = (("until_at", ", until {until_at}"), ("why", ": {why}"))
_NEAR = (
    ("near", ", near its data in {near}"),
    ("elsewhere", " ({cost}; as {elsewhere} {other_cost} and {egress} of egress)"),
    ("away_from", ", away from its data in {away_from}"),
    ("at_home", " ({cost} and {egress} of egress; as {at_home} {other_cost})"),
    ("not_near", "; {not_near}"),
)
_EMPTYING = (("drain_reason", "; drained so that no new job starts there ({drain_reason})"),)
ENDINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    Code.RETRY_LATER: (("detail", ": {detail}"),),
    Code.IDLE_NOT_LONG: _EMPTYING,
    Code.PAID_TIME_LEFT: _EMPTYING,
    Code.NEXT_WINDOW_BEGINS: _EMPTYING,
    Code.PREPAID: _EMPTYING,
    Code.TYPE_LIMIT: (
        ("until_at", " until {until_at}"),
        ("short", ", {short} more needed"),
        ("ends", "; {ends}"),
        ("jobs", "; waits for jobs {jobs}"),
    ),
    Code.NO_FREE_SLOT: (("jobs", "; waits for jobs {jobs}"),),
    Code.DEPENDENCY: (("jobs", " on jobs {jobs}"),),
    Code.CLOUD_FULL: (("jobs", "; waits for jobs {jobs}"),),
    Code.NODES_MAX: (("jobs", "; waits for jobs {jobs}"),),
    Code.PRICE_PER_HOUR_MAX: (("jobs", "; waits for jobs {jobs}"),),
    Code.FITS_ON_A_NODE_THAT_IS_UP: _NEAR,
    Code.NODE_KEPT_FOR_IT: _NEAR,
    Code.NODE_FREE_SOON: _NEAR,
    Code.NODE_COMING: _NEAR,
    Code.NODE_ORDERED: _NEAR,
    Code.DEMAND: (
        *_NEAR,
        ("group", ", in placement group {group}"),
        ("passed_over", "; passed over: {passed_over}"),
        ("not_taken", "; not taken: {not_taken}"),
    ),
    Code.PAUSED: _OPERATOR,
    Code.HELD_BY_OPERATOR: _OPERATOR,
    Code.RETIRED_BY_OPERATOR: _OPERATOR,
    Code.REPLACED_BY_OPERATOR: _OPERATOR,
}
