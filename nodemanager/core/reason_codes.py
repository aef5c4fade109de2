"""All reasons: the code, the sentence and the figures of each. One figure has one type under one name everywhere.

A code is public: JSON, metrics, the history and ``doc/reasons.md`` use its text. ``reason_text`` writes sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Self, TypedDict, get_type_hints

Figure = str | int | float | Decimal | tuple[str, ...]


class Figures(TypedDict, total=False):
    """Every figure with its type. A name in ``_s`` is seconds, in ``_at`` seconds since the epoch."""

    # names
    jobs: tuple[str, ...]
    changed: tuple[str, ...]
    lacks: tuple[str, ...]
    node_types: tuple[str, ...]
    nodes: tuple[str, ...]
    types: tuple[str, ...]
    unheeded: tuple[str, ...]
    zones: tuple[str, ...]
    # texts
    account: str
    by: str
    call: str
    detail: str
    operation: str
    others: str
    peer: str
    drain_reason: str
    ends: str
    failure: str
    image: str
    job: str
    market: str
    nearest: str
    not_taken: str
    group: str
    passed_over: tuple[str, ...]
    node: str
    node_type: str
    period: str
    phase: str
    queue: str
    remote: str
    result: str
    schedule: str
    scope: str
    size: str
    source: str
    state: str
    wait: str
    why: str
    cloud: str
    zone: str
    near: str
    away_from: str
    elsewhere: str
    at_home: str
    not_near: str
    # counts
    absences: int
    calls_in_flight_max: int
    considered: int
    cores: int
    cores_free: int
    declared_cores: int
    declared_gpus: int
    declared_memory_bytes: int
    disruption_max: int
    failures: int
    free: int
    has_cores: int
    has_gpus: int
    has_memory_bytes: int
    have: int
    job_count: int
    kills: int
    lists: int
    lists_max: int
    looks: int
    missing: int
    needs: int
    node_count: int
    nodes_max: int
    nodes_min: int
    otherwise: int
    prepaid: int
    priority: int
    shapes: int
    short: int
    slots: int
    spares: int
    surge_cores: int
    times: int
    to_give: int
    tries: int
    under_way: int
    unready: int
    unready_max: int
    urgency: int
    wanted: int
    # amounts of money
    budget: Decimal
    cost: Decimal
    egress: Decimal
    other_cost: Decimal
    forecast: Decimal
    left: Decimal
    price_per_hour: Decimal
    instead_per_hour: Decimal
    price_per_hour_max: Decimal
    spent: Decimal
    # times and rates
    age_s: float
    away_s: float
    boot_timeout_s: float
    unlisted_s: float
    create_grace_s: float
    broker_stop_s: float
    creates_per_s: float
    calls_per_s: float
    deadline_s: float
    empties_in_s: float
    ended_at: float
    expected_at: float
    foreign_drain_after_s: float
    free_in_s: float
    goes_in_s: float
    hangs_s: float
    hours: float
    housekeeping_max_s: float
    data_max_s: float
    idle_s: float
    idle_timeout_s: float
    lasts_s: float
    max_age_s: float
    not_before_at: float
    opens_at: float
    orphan_grace_s: float
    quickest_stop_s: float
    rejoin_timeout_s: float
    retry_s: float
    settles_at_s: float
    since_at: float
    since_s: float
    spot_share_max: float
    stale_after_s: float
    stop_lead_s: float
    told_s: float
    until_at: float
    until_s: float
    waited_s: float
    window_left_s: float
    within_s: float


# What several sentences end with.
_OPERATOR = "<, until {until_at}><: {why}>"
_NEAR = (
    "<, near its data in {near}>"
    "< ({cost}; as {elsewhere} {other_cost} and {egress} of egress)>"
    "<, away from its data in {away_from}>"
    "< ({cost} and {egress} of egress; as {at_home} {other_cost})>"
    "<; {not_near}>"
)
_EMPTYING = "<; drained so that no new job starts there ({drain_reason})>"
_WAITS_FOR_JOBS = "<; waits for jobs {jobs}>"
_FIGURE = re.compile(r"{(\w+)}")
_OPTIONAL_PART = re.compile("<[^<>]*>")


class Code(StrEnum):
    """The code of a reason: its text, its sentence, the figures it always carries, and those it may carry.

    A part of the sentence in ``<...>`` is shown if the reason has all its figures.
    """

    sentence: str
    required: frozenset[str]
    optional: frozenset[str]

    def __new__(cls, text: str, sentence: str, required: str = "", optional: str = "") -> Self:
        """``required``, ``optional``: figures that the sentence does not show, from :class:`Figures`."""
        code = str.__new__(cls, text)
        code._value_ = text
        code.sentence = sentence
        always = _OPTIONAL_PART.sub("", sentence)
        code.required = frozenset([*_FIGURE.findall(always), *required.split()])
        code.optional = frozenset([*_FIGURE.findall(sentence), *optional.split()]) - code.required
        return code

    # nothing is decided
    NOT_THE_ACTOR = "not_the_actor", "nothing is decided: {why}"
    NOT_SEEN_YET = "not_seen_yet", "nothing is decided: {source} has not answered yet", "failure"
    STALE = (
        "stale",
        "nothing is decided: {source} last answered {age_s} ago, longer than {stale_after_s}",
        "failure",
    )
    PAUSED = "paused", "nothing is decided: paused by {by} since {since_at}" + _OPERATOR
    INSTANCE_DIFFERS = (
        "instance_differs",
        "nothing is done: the instance does not match the site: {why}",
        "missing otherwise slots",
    )
    SAFE_MODE = (
        "safe_mode",
        "nothing is done: {why}; until {ends}",
        "",
        "lists lists_max node_count unready unready_max until_s",
    )
    # no node is bought
    NOT_STEERABLE = "not_steerable", "no node is bought while nobody can steer the manager: {why}"
    RECORD_NOT_WRITTEN = (
        "record_not_written",
        "no node is bought: Flux refused to record leases, {failures} times in a row; next try at {retry_s}: {why}",
    )
    # a job waits
    SETTLING = "settling", "nodes are bought once the queue is quiet", "settles_at_s"
    FITS_ON_A_NODE_THAT_IS_UP = (
        "fits_on_a_node_that_is_up",
        "fits on {nodes}: about to start" + _NEAR,
        "",
        "unheeded",
    )
    NODE_KEPT_FOR_IT = "node_kept_for_it", "{nodes} kept for it" + _NEAR, "", "unheeded zone"
    NODE_FREE_SOON = (
        "node_free_soon",
        "waits for {nodes}: free in {free_in_s} at the latest" + _NEAR,
        "",
        "unheeded zone",
    )
    NODE_COMING = "node_coming", "booting {nodes}" + _NEAR, "", "unheeded zone"
    NODE_CREATE_FAILED = (
        "node_create_failed",
        "{nodes} ordered, but the provider failed to create it (tried again): {detail}",
    )
    NODE_QUEUED_OUTSIDE = "node_queued_outside", "{nodes} waits in the provider's own queue"
    NODE_PENDING_AT_PROVIDER = "node_pending_at_provider", "{nodes} ordered, but it does not run yet: {detail}"
    NODE_ORDERED = "node_ordered", "{nodes} ordered" + _NEAR, "", "unheeded zone"
    BEHIND_A_STUCK_JOB = "behind_a_stuck_job", "behind job {job}, which cannot get its nodes"
    BEYOND_LIMITS = (
        "beyond_limits",
        (
            "can never run: it needs {node_count} nodes at {price_per_hour} an hour, and the site allows"
            " {nodes_max} nodes at {price_per_hour_max} an hour"
        ),
    )
    BEYOND_SCHEDULE = (
        "beyond_schedule",
        "the limits do not allow its nodes until {until_at}, when a schedule changes them",
    )
    BEYOND_CLOUD = (
        "beyond_cloud",
        "can never run: it needs {node_count} nodes of {node_type}, and the cloud {cloud} allows fewer: {why}",
    )
    BEYOND_BUDGET = (
        "beyond_budget",
        (
            "an hour of the {node_count} nodes that it needs costs {price_per_hour}, above the budget of"
            " {budget} for a {period} of {account}: they are never bought at once"
        ),
    )
    TOO_FEW_SLOTS = "too_few_slots", "too few slots: the site has only {slots} that fit, {short} more needed"
    BUDGET_CHEAPEST_ONLY = (
        "budget_cheapest_only",
        "the {period}'s budget is nearly spent: only the cheapest types are bought",
        "budget forecast spent",
    )
    BUDGET_NO_NEW_NODES = (
        "budget_no_new_nodes",
        "existing nodes use up the {period}'s budget of {budget}: nothing is bought",
        "forecast spent",
    )
    BUDGET_LEFT = (
        "budget_left",
        "the rest of the {period}'s budget of {budget} does not pay for its nodes",
        "forecast spent hours",
    )
    BUDGET_SPENT = (
        "budget_spent",
        "the {period}'s budget of {budget} is spent ({spent}): nothing new starts",
        "forecast",
    )
    BUDGET_OF_ACCOUNT = (
        "budget_of_account",
        "with this job, {account} would exceed the {period}'s budget of {budget}",
        "forecast",
    )
    ONE_ZONE_SHORT = (
        "one_zone_short",
        "no zone has room for all its nodes: {zone} has {have} of them, {short} more needed",
    )
    HELD = "held", "held: its urgency or priority is 0", "priority urgency"
    DEPENDENCY = (
        "dependency",
        "waits for its dependency< on jobs {jobs}><, and starts no earlier than {not_before_at}>",
    )
    COPY_WAITS = "copy_waits", "starts only if job {job} fails, and is cancelled if that ends well"
    NOT_YET_SCHEDULED = "not_yet_scheduled", "Flux has not handed it to the scheduler yet", "state"
    QUEUE_STOPPED = "queue_stopped", "queue {queue} is stopped"
    TOO_MANY_SHAPES = (
        "too_many_shapes",
        "its user's jobs have {shapes} different shapes, and one plan has time for {considered}",
    )
    TOO_MUCH_TO_PLAN = (
        "too_much_to_plan",
        (
            "not all waiting jobs can get nodes now, and with {shapes} different shapes among them one plan"
            " has no time to find out whether this one can"
        ),
    )
    # also a warning
    USER_DRAINS_NODES = (
        "user_drains_nodes",
        (
            "{failures} jobs of {account} made Flux drain nodes, {job} the last: nothing is bought for"
            " {account} until {retry_s}"
        ),
    )
    # also a warning
    GANG_REFUSED = (
        "gang_refused",
        (
            "the provider has too few nodes for all of it: {node_count} existed when it refused one more"
            " {node_type}; next try at {until_s}: {detail}"
        ),
    )
    UNREADABLE = "unreadable", "its jobspec cannot be read: {why}"
    SET_ASIDE = "set_aside", "this job cannot be handled: {why}"
    NO_TYPE_FITS = "no_type_fits", "no node type fits: the nearest, {nearest}, lacks {lacks}"
    ONLY_FOR_GPU_JOBS = (
        "only_for_gpu_jobs",
        "it needs {node_types}, which the site buys only for jobs that ask for GPUs",
    )
    NO_NODE_TYPE = "no_node_type", "the site has no node type"
    TYPE_LIMIT = (
        "type_limit",
        (
            "[Schedule {schedule}] allows {nodes_max} nodes of {node_type}< until {until_at}><, {short} more"
            " needed><; {ends}><; waits for jobs {jobs}>"
        ),
    )
    NO_FREE_SLOT = (
        "no_free_slot",
        "{short} short of {node_type}: too few of the {slots} slots that fit are free" + _WAITS_FOR_JOBS,
    )
    NODES_MAX = (
        "nodes_max",
        "the fleet has reached nodes_max, {short} more needed" + _WAITS_FOR_JOBS,
        "node_type nodes_max",
    )
    SPOT_SHARE_MAX = (
        "spot_share_max",
        "{node_type} is bought only as spot nodes, and more of them would exceed spot_share_max",
        "spot_share_max",
    )
    PRICE_PER_HOUR_MAX = (
        "price_per_hour_max",
        "a {node_type} node costs more an hour than the {left} left under price_per_hour_max" + _WAITS_FOR_JOBS,
        "price_per_hour price_per_hour_max",
    )
    ONLY_OBSERVED = "only_observed", "{node_type} is only observed: [Node {node_type}] mode = act would allow it"
    CLOUD_CLOSED = "cloud_closed", "nothing is done in the cloud {cloud}: {why}"
    CLOUD_BUDGET_SPENT = (
        "cloud_budget_spent",
        "the cloud {cloud} has spent its {budget} for the {period} ({spent}): its nodes leave",
        "forecast",
    )
    CLOUD_BUDGET_USED_UP = (
        "cloud_budget_used_up",
        "its nodes will use up the {budget} of the cloud {cloud} for the {period}",
        "forecast spent",
    )
    CLOUD_BUDGET_LEFT = (
        "cloud_budget_left",
        (
            "the rest of the {budget} of the cloud {cloud} for the {period} does not pay for its nodes"
            " ({spent} spent, {forecast} with running jobs)"
        ),
        "hours",
    )
    CLOUD_FULL = "cloud_full", "the cloud {cloud} gets no more nodes: {why}" + _WAITS_FOR_JOBS
    AT_QUOTA = "at_quota", "the provider allows {node_count} nodes ({scope}), next try at {until_s}: {detail}"
    BREAKER_OPEN = (
        "breaker_open",
        "{failures} boots of {node_type} failed in a row ({why}), next try at {retry_s}",
        "image",
    )
    BREAKER_TRYING = (
        "breaker_trying",
        "{failures} boots of {node_type} failed in a row, one more is on trial",
        "image why",
    )
    # a job runs in another instance
    DELEGATION_STOPPED = "delegation_stopped", "no job is delegated now: {detail}"
    DELEGATED_NEW = "delegated_new", "to run in another instance; not looked at yet"
    DELEGATED_DEPENDENCY = "delegated_dependency", "to run in another instance; waits for a dependency first"
    DELEGATION_CHOOSING = "delegation_choosing", "asks the peers whether it fits"
    PEER_CHOSEN = "peer_chosen", "chosen for wait {wait}, {price_per_hour} an hour; others: {others}", "peer"
    NO_PEER_READY = "no_peer_ready", "no peer can take it now: {detail}"
    DELEGATION_REFUSED = "delegation_refused", "no peer can ever take it: {detail}"
    DELEGATED_HELD = "delegated_held", "held, at {peer} as {remote}"
    DELEGATED_PENDING = "delegated_pending", "waits at {peer} as {remote}", "", "expected_at"
    DELEGATED_STARTING = "delegated_starting", "has started at {peer}"
    DELEGATED_RUNNING = "delegated_running", "runs at {peer} as {remote}"
    DELEGATED_ENDING = "delegated_ending", "is ending"
    DELEGATION_CALL_FAILED = "delegation_call_failed", "a call failed and is tried again: {detail}"
    SENT_TO_A_PEER = "sent_to_a_peer", "on its way to a peer"
    GIVEN_BACK = "given_back", "no peer takes it, so it runs here"
    PEER_UNREACHABLE = "peer_unreachable", "{peer} cannot be reached: {detail}"
    # the nodes that are kept for an ensemble
    ENSEMBLE_KEEPS = "ensemble_keeps", "{node_count} nodes are kept for it"
    ENSEMBLE_ASKS_FOR_NOTHING = "ensemble_asks_for_nothing", "it asks for no nodes"
    ENSEMBLE_AT_ITS_MAX = "ensemble_at_its_max", "it asks for {wanted} nodes, and {scope} nodes_max = {nodes_max}"
    ENSEMBLE_SHARE = (
        "ensemble_share",
        "it asks for {wanted} nodes, and its share of nodes_max = {nodes_max} is {have}: {others}",
    )
    ENSEMBLE_BUDGET_SPENT = (
        "ensemble_budget_spent",
        "its nodes have cost {spent} today (UTC), and its per_day = {budget}",
    )
    # a create fails, by the kind of the failure; it blocks a type for a while
    CREATE_CAPACITY = "create_capacity", "a create failed (capacity): {detail}"
    CREATE_THROTTLED = "create_throttled", "a create failed (throttled): {detail}"
    CREATE_CREDENTIALS = "create_credentials", "a create failed (credentials): {detail}"
    CREATE_CONFIG = "create_config", "a create failed (config): {detail}"
    CREATE_GONE = "create_gone", "a create failed (gone): {detail}"
    CREATE_TRANSIENT = "create_transient", "a create failed (transient): {detail}"
    BLOCKED_CREATE_CAPACITY = (
        "blocked_create_capacity",
        "not bought until {until_s}: a create failed (capacity): {detail}",
    )
    BLOCKED_CREATE_THROTTLED = (
        "blocked_create_throttled",
        "not bought until {until_s}: a create failed (throttled): {detail}",
    )
    BLOCKED_CREATE_CREDENTIALS = (
        "blocked_create_credentials",
        "not bought until {until_s}: a create failed (credentials): {detail}",
    )
    BLOCKED_CREATE_CONFIG = (
        "blocked_create_config",
        "not bought until {until_s}: a create failed (config): {detail}",
    )
    BLOCKED_CREATE_GONE = "blocked_create_gone", "not bought until {until_s}: a create failed (gone): {detail}"
    BLOCKED_CREATE_TRANSIENT = (
        "blocked_create_transient",
        "not bought until {until_s}: a create failed (transient): {detail}",
    )
    # a type is bought, or not
    BOUGHT = "bought", "{node_count} bought now"
    NODES_BEING_REMOVED = (
        "nodes_being_removed",
        "not bought while {nodes} leave: the provider would start these again",
    )
    ALL_SLOTS_TAKEN = "all_slots_taken", "all {slots} slots of {node_type} are taken"
    NOTHING_IS_SHORT = "nothing_is_short", "running and booting nodes serve every waiting job"
    JOB_HELD_UP = "job_held_up", "nothing is bought: job {job} holds up the queue ({why})"
    FITS_NO_JOB_THAT_IS_SHORT = "fits_no_job_that_is_short", "no job that needs nodes fits on it"
    KEPT_FOR_GPU_JOBS = (
        "kept_for_gpu_jobs",
        "it is bought for jobs that ask for GPUs, and none of them needs a node",
    )
    ANOTHER_MIX_IS_CHEAPER = (
        "another_mix_is_cheaper",
        "{node_types} serve the jobs for {price_per_hour} an hour, and no mix is cheaper",
    )
    ANOTHER_TYPE_IS_CHEAPER = (
        "another_type_is_cheaper",
        "{node_type} is no smaller, is free, and costs no more: {price_per_hour} an hour",
    )
    ANOTHER_SIZE_IS_CHEAPER = (
        "another_size_is_cheaper",
        (
            "{size} ({market}) is cheaper and serves the same jobs: {price_per_hour} an hour; this one is"
            " bought if that one runs out"
        ),
    )
    # warnings
    JOBS_HELD = "jobs_held", "{job_count} jobs held, {job} the first: they cannot be served for long"
    JOBS_RELEASED = "jobs_released", "{job_count} jobs released, {job} the first: they can be served"
    JOBS_SET_ASIDE = (
        "jobs_set_aside",
        "{job_count} jobs cannot be handled, {job} the first: report it, with the line job_set_aside of the log",
    )
    JOB_NEVER_RUNS = (
        "job_never_runs",
        (
            "job {job} needs more nodes than a limit or a budget ever allows, and holds up {job_count} other"
            " jobs: raise it, or flux cancel {job}"
        ),
    )
    GPU_NODE_UNGUARDED = "gpu_node_unguarded", "job {job} wants no GPU, but may start on {node_type}"
    DRAINED_YET_PAID = (
        "drained_yet_paid",
        (
            "somebody drained {nodes}: no job starts there, at a cost of {price_per_hour} an hour; flux"
            " resource undrain ends this"
        ),
        "node_type node_count",
    )
    IDLE_BELOW_BUSY_NODE = (
        "idle_below_busy_node",
        "{node_count} idle nodes below job {jobs} on {node}: only the highest can leave",
    )
    GPU_NODE_TAKEN = "gpu_node_taken", "job {job} waits for a {node_type} node: jobs without GPUs fill {nodes}"
    JOB_ACROSS_ZONES = "job_across_zones", "job {job} wants one zone, but will start across {zones}"
    PRICE_OUT_OF_DATE = "price_out_of_date", "the price of {node_type} in the site was valid until {ended_at}"
    NODES_DRIFTED = (
        "nodes_drifted",
        "{node_count} nodes of type {node_type} were made differently ({changed}): {nodes}",
    )
    REQUEUED = "requeued", "job {job} is submitted again: the provider takes back its node {node}"
    ORIGINAL_ENDED = "original_ended", "job {job} has ended: how it ended decides whether its copy starts"
    COPY_STARTS = "copy_starts", "starts in place of job {job}, which ended as {result}"
    COPY_NOT_NEEDED = "copy_not_needed", "not needed: job {job}, which it would have replaced, ended as {result}"
    COPY_UNDECIDED = "copy_undecided", "Flux no longer knows how job {job} ended: submit it again if it failed"
    UNFIT = "unfit", "{node} gets no more work ({why})"
    HANGS_AT_WORK = "hangs_at_work", "{node} is busy, and its broker has not answered for {hangs_s}"
    DATA_NOT_SAFE = (
        "data_not_safe",
        (
            "the data of job {jobs} on {node} is not safe, {lasts_s} after its end: copy it, then"
            " flux-node-manager data-safe"
        ),
        "data_max_s",
    )
    ANSWER_MISREAD = (
        "answer_misread",
        "the answer of {source} to {operation} was not understood, {times} times: {detail}",
    )
    GONE_AT_PROVIDER_YET_UP = (
        "gone_at_provider_yet_up",
        "{absences} lists of the provider lack {node}, but it is still up",
    )
    VANISHED_NOT_DESTROYED = (
        "vanished_not_destroyed",
        "the provider has not listed {node} for {unlisted_s}, and no destroy of it succeeds: {detail}",
    )
    # the slots change
    SLOTS_WISHED = "slots_wished", "{slots} slots change their type: requested"
    DECLARED_AS_MEASURED = "declared_as_measured", "{node_type} is declared as its nodes were measured"
    SLOTS_CHANGING = "slots_changing", "nothing is decided while slots change"
    SLOTS_IN_USE = "slots_in_use", "{node_type} should give up {to_give} slots, but only {free} are free"
    SLOTS_DO_NOT_ADD_UP = (
        "slots_do_not_add_up",
        "{types} have {have} slots together, but the request adds up to {wanted}",
    )
    SLOTS_UNKNOWN_TYPE = "slots_unknown_type", "the site has no type {node_type}"
    # a node is bought, recorded, created
    DEMAND = (
        "demand",
        "bought for {job_count} jobs"
        + _NEAR
        + "<, in placement group {group}><; passed over: {passed_over}><; not taken: {not_taken}>",
        "node_type",
    )
    NODES_MIN = "nodes_min", "kept: nodes_min", "nodes_min", "node_type"
    SPARE = "spare", "one of {spares} spares", "node_type"
    LEASE_TO_RECORD = "lease_to_record", "its lease is recorded first"
    LEASE_NOT_WANTED = "lease_not_wanted", "not created yet, and no longer needed: its slot is given back"
    LEASE_ABOVE_LIMITS = (
        "lease_above_limits",
        (
            "not created yet, and the fleet has {node_count} nodes (limit {nodes_max}) at {price_per_hour} an"
            " hour (limit {price_per_hour_max}): its slot is given back"
        ),
    )
    CREATING = "creating", "being created"
    CREATE_PACED = "create_paced", "its create waits for its turn ({creates_per_s} a second)"
    CREATE_CALLS_PACED = (
        "create_calls_paced",
        "its create waits for a call: the provider takes {calls_per_s} a second",
    )
    CALLS_IN_FLIGHT_MAX = "calls_in_flight_max", "its call waits for its turn ({calls_in_flight_max} at once)"
    CALL_IN_FLIGHT = "call_in_flight", "{call} in flight, until {deadline_s} at the latest"
    RETRY_LATER = (
        "retry_later",
        "its last call may still take effect, next call at {retry_s} ({tries} failed)<: {detail}>",
    )
    LOOKED_FOR = "looked_for", "may exist: searched for in the provider's lists since {since_s}", "absences"
    UNKNOWN_TYPE = "unknown_type", "the site no longer has type {node_type}"
    UNKNOWN_SIZE = "unknown_size", "the site no longer buys {node_type} as {size}: its slot is given back"
    BOOTING = "booting", "booting for {waited_s} (given up after {boot_timeout_s})"
    QUEUED_OUTSIDE = (
        "queued_outside",
        "waits in the provider's own queue for {waited_s}, costs nothing, and leaves it if no job needs it",
    )
    PENDING_AT_PROVIDER = (
        "pending_at_provider",
        "does not run after {waited_s} (given up after {boot_timeout_s}): {detail}",
    )
    FILLS_A_GAP = "fills_a_gap", "bought because {node} is wanted, and nodes come in the order of their slots"
    LOWER_SLOT_IS_FREE = (
        "lower_slot_is_free",
        "not created: a lower slot is free, and nodes come in the order of their slots",
    )
    # a node stays
    BUSY = "busy", "busy"
    WANTED = "wanted", "needed by {jobs}"
    IDLE_UNCONFIRMED = "idle_unconfirmed", "idle in {looks} of {needs} looks"
    IDLE_NOT_LONG = "idle_not_long", "idle for {idle_s} (leaves after {idle_timeout_s})" + _EMPTYING
    PAID_TIME_LEFT = (
        "paid_time_left",
        "idle for {idle_s}, paid for {window_left_s} more (leaves when {stop_lead_s} are left)" + _EMPTYING,
    )
    NEXT_WINDOW_BEGINS = (
        "next_window_begins",
        (
            "idle for {idle_s}, paid for only {window_left_s} more; no stop took less than {quickest_stop_s},"
            " so the next window is billed anyway (leaves in {goes_in_s})" + _EMPTYING
        ),
        "stop_lead_s",
    )
    PREPAID = "prepaid", "kept: one of {prepaid} prepaid {node_type} nodes" + _EMPTYING
    DRAINED_BY_FLUX = (
        "drained_by_flux",
        "Flux itself drained it {lasts_s} ago: {drain_reason}; it is retired after {foreign_drain_after_s}",
    )
    HELD_BY_DRAIN = "held_by_drain", "drained by somebody else: {drain_reason}"
    HELD_BY_OPERATOR = "held_by_operator", "held by {by} since {since_at}" + _OPERATOR
    HELD_FOR_DATA = "held_for_data", "kept: the data of job {jobs}, which ended {lasts_s} ago, is not safe yet"
    RELEASED_BY_OPERATOR = "released_by_operator", "released by an operator"
    MAY_REJOIN = "may_rejoin", "its broker disconnected {away_s} ago and may come back"
    WANTED_AGAIN = "wanted_again", "needed again by {jobs}: kept"
    JOB_SLIPPED_IN = "job_slipped_in", "a job started on it: kept"
    DRAINED_FOR_ANOTHER = "drained_for_another", "its rank still has the drain of an earlier node: undrained"
    BUSY_YET_DRAINED_BY_US = (
        "busy_yet_drained_by_us",
        "busy, and drained by us for a reason that no longer applies: undrained",
    )
    FIXED_BY_PROVIDER = "fixed_by_provider", "idle, but the provider keeps it: {detail}"
    OWED_TO_OTHERS = "owed_to_others", "takes no more jobs, and leaves when none runs there: {detail}"
    KEPT_BY_HIGHER_NODE = (
        "kept_by_higher_node",
        "not needed, but only the highest node can leave, and {node} stays",
        "jobs",
    )
    # a node is replaced
    TOO_OLD = "too_old", "{age_s} old, older than max_age ({max_age_s})"
    DRIFTED = "drifted", "the site makes {node_type} nodes differently now: {changed}"
    REPLACED_BY_OPERATOR = "replaced_by_operator", "to be replaced, by {by}" + _OPERATOR, "since_at"
    REPLACES = "replaces", "bought to replace {node} ({why})"
    REPLACED_FIRST = "replaced_first", "is replaced ({why}): drained once a new {node_type} node is up"
    WAITS_FOR_JOBS_TO_START = "waits_for_jobs_to_start", "is replaced ({why}): {jobs} start there first"
    WAITS_FOR_WINDOW = "waits_for_window", "is replaced ({why}) from {opens_at} on"
    WAITS_FOR_TURN = (
        "waits_for_turn",
        "is replaced ({why}) in its turn: {under_way} of at most {disruption_max} are under way",
    )
    # a node empties
    EMPTIES = (
        "empties",
        "takes no new job so that it empties: the other nodes have room for its {cores} cores in use",
        "price_per_hour",
        "empties_in_s",
    )
    NOT_REFILLED = (
        "not_refilled",
        (
            "takes no new job so that it empties: nodes of {node_type} can do its work for {instead_per_hour}"
            " an hour instead of {price_per_hour}"
        ),
        "cores",
        "empties_in_s",
    )
    EMPTIES_NO_MORE = "empties_no_more", "takes jobs again: the other nodes have no room for its work"
    NO_SURGE_NEEDS_IT = (
        "no_surge_needs_it",
        "leaves early: {cores_free} cores are free elsewhere, a usual surge is {surge_cores}",
    )
    # a rank of a batch job's own instance is idle
    RANK_CRITICAL = "rank_critical", "stays: the instance dies with it, or other ranks are connected through it"
    WAITING_JOBS_NEED_IT = "waiting_jobs_need_it", "stays: {job_count} jobs of the instance wait"
    KEPT_BY_MIN = "kept_by_min", "stays: the instance keeps {nodes_min} nodes"
    RANK_GIVEN_BACK = (
        "rank_given_back",
        "is given back to the outer instance: idle for {idle_s} (at least {idle_timeout_s})",
    )
    # a node leaves
    NODE_GIVEN_BACK = (
        "node_given_back",
        "job {job} has given it back: it is terminated, and its slot is free when the job ends",
    )
    WINDOW_CLOSES = "window_closes", "idle for {idle_s}, paid for only {window_left_s} more", "stop_lead_s"
    MAKES_ROOM = "makes_room", "makes room for job {job}"
    TYPE_ABOVE_NODES_MAX = (
        "type_above_nodes_max",
        "there are {node_count} nodes of {node_type}, and a schedule allows {nodes_max}",
    )
    ABOVE_NODES_MAX = "above_nodes_max", "the fleet has {node_count} nodes, and nodes_max is {nodes_max}"
    RETIRED_BY_OPERATOR = "retired_by_operator", "retired by {by}" + _OPERATOR, "since_at"
    NEVER_JOINED = "never_joined", "did not join within {boot_timeout_s}", "waited_s", "detail phase"
    VANISHED = (
        "vanished",
        "the provider has not listed it for {unlisted_s}, and it has not joined",
        "create_grace_s",
    )
    FAILED_AT_PROVIDER = "failed_at_provider", "failed at the provider: {detail}"
    JOIN_FAILED = "join_failed", "reported that it cannot join: {detail}"
    TICKET_REPLAYED = "ticket_replayed", "two clients presented its ticket"
    LESS_THAN_DECLARED = (
        "less_than_declared",
        "has less than its slot declares as {node_type}: {lacks}",
        "",
        "declared_cores declared_gpus declared_memory_bytes has_cores has_gpus has_memory_bytes",
    )
    BROKER_LOST = "broker_lost", "its broker disconnected {away_s} ago", "rejoin_timeout_s"
    HANGS = "hangs", "idle, and its broker has not answered for {hangs_s}", "rejoin_timeout_s"
    RECLAIMED = "reclaimed", "the provider takes it back: {detail}"
    IMPAIRED = "impaired", "the provider reports a fault: {detail}"
    HOUSEKEEPING_STUCK = (
        "housekeeping_stuck",
        "its housekeeping has run for {lasts_s}, longer than {housekeeping_max_s}",
    )
    HOUSEKEEPING_SURVIVES = (
        "housekeeping_survives",
        "its housekeeping survived {kills} signals, SIGKILL among them: no more are sent",
        "",
        "node lasts_s",
    )
    FLAPS = "flaps", "its broker disconnected {times} times within {within_s}"
    FOUND_DRAINED = "found_drained", "an earlier run of the manager began to retire it"
    DRAIN_UNANSWERED = "drain_unanswered", "Flux did not answer its drain: drained again"
    IDLE_NODES_BELOW = (
        "idle_nodes_below",
        "takes no new job: {node} and others below are idle, and can leave only after it",
    )
    LEAVES_WITH_OTHERS = "leaves_with_others", "waits for the drains of the nodes that leave with it"
    STILL_SCHEDULABLE = "still_schedulable", "drained, but the scheduler has not noticed: drained again"
    NOT_DRAINED = "not_drained", "not drained after the drain: drained again"
    BROKER_STOPPING = "broker_stopping", "its broker was told to stop {told_s} ago", "broker_stop_s"
    PROCESS_SURVIVES = "process_survives", "only root or its user can end what still runs there: {detail}"
    STOPPING = "stopping", "being terminated, until the provider shows it gone"
    NOTHING_TO_DESTROY = "nothing_to_destroy", "to be terminated, but the provider has never shown it"
    ORPHAN = "orphan", "without a launch for {waited_s}", "orphan_grace_s"
    GONE_YET_ONLINE = "gone_yet_online", "gone at the provider, but its rank is still online"
    SPEND_TO_RECORD = "spend_to_record", "gone: its cost is recorded first"
    GONE = "gone", "gone"


def figure_faults(code: Code, figures: Mapping[str, Figure]) -> Iterator[str]:
    """The fault of a reason's figures: one is missing, is not the code's, or has another type. For checks."""
    yield from (f"{code} lacks {name}" for name in sorted(code.required - figures.keys()))
    types = get_type_hints(Figures)
    for name, value in figures.items():
        if name not in code.required | code.optional:
            yield f"{code} has no figure {name}"
        elif not _is_of_type(value, types[name]):
            yield f"{code}: {name} is {value!r}, not of type {types[name]}"


def _is_of_type(value: Figure, wanted: object) -> bool:
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted in (int, str, Decimal):
        return isinstance(value, type(wanted())) and not isinstance(value, bool)
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
