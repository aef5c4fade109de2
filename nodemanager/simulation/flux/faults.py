"""The faults of a call to the simulated Flux."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FluxFaults:
    """Each fault's probability. Set them at any time: every call reads them again."""

    p_fail: float = 0.0  # not carried out, and raises FluxError
    p_lost_reply: float = 0.0  # carried out, but raises FluxError
    record_full: bool = False  # the disk of rank 0 is full: leases are refused at once, all else works
    p_half_changed: float = 0.0  # a change of the slots is interrupted: no scheduler until it is repaired
