"""What may go wrong at the simulated provider: every knob, all off."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodemanager.core.nodes import CloudState, FailureKind

Range = tuple[float, float]  # drawn from evenly, both ends included


@dataclass(slots=True)
class CloudFaults:
    """Read anew at every call, so it may be turned while the world runs. ``p_`` is a probability a call or node."""

    # How long things take, in seconds.
    boot_delay_s: Range = (20.0, 60.0)  # from created to running
    user_data_s: Range = (0.0, 0.0)  # from running to the broker's start
    stop_delay_s: Range = (5.0, 20.0)  # from a destroy to terminated
    terminated_listed_s: float = 300.0  # a terminated node stays in the list that long
    list_lag_s: Range = (0.0, 0.0)  # a new node is not listed before this
    clock_skew_s: float = 0.0  # how far the provider's clock is ahead of the world's

    # What becomes of a node.
    p_boot_fail: float = 0.0  # ends instead of running
    boot_fail_state: CloudState = CloudState.TERMINATED  # FAILED: stays listed until it is destroyed
    p_boot_hang: float = 0.0  # runs, and its user-data never does
    p_boot_slow: float = 0.0  # runs, and its user-data does much later
    slow_user_data_s: Range = (20.0, 200.0)
    p_death_per_hour: float = 0.0  # of a running node, by itself
    # What becomes of a call.
    p_lost_reply: float = 0.0  # create, destroy: carried out, and raises AMBIGUOUS
    p_refused_ambiguous: float = 0.0  # create, destroy: not carried out, and raises AMBIGUOUS
    p_transient: float = 0.0  # list, destroy: nothing happened
    p_throttle: float = 0.0  # any call
    throttle_retry_after_s: float = 5.0
    p_destroy_ignored: float = 0.0  # accepted, and nothing comes of it
    refuse_creates: FailureKind | None = None  # every create, until it is None again: CONFIG, CREDENTIALS
    refuse_all: FailureKind | None = None  # every call: an outage (TRANSIENT), CREDENTIALS
    idempotent: bool = True  # a client token seen before gives the node it made, not another

    # What may be had.
    capacity: int | None = None  # nodes standing, all types together; beyond: CAPACITY
    capacity_of: dict[str, int] = field(default_factory=dict)  # by the name of the node type
    p_capacity: float = 0.0
    quota: int | None = None  # nodes standing; beyond: QUOTA

    # What the list leaves out: an answer that is no error and is not true.
    p_empty_list: float = 0.0
    p_truncated_list: float = 0.0  # the second half is missing
    p_stale_list: float = 0.0  # as it was when it was last listed
    p_shuffled_list: float = 0.0  # in another order, and one node twice
