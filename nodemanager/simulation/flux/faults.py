"""What may go wrong with a call of the simulated Flux."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FluxFaults:
    """What may go wrong with a call, as probabilities. Read anew at every call."""

    p_fail: float = 0.0  # not carried out, and raises FluxError
    p_lost_reply: float = 0.0  # carried out, and raises FluxError all the same
    p_half_changed: float = 0.0  # a change of the slots is cut short: there is no scheduler until it is repaired
