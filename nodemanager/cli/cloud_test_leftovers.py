"""What ``cloud-test`` may have made at a provider, and what is still to be ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nodemanager.core.nodes import CloudNode, CloudState, ProviderId

GONE_STATES = (CloudState.TERMINATED,)


@dataclass
class MadeNodes:
    """What one run may have made: by the replies to its creates, and by the lists since.

    Moments are monotonic. ``grace_s``: for so long after a create a list may lack its node.
    """

    grace_s: float
    _states: dict[ProviderId, CloudState | None] = field(default_factory=dict, init=False)  # None: never listed
    _unanswered: bool = field(default=False, init=False)
    _absence_counts_from_s: float = field(default=0.0, init=False)  # from when on an absence is

    def note_create_sent(self, now_s: float) -> None:
        """A create is about to be sent."""
        self._unanswered = True
        self._absence_counts_from_s = now_s + self.grace_s

    def note_create_answered(self, made: ProviderId | None) -> None:
        """It was answered: by a node, or by a refusal that proves that there is none."""
        self._unanswered = False
        if made is not None:
            self._states.setdefault(made, None)

    def note_listed(self, nodes: Iterable[CloudNode]) -> None:
        """What one whole list has of this run. What it lacks and an earlier one had is gone."""
        now = {node.provider_id: node.state for node in nodes}
        if now.keys() - self._states.keys():
            self._unanswered = False  # that is the one
        for provider_id, state in self._states.items():
            if state is not None:
                self._states[provider_id] = CloudState.TERMINATED
        self._states.update(now)

    def maybe_running(self, now_s: float) -> list[ProviderId]:
        """Which may stand: those that the last list showed, and those that no list has shown yet."""
        late = CloudState.PENDING if now_s < self._absence_counts_from_s else CloudState.TERMINATED
        return [provider_id for provider_id, state in self._states.items() if (state or late) not in GONE_STATES]

    def is_in_doubt(self, now_s: float) -> bool:
        """Whether there may be one that nobody has told of."""
        return self._unanswered and now_s < self._absence_counts_from_s

    @property
    def not_known_gone(self) -> list[ProviderId]:
        """Each that is not known to be gone."""
        return [provider_id for provider_id, state in self._states.items() if state not in GONE_STATES]
