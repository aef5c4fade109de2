"""The shortest story that still goes wrong: what of a script can be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ActNumbers = tuple[int, ...]


def find_shortest(numbers: Sequence[int], fails: Callable[[ActNumbers], bool], runs_max: int) -> ActNumbers:
    """Leave out as much as can be left out, in halves, quarters, and so on down to single ones (Zeller's ddmin).

    ``fails`` says whether a part still goes wrong; it is asked ``runs_max`` times at the most. The whole is taken
    to fail, and is given back where nothing can be left out.
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
