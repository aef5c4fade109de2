"""The codes of all reasons, and the figures that each carries. One figure has one type under one name everywhere.

A code is public: JSON, metrics, the history and ``doc/reasons.md`` use its text. ``reason_text`` has its sentence.
"""

from __future__ import annotations

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


# Where nodes for a job are, by the place of its data.
_NEAR = "near away_from cost other_cost egress elsewhere at_home not_near"


class Code(StrEnum):
    """The code of a reason: its text, the figures it always carries, and those it may carry."""

    required: frozenset[str]
    optional: frozenset[str]

    def __new__(cls, text: str, required: str = "", optional: str = "") -> Self:
        """``required`` and ``optional``: names from :class:`Figures`, separated by spaces."""
        code = str.__new__(cls, text)
        code._value_ = text
        code.required, code.optional = frozenset(required.split()), frozenset(optional.split())
        return code

    # nothing is decided
    NOT_THE_ACTOR = "not_the_actor", "why"
    NOT_SEEN_YET = "not_seen_yet", "source failure"
    STALE = "stale", "source age_s stale_after_s failure"
    PAUSED = "paused", "by since_at", "why until_at"
    INSTANCE_DIFFERS = "instance_differs", "why missing otherwise slots"
    SAFE_MODE = "safe_mode", "why ends", "lists lists_max unready node_count unready_max until_s"
    # no node is bought
    NOT_STEERABLE = "not_steerable", "why"
    RECORD_NOT_WRITTEN = "record_not_written", "failures why retry_s"
    # a job waits
    SETTLING = "settling", "settles_at_s"
    FITS_ON_A_NODE_THAT_IS_UP = "fits_on_a_node_that_is_up", "nodes", f"unheeded {_NEAR}"
    NODE_KEPT_FOR_IT = "node_kept_for_it", "nodes", f"zone unheeded {_NEAR}"
    NODE_FREE_SOON = "node_free_soon", "nodes free_in_s", f"zone unheeded {_NEAR}"
    NODE_COMING = "node_coming", "nodes", f"zone unheeded {_NEAR}"
    NODE_CREATE_FAILED = "node_create_failed", "nodes detail"
    NODE_QUEUED_OUTSIDE = "node_queued_outside", "nodes"
    NODE_PENDING_AT_PROVIDER = "node_pending_at_provider", "nodes detail"
    NODE_ORDERED = "node_ordered", "nodes", f"zone unheeded {_NEAR}"
    BEHIND_A_STUCK_JOB = "behind_a_stuck_job", "job"
    BEYOND_LIMITS = "beyond_limits", "node_count nodes_max price_per_hour price_per_hour_max"
    BEYOND_SCHEDULE = "beyond_schedule", "until_at"
    BEYOND_CLOUD = "beyond_cloud", "cloud node_type node_count why"
    BEYOND_BUDGET = "beyond_budget", "account period budget node_count price_per_hour"
    TOO_FEW_SLOTS = "too_few_slots", "slots short"
    BUDGET_CHEAPEST_ONLY = "budget_cheapest_only", "period spent forecast budget"
    BUDGET_NO_NEW_NODES = "budget_no_new_nodes", "period spent forecast budget"
    BUDGET_LEFT = "budget_left", "period spent forecast budget hours"
    BUDGET_SPENT = "budget_spent", "period spent forecast budget"
    BUDGET_OF_ACCOUNT = "budget_of_account", "account period forecast budget"
    ONE_ZONE_SHORT = "one_zone_short", "zone have short"
    HELD = "held", "urgency priority"
    DEPENDENCY = "dependency", "", "jobs"
    COPY_WAITS = "copy_waits", "job"
    NOT_YET_SCHEDULED = "not_yet_scheduled", "state"
    QUEUE_STOPPED = "queue_stopped", "queue"
    TOO_MANY_SHAPES = "too_many_shapes", "shapes considered"
    TOO_MUCH_TO_PLAN = "too_much_to_plan", "shapes"
    USER_DRAINS_NODES = "user_drains_nodes", "account job failures retry_s"  # also a warning
    GANG_REFUSED = "gang_refused", "node_type node_count detail until_s"  # also a warning
    UNREADABLE = "unreadable", "why"
    SET_ASIDE = "set_aside", "why"
    NO_TYPE_FITS = "no_type_fits", "nearest lacks"
    ONLY_FOR_GPU_JOBS = "only_for_gpu_jobs", "node_types"
    NO_NODE_TYPE = "no_node_type"
    TYPE_LIMIT = "type_limit", "schedule node_type nodes_max", "short until_at ends jobs"
    NO_FREE_SLOT = "no_free_slot", "node_type slots short", "jobs"
    NODES_MAX = "nodes_max", "node_type nodes_max short", "jobs"
    SPOT_SHARE_MAX = "spot_share_max", "node_type spot_share_max"
    PRICE_PER_HOUR_MAX = "price_per_hour_max", "node_type price_per_hour left price_per_hour_max", "jobs"
    ONLY_OBSERVED = "only_observed", "node_type"
    CLOUD_CLOSED = "cloud_closed", "cloud why"
    CLOUD_BUDGET_SPENT = "cloud_budget_spent", "cloud period spent forecast budget"
    CLOUD_BUDGET_USED_UP = "cloud_budget_used_up", "cloud period spent forecast budget"
    CLOUD_BUDGET_LEFT = "cloud_budget_left", "cloud period spent forecast budget hours"
    CLOUD_FULL = "cloud_full", "cloud why", "jobs"
    AT_QUOTA = "at_quota", "scope node_count detail until_s"
    BREAKER_OPEN = "breaker_open", "node_type image failures why retry_s"
    BREAKER_TRYING = "breaker_trying", "node_type image failures why"
    # a job runs in another instance
    DELEGATION_STOPPED = "delegation_stopped", "detail"
    DELEGATED_NEW = "delegated_new"
    DELEGATED_DEPENDENCY = "delegated_dependency"
    DELEGATION_CHOOSING = "delegation_choosing"
    PEER_CHOSEN = "peer_chosen", "peer wait price_per_hour others"
    NO_PEER_READY = "no_peer_ready", "detail"
    DELEGATION_REFUSED = "delegation_refused", "detail"
    DELEGATED_HELD = "delegated_held", "peer remote"
    DELEGATED_PENDING = "delegated_pending", "peer remote", "expected_at"
    DELEGATED_STARTING = "delegated_starting", "peer"
    DELEGATED_RUNNING = "delegated_running", "peer remote"
    DELEGATED_ENDING = "delegated_ending"
    DELEGATION_CALL_FAILED = "delegation_call_failed", "detail"
    SENT_TO_A_PEER = "sent_to_a_peer"
    GIVEN_BACK = "given_back"
    PEER_UNREACHABLE = "peer_unreachable", "peer detail"
    # the nodes that are kept for an ensemble
    ENSEMBLE_KEEPS = "ensemble_keeps", "node_count"
    ENSEMBLE_ASKS_FOR_NOTHING = "ensemble_asks_for_nothing"
    ENSEMBLE_AT_ITS_MAX = "ensemble_at_its_max", "scope nodes_max wanted"
    ENSEMBLE_SHARE = "ensemble_share", "wanted have nodes_max others"
    ENSEMBLE_BUDGET_SPENT = "ensemble_budget_spent", "spent budget"
    # a create fails, by the kind of the failure; it blocks a type for a while
    CREATE_CAPACITY = "create_capacity", "detail"
    CREATE_THROTTLED = "create_throttled", "detail"
    CREATE_CREDENTIALS = "create_credentials", "detail"
    CREATE_CONFIG = "create_config", "detail"
    CREATE_GONE = "create_gone", "detail"
    CREATE_TRANSIENT = "create_transient", "detail"
    BLOCKED_CREATE_CAPACITY = "blocked_create_capacity", "until_s detail"
    BLOCKED_CREATE_THROTTLED = "blocked_create_throttled", "until_s detail"
    BLOCKED_CREATE_CREDENTIALS = "blocked_create_credentials", "until_s detail"
    BLOCKED_CREATE_CONFIG = "blocked_create_config", "until_s detail"
    BLOCKED_CREATE_GONE = "blocked_create_gone", "until_s detail"
    BLOCKED_CREATE_TRANSIENT = "blocked_create_transient", "until_s detail"
    # a type is bought, or not
    BOUGHT = "bought", "node_count"
    NODES_BEING_REMOVED = "nodes_being_removed", "nodes"
    ALL_SLOTS_TAKEN = "all_slots_taken", "node_type slots"
    NOTHING_IS_SHORT = "nothing_is_short"
    JOB_HELD_UP = "job_held_up", "job why"
    FITS_NO_JOB_THAT_IS_SHORT = "fits_no_job_that_is_short"
    KEPT_FOR_GPU_JOBS = "kept_for_gpu_jobs"
    ANOTHER_MIX_IS_CHEAPER = "another_mix_is_cheaper", "node_types price_per_hour"
    ANOTHER_TYPE_IS_CHEAPER = "another_type_is_cheaper", "node_type price_per_hour"
    ANOTHER_SIZE_IS_CHEAPER = "another_size_is_cheaper", "size market price_per_hour"
    # warnings
    JOBS_HELD = "jobs_held", "job job_count"
    JOBS_RELEASED = "jobs_released", "job job_count"
    JOBS_SET_ASIDE = "jobs_set_aside", "job job_count"
    JOB_NEVER_RUNS = "job_never_runs", "job job_count"
    GPU_NODE_UNGUARDED = "gpu_node_unguarded", "node_type job"
    DRAINED_YET_PAID = "drained_yet_paid", "node_type nodes node_count price_per_hour"
    IDLE_BELOW_BUSY_NODE = "idle_below_busy_node", "node_count node jobs"
    GPU_NODE_TAKEN = "gpu_node_taken", "node_type job nodes"
    JOB_ACROSS_ZONES = "job_across_zones", "job zones"
    PRICE_OUT_OF_DATE = "price_out_of_date", "node_type ended_at"
    NODES_DRIFTED = "nodes_drifted", "node_type changed nodes node_count"
    REQUEUED = "requeued", "job node"
    ORIGINAL_ENDED = "original_ended", "job"
    COPY_STARTS = "copy_starts", "job result"
    COPY_NOT_NEEDED = "copy_not_needed", "job result"
    COPY_UNDECIDED = "copy_undecided", "job"
    UNFIT = "unfit", "node why"
    HANGS_AT_WORK = "hangs_at_work", "node hangs_s"
    DATA_NOT_SAFE = "data_not_safe", "node jobs lasts_s data_max_s"
    ANSWER_MISREAD = "answer_misread", "source operation times detail"
    GONE_AT_PROVIDER_YET_UP = "gone_at_provider_yet_up", "node absences"
    VANISHED_NOT_DESTROYED = "vanished_not_destroyed", "node unlisted_s detail"
    # the slots change
    SLOTS_WISHED = "slots_wished", "slots"
    DECLARED_AS_MEASURED = "declared_as_measured", "node_type"
    SLOTS_CHANGING = "slots_changing"
    SLOTS_IN_USE = "slots_in_use", "node_type to_give free"
    SLOTS_DO_NOT_ADD_UP = "slots_do_not_add_up", "wanted have types"
    SLOTS_UNKNOWN_TYPE = "slots_unknown_type", "node_type"
    # a node is bought, recorded, created
    DEMAND = "demand", "node_type job_count", f"not_taken group passed_over {_NEAR}"
    NODES_MIN = "nodes_min", "nodes_min", "node_type"
    SPARE = "spare", "node_type spares"
    LEASE_TO_RECORD = "lease_to_record"
    LEASE_NOT_WANTED = "lease_not_wanted"
    LEASE_ABOVE_LIMITS = "lease_above_limits", "node_count nodes_max price_per_hour price_per_hour_max"
    CREATING = "creating"
    CREATE_PACED = "create_paced", "creates_per_s"
    CREATE_CALLS_PACED = "create_calls_paced", "calls_per_s"
    CALLS_IN_FLIGHT_MAX = "calls_in_flight_max", "calls_in_flight_max"
    CALL_IN_FLIGHT = "call_in_flight", "call deadline_s"
    RETRY_LATER = "retry_later", "retry_s tries", "detail"
    LOOKED_FOR = "looked_for", "absences since_s"
    UNKNOWN_TYPE = "unknown_type", "node_type"
    UNKNOWN_SIZE = "unknown_size", "node_type size"
    BOOTING = "booting", "waited_s boot_timeout_s"
    QUEUED_OUTSIDE = "queued_outside", "waited_s boot_timeout_s"
    PENDING_AT_PROVIDER = "pending_at_provider", "waited_s boot_timeout_s detail"
    FILLS_A_GAP = "fills_a_gap", "node"
    LOWER_SLOT_IS_FREE = "lower_slot_is_free"
    # a node stays
    BUSY = "busy"
    WANTED = "wanted", "jobs"
    IDLE_UNCONFIRMED = "idle_unconfirmed", "looks needs"
    IDLE_NOT_LONG = "idle_not_long", "idle_s idle_timeout_s", "drain_reason"
    PAID_TIME_LEFT = "paid_time_left", "idle_s window_left_s stop_lead_s", "drain_reason"
    NEXT_WINDOW_BEGINS = (
        "next_window_begins",
        "idle_s window_left_s stop_lead_s quickest_stop_s goes_in_s",
        "drain_reason",
    )
    PREPAID = "prepaid", "node_type prepaid", "drain_reason"
    DRAINED_BY_FLUX = "drained_by_flux", "drain_reason lasts_s foreign_drain_after_s"
    HELD_BY_DRAIN = "held_by_drain", "drain_reason"
    HELD_BY_OPERATOR = "held_by_operator", "by since_at", "why until_at"
    HELD_FOR_DATA = "held_for_data", "jobs lasts_s"
    RELEASED_BY_OPERATOR = "released_by_operator"
    MAY_REJOIN = "may_rejoin", "away_s"
    WANTED_AGAIN = "wanted_again", "jobs"
    JOB_SLIPPED_IN = "job_slipped_in"
    DRAINED_FOR_ANOTHER = "drained_for_another"
    BUSY_YET_DRAINED_BY_US = "busy_yet_drained_by_us"
    FIXED_BY_PROVIDER = "fixed_by_provider", "detail"
    OWED_TO_OTHERS = "owed_to_others", "detail"
    KEPT_BY_HIGHER_NODE = "kept_by_higher_node", "node jobs"
    # a node is replaced
    TOO_OLD = "too_old", "age_s max_age_s"
    DRIFTED = "drifted", "node_type changed"
    REPLACED_BY_OPERATOR = "replaced_by_operator", "by since_at", "why until_at"
    REPLACES = "replaces", "node why"
    REPLACED_FIRST = "replaced_first", "why node_type"
    WAITS_FOR_JOBS_TO_START = "waits_for_jobs_to_start", "why jobs"
    WAITS_FOR_WINDOW = "waits_for_window", "why opens_at"
    WAITS_FOR_TURN = "waits_for_turn", "why under_way disruption_max"
    # a node empties
    EMPTIES = "empties", "cores price_per_hour", "empties_in_s"
    NOT_REFILLED = "not_refilled", "cores price_per_hour node_type instead_per_hour", "empties_in_s"
    EMPTIES_NO_MORE = "empties_no_more"
    NO_SURGE_NEEDS_IT = "no_surge_needs_it", "cores_free surge_cores"
    # a rank of a batch job's own instance is idle
    RANK_CRITICAL = "rank_critical"
    WAITING_JOBS_NEED_IT = "waiting_jobs_need_it", "job_count"
    KEPT_BY_MIN = "kept_by_min", "nodes_min"
    RANK_GIVEN_BACK = "rank_given_back", "idle_s idle_timeout_s"
    # a node leaves
    NODE_GIVEN_BACK = "node_given_back", "job"
    WINDOW_CLOSES = "window_closes", "idle_s window_left_s stop_lead_s"
    MAKES_ROOM = "makes_room", "job"
    TYPE_ABOVE_NODES_MAX = "type_above_nodes_max", "node_type node_count nodes_max"
    ABOVE_NODES_MAX = "above_nodes_max", "node_count nodes_max"
    RETIRED_BY_OPERATOR = "retired_by_operator", "by since_at", "why until_at"
    NEVER_JOINED = "never_joined", "waited_s boot_timeout_s", "phase detail"
    VANISHED = "vanished", "unlisted_s create_grace_s"
    FAILED_AT_PROVIDER = "failed_at_provider", "detail"
    JOIN_FAILED = "join_failed", "detail"
    TICKET_REPLAYED = "ticket_replayed"
    LESS_THAN_DECLARED = (
        "less_than_declared",
        "node_type lacks",
        "has_cores has_gpus has_memory_bytes declared_cores declared_gpus declared_memory_bytes",
    )
    BROKER_LOST = "broker_lost", "away_s rejoin_timeout_s"
    HANGS = "hangs", "hangs_s rejoin_timeout_s"
    RECLAIMED = "reclaimed", "detail"
    IMPAIRED = "impaired", "detail"
    HOUSEKEEPING_STUCK = "housekeeping_stuck", "lasts_s housekeeping_max_s"
    HOUSEKEEPING_SURVIVES = "housekeeping_survives", "kills", "lasts_s node"
    FLAPS = "flaps", "times within_s"
    FOUND_DRAINED = "found_drained"
    DRAIN_UNANSWERED = "drain_unanswered"
    IDLE_NODES_BELOW = "idle_nodes_below", "node"
    LEAVES_WITH_OTHERS = "leaves_with_others"
    STILL_SCHEDULABLE = "still_schedulable"
    NOT_DRAINED = "not_drained"
    BROKER_STOPPING = "broker_stopping", "told_s broker_stop_s"
    PROCESS_SURVIVES = "process_survives", "detail"
    STOPPING = "stopping"
    NOTHING_TO_DESTROY = "nothing_to_destroy"
    ORPHAN = "orphan", "waited_s orphan_grace_s"
    GONE_YET_ONLINE = "gone_yet_online"
    SPEND_TO_RECORD = "spend_to_record"
    GONE = "gone"


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
