"""The record that a job's data is safe: lines of JSON at a key of the job's own directory in the KVS.

Flux removes that directory when it purges the job, so no record outlives its job. Lines are only appended. So
everybody reads the same order, and exactly one line is the one that made the data of all ranks safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from nodemanager.core.jobs import JobId
from nodemanager.core.notation import NotationError, format_idset, parse_idset
from nodemanager.core.slots import Rank
from nodemanager.core.untrusted import read_json, read_lines
from nodemanager.flux.parse.json_fields import object_at, text_at

EVENT = "data-safe"
_NAME = "node-manager-data-safe"
_WORD_BITS = 16


def job_directory(job: JobId) -> str:
    """The job's directory in the KVS: ``job.`` and the id's four words in hexadecimal (RFC 16)."""
    words = (job >> shift & 0xFFFF for shift in range(3 * _WORD_BITS, -1, -_WORD_BITS))
    return ".".join(("job", *(f"{word:04x}" for word in words)))


def key_of(job: JobId) -> str:
    """The KVS key of a job's record."""
    return f"{job_directory(job)}.{_NAME}"


@dataclass(frozen=True, slots=True)
class DataRecord:
    """A job's record: which ranks were said to be safe, in order, each with the mark of its line.

    ``told``: the event was posted.
    """

    lines: tuple[tuple[str, frozenset[Rank]], ...] = ()
    told: bool = False

    @property
    def safe(self) -> frozenset[Rank]:
        """The ranks from which the data was copied."""
        return frozenset().union(*(ranks for _, ranks in self.lines))

    def is_mine_to_tell(self, mark: str, ranks: frozenset[Rank]) -> bool:
        """Whether the line with this mark completed ``ranks``, or came later and nobody has posted the event."""
        so_far: frozenset[Rank] = frozenset()
        complete = False
        for its_mark, its_ranks in self.lines:
            so_far |= its_ranks
            complete = complete or ranks <= so_far
            if its_mark == mark:
                return complete and not self.told
        return False


def encode(mark: str, ranks: Iterable[Rank]) -> str:
    """Write the line that says that the data of ranks is safe."""
    return json.dumps({"ranks": format_idset(ranks), "mark": mark}, sort_keys=True) + "\n"


RANKS_MAX = 1_000_000

TOLD = json.dumps({"told": EVENT}) + "\n"  # the line that says that the event was posted


def decode(text: str) -> DataRecord:
    """Read a record. Raises ``ValueError``."""
    lines: list[tuple[str, frozenset[Rank]]] = []
    told = False
    listed = 0
    for number, line in enumerate(read_lines(text), start=1):
        fields = object_at(read_json(line), f"line {number}")
        if "told" in fields:
            told = True
            continue
        mark = text_at(fields.get("mark"), f"line {number}.mark")
        try:
            ranks = frozenset(
                map(Rank, parse_idset(text_at(fields.get("ranks"), f"line {number}.ranks"), RANKS_MAX))
            )
        except NotationError as fault:
            raise ValueError(f"line {number}.ranks: {fault}") from fault
        listed += len(ranks)
        if listed > RANKS_MAX:
            raise ValueError(f"line {number}.ranks: more than {RANKS_MAX} ranks in all lines")
        lines.append((mark, ranks))
    return DataRecord(tuple(lines), told)
