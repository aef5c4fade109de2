"""The nodes that ``cloud-test`` may have created, and which of them must still be destroyed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nodemanager.core.nodes import CloudNode, CloudState, ProviderId

GONE_STATES = (CloudState.TERMINATED,)


@dataclass
class MadeNodes:
    """The nodes that one test may have created, by the replies to its creates and by the lists since.

    Times are monotonic. ``grace_s``: how long after a create a list may lack its node.
    """

    grace_s: float
    _states: dict[ProviderId, CloudState | None] = field(default_factory=dict, init=False)  # None: never listed
    _unanswered: bool = field(default=False, init=False)
    _absence_counts_from_s: float = field(
        default=0.0, init=False
    )  # an absence from a list counts from this time on

    def note_create_sent(self, now_s: float) -> None:
        """Note that a create is about to be sent."""
        self._unanswered = True
        self._absence_counts_from_s = now_s + self.grace_s

    def note_create_answered(self, made: ProviderId | None) -> None:
        """Note the answer to a create: a node, or None for a refusal that proves that there is none."""
        self._unanswered = False
        if made is not None:
            self._states.setdefault(made, None)

    def note_listed(self, nodes: Iterable[CloudNode]) -> None:
        """Take the nodes in a complete list. A node in an earlier list that is missing from this one is gone."""
        now = {node.provider_id: node.state for node in nodes}
        if now.keys() - self._states.keys():
            self._unanswered = False  # the new node is that of the open create
        for provider_id, state in self._states.items():
            if state is not None:
                self._states[provider_id] = CloudState.TERMINATED
        self._states.update(now)

    def maybe_running(self, now_s: float) -> list[ProviderId]:
        """The nodes that may exist: those in the last list, and for a time those that no list has shown yet."""
        late = CloudState.PENDING if now_s < self._absence_counts_from_s else CloudState.TERMINATED
        return [provider_id for provider_id, state in self._states.items() if (state or late) not in GONE_STATES]

    def is_in_doubt(self, now_s: float) -> bool:
        """Whether a create without an answer may have made a node."""
        return self._unanswered and now_s < self._absence_counts_from_s

    @property
    def not_known_gone(self) -> list[ProviderId]:
        """The nodes that are not known to be gone."""
        return [provider_id for provider_id, state in self._states.items() if state not in GONE_STATES]
