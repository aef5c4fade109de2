"""What the engine keeps of each rule, and of each job that it submitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodemanager.ensemble.file.model import JobSet, Rule
from nodemanager.ensemble.inputs import JobEvent

_FATAL = 0  # the severity of an exception that ends its job (RFC 21)


@dataclass(slots=True)
class RuleState:
    """How often a rule has matched, and what became of each match.

    A match is a run, or is skipped because of the backoff. A rule without repetitions left is not checked any more.
    """

    rule: Rule
    matches: int = 0
    runs: int = 0
    skipped: int = 0
    to_skip: int = 0
    ran_at: float | None = None

    @property
    def lives(self) -> bool:
        return self.runs < self.rule.action.repetitions

    def match(self, at: float) -> bool:
        """Account for one match, and return whether the rule runs."""
        self.matches += 1
        action = self.rule.action
        too_soon = self.ran_at is not None and at < self.ran_at + action.backoff_s
        if self.to_skip or too_soon:
            self.to_skip = max(0, self.to_skip - 1)
            self.skipped += 1
            return False
        self.to_skip = action.backoff
        self.runs += 1
        self.ran_at = at
        return True


@dataclass(slots=True)
class Member:
    """One job of a group."""

    key: str
    jobs: JobSet
    submitted_at: float
    started_at: float | None = None
    cancelled: bool = False
    ended: bool = False
    _in_sched: bool = False
    _in_cleanup: bool = False

    @property
    def group(self) -> str:
        return self.jobs.group

    @property
    def waits(self) -> bool:
        """Whether it waits for resources, or for anything else before it starts."""
        return self.started_at is None and not self.ended and not self._in_cleanup

    @property
    def may_retry(self) -> bool:
        """Whether another attempt follows if this one fails."""
        return int(self.key.partition("+")[2] or 0) < self.jobs.retries and not self.cancelled

    @property
    def next_key(self) -> str:
        """The key of the next attempt."""
        first, _, attempt = self.key.partition("+")
        return f"{first}+{int(attempt or 0) + 1}"

    def is_refused_by(self, event: JobEvent) -> bool:
        """Whether this event ends the job before it runs, and nobody cancelled it."""
        fatal = event.name == "exception" and event.severity == _FATAL
        return fatal and self.started_at is None and not self.cancelled

    def enter(self, event: JobEvent) -> Iterator[str]:
        """Apply an event to the job's state (RFC 21). Yields the names of the triggers for entering a state."""
        fatal = event.name == "exception" and event.severity == _FATAL
        if event.name == "priority" and not self._in_sched:
            self._in_sched = True
            yield "sched"
        if event.name == "alloc":
            yield "run"
        if fatal and event.kind == "cancel":
            self.cancelled = True
            yield "cancel"
        if (fatal or event.name == "finish") and not self._in_cleanup:
            self._in_cleanup = True
            yield "cleanup"
