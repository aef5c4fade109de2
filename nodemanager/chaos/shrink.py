"""Shrinks a failing script: finds a short list of acts that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ActNumbers = tuple[int, ...]


def find_shortest(numbers: Sequence[int], fails: Callable[[ActNumbers], bool], runs_max: int) -> ActNumbers:
    """Leave out as many acts as possible: first halves, then quarters, down to single acts (Zeller's ddmin).

    ``fails`` tells whether a part still fails; it is called at most ``runs_max`` times. All ``numbers`` together
    are assumed to fail, and are returned if no act can be left out.
    """
    kept = tuple(numbers)
    left = runs_max
    pieces = 2
    while len(kept) >= 1:
        size = -(-len(kept) // pieces)
        shorter = None
        for start in range(0, len(kept), size):
            if left == 0:
                return kept
            left -= 1
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                shorter = rest
                break
        if shorter is not None:
            kept, pieces = shorter, max(pieces - 1, 2)
        elif size == 1:
            break
        else:
            pieces = min(2 * pieces, len(kept))
    return kept
