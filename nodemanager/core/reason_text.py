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
from nodemanager.core.reasons import Figure, Reason

# Figures that name a moment by the monotonic clock, which means nothing outside this process.
MOMENT_FIGURES: Mapping[str, str] = {
    "deadline_s": "deadline_at",
    "retry_s": "retry_at",
    "until_s": "until_at",
    "settles_at_s": "settles_at",
    "since_s": "since_at",
}
JOB_FIGURES = frozenset({"job", "jobs"})  # if they hold ids; ``jobs`` may also be a count
_USER = re.compile(r"\buser ([0-9]{1,10})\b")  # an account, as ``planner.cost.budget`` names it
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
    """Write a reason as a sentence. ``figures`` come from :meth:`ClockReading.figures`."""
    shown = {name: _format_figure(name, value) for name, value in figures.items()}
    template = SENTENCES.get(code)
    if template is not None:
        if shown.get("jobs"):
            template += ENDINGS.get(code, "")
        try:
            sentence = template.format_map(shown).removesuffix(": ")  # a drain may have no reason
            return _ONE_OF_MANY.sub(lambda found: f"1{found[1]} {found[2]}", sentence)
        except KeyError:
            pass
    elif code.startswith("blocked_"):
        return _blocked_sentence(code.removeprefix("blocked_create_"), shown)
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    return code.replace("_", " ") + (f": {rest}" if rest else "")


def _blocked_sentence(kind: str, shown: Mapping[str, str]) -> str:
    until = f" until {shown['until_at']}" if "until_at" in shown else ""
    detail = f": {shown['detail']}" if shown.get("detail") else ""
    return f"not bought{until}: a create failed ({kind}){detail}"


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
    "not_the_actor": "nothing is decided: {why}",
    "not_seen_yet": "nothing is decided: {source} has not answered yet",
    "stale": "nothing is decided: {source} last answered {age_s} ago, longer than {stale_after_s}",
    "paused": "nothing is decided: paused by {by} since {since_at}",
    "instance_differs": "nothing is done: the instance does not match the site: {why}",
    "safe_mode": "nothing is done: {why}; until {ends}",
    # a job waits
    "settling": "nodes are bought once the queue is quiet",
    "fits_on_a_node_that_is_up": "fits on {nodes}: about to start",
    "node_kept_for_it": "{nodes} kept for it",
    "node_free_soon": "waits for {nodes}: free in {free_in_s} at the latest",
    "node_coming": "booting {nodes}",
    "node_create_failed": "{nodes} ordered, but the provider failed to create it (tried again): {detail}",
    "node_queued_outside": "{nodes} waits in the queue of the outer instance",
    "node_ordered": "{nodes} ordered",
    "behind_a_stuck_job": "behind job {job}, which cannot get its nodes",
    "beyond_limits": (
        "can never run: it needs {node_count} nodes at {price_per_hour} an hour, and the site allows {nodes_max}"
        " nodes at {price_per_hour_max} an hour"
    ),
    "too_few_slots": "too few slots: the site has only {slots} that fit, {short} more needed",
    "budget_spent": "the {period}'s budget of {budget} is spent ({spent}): nothing new starts",
    "spend_to_record": "gone: its cost is recorded first",
    "held": "held: its urgency or priority is 0",
    "dependency": "waits for its dependency",
    "not_yet_scheduled": "Flux has not handed it to the scheduler yet",
    "queue_stopped": "queue {queue} is stopped",
    "too_many_shapes": "its user's jobs have {shapes} different shapes, and one plan has time for {considered}",
    "unreadable": "its jobspec cannot be read: {why}",
    "no_type_fits": "no node type fits: the nearest, {nearest}, lacks {lacks}",
    "only_observed": "{node_type} is only observed: [Node {node_type}] mode = act would allow it",
    "no_node_type": "the site has no node type",
    "no_free_slot": "{short} short of {node_type}: too few of the {slots} slots that fit are free",
    "all_slots_taken": "all {slots} slots of {node_type} are taken",
    "nodes_max": "the fleet has reached nodes_max, {short} more needed",
    "price_per_hour_max": "a {node_type} node costs more an hour than the {left} left under price_per_hour_max",
    "at_quota": "the provider allows {node_count} nodes ({scope}), next try at {until_at}: {detail}",
    "breaker_open": "{failures} boots of {node_type} failed in a row ({why}), next try at {retry_at}",
    "breaker_trying": "{failures} boots of {node_type} failed in a row, one more is on trial",
    "budget_cheapest_only": "the {period}'s budget is nearly spent: only the cheapest types are bought",
    "budget_no_new_nodes": "existing nodes use up the {period}'s budget of {budget}: nothing is bought",
    "budget_left": "the rest of the {period}'s budget of {budget} does not pay for its nodes",
    "budget_of_account": "with this job, {account} would exceed the {period}'s budget of {budget}",
    # a type is bought, or not
    "bought": "{node_count} bought now",
    "nothing_is_short": "running and booting nodes serve every waiting job",
    "job_held_up": "nothing is bought: job {job} holds up the queue ({why})",
    "fits_no_job_that_is_short": "no job that needs nodes fits on it",
    "another_mix_is_cheaper": "{node_types} serve the jobs for {price_per_hour} an hour, and no mix is cheaper",
    "one_zone_short": "no zone has room for all its nodes: {zone} has {have} of them, {short} more needed",
    "job_never_runs": (
        "job {job} can never run, and holds up {job_count} other jobs: raise the limits, or flux cancel {job}"
    ),
    "gpu_node_taken": "job {job} waits for a {node_type} node: jobs without GPUs fill {nodes}",
    "job_across_zones": "job {job} wants one zone, but will start across {zones}",
    "drained_yet_paid": (
        "somebody drained {nodes}: no job starts there, at a cost of {price_per_hour} an hour;"
        " flux resource undrain ends this"
    ),
    "gpu_node_unguarded": "job {job} wants no GPU, but may start on {node_type}",
    "requeued": "job {job} is submitted again: the provider takes back its node {node}",
    "unfit": "{node} gets no more work ({why})",
    "hangs_at_work": "{node} is busy, and its broker has not answered for {hangs_s}",
    "gone_at_provider_yet_up": "{absences} lists of the provider lack {node}, but it is still up",
    # a node is bought, recorded, created
    "demand": "bought for {job_count} jobs",
    "nodes_min": "kept: nodes_min",
    "spare": "one of {spares} spares",
    "lease_to_record": "its lease is recorded first",
    "lease_not_wanted": "not created yet, and no longer needed: its slot is given back",
    "lease_above_limits": (
        "not created yet, and the fleet has {node_count} nodes (limit {nodes_max}) at {price_per_hour} an hour"
        " (limit {price_per_hour_max}): its slot is given back"
    ),
    "creating": "being created",
    "create_paced": "its create waits for its turn ({creates_per_s} a second)",
    "calls_in_flight_max": "its call waits for its turn ({calls_in_flight_max} at once)",
    "call_in_flight": "{call} in flight, until {deadline_at} at the latest",
    "retry_later": "next try at {retry_at} (tried {tries} times)",
    "looked_for": "may exist: searched for in the provider's lists since {since_at}",
    "unknown_type": "the site no longer has type {node_type}",
    "booting": "booting for {waited_s} (given up after {boot_timeout_s})",
    "queued_outside": "waits in the queue of the outer instance for {waited_s} (given up after {boot_timeout_s})",
    # a node stays
    "busy": "busy",
    "wanted": "needed by {jobs}",
    "idle_unconfirmed": "idle in {looks} of {needs} looks",
    "idle_not_long": "idle for {idle_s} (leaves after {idle_timeout_s})",
    "paid_time_left": "idle for {idle_s}, paid for {window_left_s} more (leaves when {stop_lead_s} are left)",
    "next_window_begins": (
        "idle for {idle_s}, paid for only {window_left_s} more; no stop took less than {quickest_stop_s},"
        " so the next window is billed anyway (leaves in {goes_in_s})"
    ),
    "held_by_drain": "drained by somebody else: {drain_reason}",
    "drained_by_flux": "Flux itself drained it {lasts_s} ago: {drain_reason}; it is retired after "
    "{foreign_drain_after_s}",
    "held_by_operator": "held by {by} since {since_at}",
    "may_rejoin": "its broker disconnected {away_s} ago and may come back",
    "wanted_again": "needed again by {jobs}: kept",
    "job_slipped_in": "a job started on it: kept",
    "drained_for_another": "its rank still has the drain of an earlier node: undrained",
    "busy_yet_drained_by_us": "busy, and drained by us for a reason that no longer applies: undrained",
    # a node leaves
    "window_closes": "idle for {idle_s}, paid for only {window_left_s} more",
    "makes_room": "makes room for job {job}",
    "above_nodes_max": "the fleet has {node_count} nodes, and nodes_max is {nodes_max}",
    "retired_by_operator": "retired by {by}",
    "never_joined": "did not join within {boot_timeout_s}",
    "failed_at_provider": "failed at the provider: {detail}",
    "less_than_declared": "has less than its slot declares as {node_type}: {lacks}",
    "broker_lost": "its broker disconnected {away_s} ago",
    "hangs": "idle, and its broker has not answered for {hangs_s}",
    "reclaimed": "the provider takes it back: {detail}",
    "impaired": "the provider reports a fault: {detail}",
    "housekeeping_survives": "its housekeeping survived {kills} signals, SIGKILL among them: no more are sent",
    "housekeeping_stuck": "its housekeeping has run for {lasts_s}, longer than {housekeeping_max_s}",
    "flaps": "its broker disconnected {times} times within {within_s}",
    "found_drained": "an earlier run of the manager began to retire it",
    "drain_unanswered": "Flux did not answer its drain: drained again",
    "still_schedulable": "drained, but the scheduler has not noticed: drained again",
    "not_drained": "not drained after the drain: drained again",
    "broker_stopping": "its broker was told to stop {told_s} ago",
    "join_failed": "reported that it cannot join: {detail}",
    "ticket_replayed": "two clients presented its ticket",
    "released_by_operator": "released by an operator",
    "stopping": "being terminated, until the provider shows it gone",
    "nothing_to_destroy": "to be terminated, but the provider has never shown it",
    "orphan": "without a launch for {waited_s}",
    "gone_yet_online": "gone at the provider, but its rank is still online",
    "gone": "gone",
}
# Added to the sentence if the reason names jobs.
ENDINGS: Mapping[str, str] = {"no_free_slot": "; waits for jobs {jobs}"}
