"""The faults of the simulated provider. All are off by default."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodemanager.core.nodes import CloudState, FailureKind

Range = tuple[float, float]  # drawn from uniformly, both ends included


@dataclass(slots=True)
class CloudFaults:
    """Set a fault at any time: every call reads the values again. ``p_`` is a probability for each call or node."""

    # Durations in seconds.
    boot_delay_s: Range = (20.0, 60.0)  # from created to running
    user_data_s: Range = (0.0, 0.0)  # from running to the broker's start
    stop_delay_s: Range = (5.0, 20.0)  # from the destroy call to terminated
    terminated_listed_s: float = 300.0  # how long a terminated node stays in the list
    list_lag_s: Range = (0.0, 0.0)  # a new node is not listed before this
    clock_skew_s: float = 0.0  # how far the provider's clock is ahead of the world's

    # Faults of a node.
    p_boot_fail: float = 0.0  # the node ends instead of running
    boot_fail_state: CloudState = CloudState.TERMINATED  # FAILED: the node stays listed until it is destroyed
    p_boot_hang: float = 0.0  # the node runs, and its user-data never starts
    p_boot_slow: float = 0.0  # the node runs, and its user-data starts much later
    slow_user_data_s: Range = (20.0, 200.0)
    p_death_per_hour: float = 0.0  # a running node ends by itself
    # Faults of a call.
    p_lost_reply: float = 0.0  # create, destroy: carried out, but raises AMBIGUOUS
    p_refused_ambiguous: float = 0.0  # create, destroy: not carried out, and raises AMBIGUOUS
    p_transient: float = 0.0  # list, destroy: not carried out, and raises TRANSIENT
    p_throttle: float = 0.0  # any call
    throttle_retry_after_s: float = 5.0
    p_destroy_ignored: float = 0.0  # accepted, but not carried out
    refuse_creates: FailureKind | None = None  # while set, every create fails so: CONFIG, CREDENTIALS
    refuse_all: FailureKind | None = None  # while set, every call fails so: TRANSIENT (an outage), CREDENTIALS
    p_group_only: float = 0.0  # create: the placement group is made, and the call fails before the node is
    idempotent: bool = True  # a client token used before returns its node instead of a new one

    # Capacity and quota.
    capacity: int | None = None  # existing nodes of all types; above: CAPACITY
    capacity_of: dict[str, int] = field(default_factory=dict)  # by the name of the node type
    capacity_of_size: dict[str, int] = field(default_factory=dict)
    p_capacity: float = 0.0
    p_group_full: float = 0.0  # a create in a placement group: CAPACITY
    zones_full: set[str] = field(default_factory=set)  # CAPACITY for creates in placement groups there
    quota: int | None = None  # existing nodes; above: QUOTA
    quota_of_size: dict[str, int] = field(default_factory=dict)

    # Wrong lists: the call succeeds, and its answer is not true.
    p_empty_list: float = 0.0
    p_truncated_list: float = 0.0  # the second half is missing
    p_stale_list: float = 0.0  # the list of the call before
    p_shuffled_list: float = 0.0  # shuffled, with one node listed twice
