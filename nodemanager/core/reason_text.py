"""Reasons as sentences, and moments as clock times: what is shown to people, made at the edge and never stored.

A reason whose code has no sentence here, or lacks a figure that its sentence needs, is shown as its code with its
figures. What to do about each stands in ``doc/reasons.md``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from nodemanager.core.notation import compress_hostlist, format_fsd, format_job_id
from nodemanager.core.reasons import Figure, Reason

# Figures that name a moment by the monotonic clock, which means nothing outside of this process.
MOMENT_FIGURES: Mapping[str, str] = {
    "deadline_s": "deadline_at",
    "retry_s": "retry_at",
    "until_s": "until_at",
    "settles_at_s": "settles_at",
    "since_s": "since_at",
}
JOB_FIGURES = frozenset({"job", "jobs"})  # where they are ids, and not their number
_STORY_MOMENT = re.compile(r" at (-?[0-9]+\.[0-9]+)$")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One moment, read off both clocks: by it the one is turned into the other."""

    now_s: float
    wall_at: float

    def to_wall(self, moment_s: float) -> float:
        return self.wall_at + (moment_s - self.now_s)

    def figures(self, reason: Reason) -> dict[str, Figure]:
        """The reason's figures: moments by the wall clock (``until_s`` as ``until_at``), jobs by Flux's own ids."""
        return dict(self._figure(name, value) for name, value in reason.figures.items())

    def _figure(self, name: str, value: Figure) -> tuple[str, Figure]:
        if name in MOMENT_FIGURES and isinstance(value, float):
            return MOMENT_FIGURES[name], self.to_wall(value)
        if name in JOB_FIGURES and isinstance(value, tuple):
            return name, tuple(map(_job_id, value))
        return name, _job_id(value) if name in JOB_FIGURES and isinstance(value, str) else value

    def with_wall_time(self, line: str) -> str:
        """A line of a node's story, its moment as wall-clock time."""
        return _STORY_MOMENT.sub(lambda found: f" at {format_wall_time(self.to_wall(float(found[1])))}", line)


def _job_id(text: str) -> str:
    return format_job_id(int(text)) if text.isascii() and text.isdecimal() else text


def format_wall_time(at: float) -> str:
    """``2026-11-21T14:03:20Z``"""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_sentence(code: str, figures: Mapping[str, Figure]) -> str:
    """What the reason says, in a sentence; ``figures`` as they are at the edge."""
    shown = {name: _shown(name, value) for name, value in figures.items()}
    template = SENTENCES.get(code)
    if template is not None:
        try:
            return template.format_map(shown)
        except KeyError:
            pass
    elif code.startswith("blocked_"):
        return _blocked(code.removeprefix("blocked_create_"), shown)
    rest = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    return code.replace("_", " ") + (f": {rest}" if rest else "")


def _blocked(kind: str, shown: Mapping[str, str]) -> str:
    until = f" until {shown['until_at']}" if "until_at" in shown else ""
    detail = f": {shown['detail']}" if shown.get("detail") else ""
    return f"not bought{until}, as a create failed ({kind}){detail}"


def _shown(name: str, value: Figure) -> str:
    if isinstance(value, tuple):
        return compress_hostlist(value) if name == "nodes" else ", ".join(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return str(value)
    if name.endswith("_at"):
        return format_wall_time(float(value))
    if name.endswith("_s"):
        return format_duration(float(value))
    if isinstance(value, Decimal):
        return f"{value:.2f}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_duration(span_s: float) -> str:
    """To the second, and to the minute beyond an hour: "1m40s", "3h05m"."""
    whole = round(abs(span_s))
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else (f"{seconds}s" if seconds else format_fsd(0.0))


SENTENCES: Mapping[str, str] = {
    # nothing is decided
    "not_the_actor": "nothing is decided: {why}",
    "not_seen_yet": "nothing is decided: {source} has not answered yet",
    "stale": "nothing is decided: {source} last answered {age_s} ago, more than {stale_after_s}",
    "paused": "nothing is decided: paused by {by} since {since_at}",
    "instance_differs": "nothing is done: the instance is not the one of the site: {why}",
    "safe_mode": "nothing is done: {why}; until {ends}",
    # a job waits
    "settling": "nodes are bought for it once the queue is quiet",
    "fits_on_a_node_that_is_up": "fits on {nodes}: about to start",
    "node_kept_for_it": "{nodes} kept for it",
    "node_free_soon": "waits for {nodes}: free in {free_in_s} at the latest",
    "node_coming": "booting {nodes}",
    "node_ordered": "{nodes} ordered",
    "behind_a_stuck_job": "behind job {job}, which cannot be given its nodes",
    "beyond_limits": "beyond the site's limits: it needs {nodes} nodes at {price_per_hour} an hour",
    "too_few_slots": "too few slots: the site has {slots} that fit, {short} short",
    "budget_spent": "the {period}'s budget of {budget} is spent ({spent}): nothing new begins",
    "spend_to_record": "gone: what it cost goes on record first",
    "held": "held: its urgency or priority is 0",
    "dependency": "waits for its dependency",
    "not_yet_scheduled": "not yet given to the scheduler",
    "queue_stopped": "queue {queue} is stopped",
    "unreadable": "its jobspec cannot be read: {why}",
    "no_type_fits": "no node type fits: the nearest, {nearest}, lacks {lacks}",
    "only_observed": "{node_type} is only observed: [Node {node_type}] mode",
    "no_node_type": "the site has no node type",
    "no_free_slot": "all slots of {node_type} that fit are taken, {short} short",
    "nodes_max": "the fleet is at nodes_max, {short} short",
    "price_per_hour_max": "a {node_type} node would cost more an hour than the {left} that the cap leaves",
    "at_quota": "the provider lets us have {nodes} ({scope}), tried again at {until_at}: {detail}",
    "breaker_open": "{failures} boots of {node_type} failed in a row ({why}), tried again at {retry_at}",
    "breaker_trying": "after {failures} boots of {node_type} that failed, one is on trial",
    "budget_cheapest_only": "the {period}'s budget nears its end: only the cheapest types are bought",
    "budget_no_new_nodes": "what stands uses up the {period}'s budget of {budget}: nothing is bought",
    "budget_left": "what is left of the {period}'s budget of {budget} does not pay for its nodes",
    "budget_of_account": "with it, {account} would use more than the {period}'s budget of {budget}",
    # a type is bought, or not
    "bought": "{nodes} bought now",
    "nothing_is_short": "no waiting job needs a node beyond those that are there or come",
    "job_held_up": "nothing is bought: job {job} holds up the queue ({why})",
    "fits_no_job_that_is_short": "no job that is short of nodes fits on it",
    "another_mix_is_cheaper": "{node_types} serve the jobs for {price_per_hour} an hour, and nothing is cheaper",
    "one_zone_short": "no zone has all the nodes that it wants in one: {zone} has {have} of them, {short} short",
    "gpu_node_taken": "job {job} waits for a {node_type} node: jobs that use no GPU fill {nodes}",
    "job_across_zones": "job {job}, which wants one zone, will start across {zones}",
    "gpu_node_unguarded": "job {job}, which wants no GPU, may start on {node_type}",
    "requeued": "job {job} is submitted once more, as its node {node} is taken back",
    "unfit": "{node} gets no more work ({why})",
    "hangs_at_work": "{node} is at work, and its broker has not answered for {hangs_s}",
    "gone_at_provider_yet_up": "{node} is missing in {absences} lists of the provider, and still up",
    # a node is bought, recorded, made
    "demand": "bought for {jobs} jobs",
    "nodes_min": "kept: nodes_min",
    "spare": "one of {spares} spares",
    "lease_to_record": "its lease goes on record first",
    "lease_not_wanted": "nothing wants it any more, and its create was not sent: its slot is given back",
    "lease_above_limits": (
        "{nodes} nodes ({nodes_max} may be) cost {price_per_hour} an hour ({price_per_hour_max} may be), and its"
        " create was not sent: its slot is given back"
    ),
    "creating": "being made",
    "create_paced": "its create waits for its turn ({creates_per_s} a second)",
    "calls_in_flight_max": "its call waits for its turn ({calls_in_flight_max} at once)",
    "call_in_flight": "{call} under way, until {deadline_at} at the latest",
    "retry_later": "left alone until {retry_at} (tried {tries} times)",
    "looked_for": "may have been made: looked for since {since_at}",
    "unknown_type": "the site has no type {node_type} any more",
    "booting": "booting for {waited_s} (given up after {boot_timeout_s})",
    # a node stays
    "busy": "at work",
    "wanted": "wanted by {jobs}",
    "idle_unconfirmed": "idle in {looks} of {needs} looks",
    "idle_not_long": "idle for {idle_s} (goes after {idle_timeout_s})",
    "paid_time_left": "idle for {idle_s}, paid for {window_left_s} more (goes when {stop_lead_s} are left)",
    "next_window_begins": (
        "idle for {idle_s}, paid for only {window_left_s} more, and no stop took less than {quickest_stop_s}:"
        " the next window is paid anyway (goes in {goes_in_s})"
    ),
    "held_by_drain": "drained by somebody else: {drain_reason}",
    "held_by_operator": "held by {by} since {since_at}",
    "may_rejoin": "its broker is away for {away_s} and may come back",
    "wanted_again": "wanted again by {jobs}: kept",
    "job_slipped_in": "a job began there: kept",
    "drained_for_another": "its rank was drained for the node before it: undrained",
    "busy_yet_drained_by_us": "at work and drained by us: undrained",
    # a node goes
    "window_closes": "idle for {idle_s}, paid for only {window_left_s} more",
    "makes_room": "makes room for job {job}",
    "above_nodes_max": "there are {nodes} nodes, and at most {nodes_max} may be",
    "retired_by_operator": "retired by {by}",
    "never_joined": "did not join within {boot_timeout_s}",
    "failed_at_provider": "failed at the provider: {detail}",
    "less_than_declared": "it has less than its slot declares as {node_type}: {lacks}",
    "broker_lost": "its broker went away {away_s} ago",
    "hangs": "idle, and its broker has not answered for {hangs_s}",
    "reclaimed": "the provider takes it back: {detail}",
    "impaired": "unhealthy, says the provider: {detail}",
    "housekeeping_survives": "its housekeeping has survived {kills} signals, SIGKILL among them, and is left alone",
    "housekeeping_stuck": "its housekeeping runs for {lasts_s}, longer than {housekeeping_max_s}",
    "flaps": "its broker went away {times} times within {within_s}",
    "found_drained": "its retirement was begun by an earlier run",
    "drain_unanswered": "its drain was not answered: again",
    "still_schedulable": "drained, and the scheduler has not noticed",
    "not_drained": "not drained after the drain: again",
    "broker_stopping": "its broker is leaving for {told_s}",
    "join_failed": "it said that it cannot join: {detail}",
    "ticket_replayed": "its ticket was shown by two",
    "released_by_operator": "released",
    "stopping": "destroyed, until it is seen gone",
    "nothing_to_destroy": "to go, and never shown by the provider",
    "orphan": "ownerless for {waited_s}",
    "gone_yet_online": "gone at the provider, its rank still online",
    "gone": "gone",
}
