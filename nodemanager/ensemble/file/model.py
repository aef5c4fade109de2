"""What an ``ensemble.yaml`` says, as frozen values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }
)


class ActionKind(StrEnum):
    """What a rule can do."""

    SUBMIT = "submit"
    CUSTOM = "custom"
    TERMINATE = "terminate"
    GROW = "grow"
    SHRINK = "shrink"
    CANCEL = "cancel"
    NOTIFY = "notify"


class Count(StrEnum):
    """The counts of a group. A member is in one of success, failed, cancelled and refused when it has ended."""

    FINISHED = "finished"  # it ran and ended: success and failed together
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"  # before it ran
    REFUSED = "refused"  # it could not be submitted, or can never run
    RETRIED = "retried"  # failed attempts that were followed by another


class Trigger(StrEnum):
    """The triggers that are not the name of a job event."""

    START = "start"
    METRIC = "metric"


# Triggers for what a job does, besides the events of RFC 21. The first three are states of a job (RFC 21).
DERIVED_TRIGGERS = ("sched", "run", "cleanup", "cancel", "success", "fail")
JOB_EVENTS = (
    "submit", "jobspec-update", "resource-update", "validate", "invalidate", "set-flags", "dependency-add",
    "dependency-remove", "depend", "priority", "flux-restart", "urgency", "alloc", "prolog-start", "prolog-finish",
    "epilog-start", "epilog-finish", "free", "start", "release", "finish", "clean", "exception", "memo", "debug",
)  # fmt: skip
JOB_TRIGGERS = tuple(f"job-{name}" for name in (*DERIVED_TRIGGERS, *JOB_EVENTS))
TRIGGERS = (*Trigger, *JOB_TRIGGERS)


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons with numbers, which must all hold."""

    comparisons: tuple[tuple[str, float], ...]

    def holds(self, value: float) -> bool:
        return all(COMPARISONS[sign](value, number) for sign, number in self.comparisons)

    def __str__(self) -> str:
        return " and ".join(f"{sign} {number:g}" for sign, number in self.comparisons)


@dataclass(frozen=True, slots=True)
class MetricName:
    """One figure of a group: a count, or a statistic of how long its members waited or ran.

    ``statistic``: "count", "mean", "variance", "iqr", "max", "min", "mad", or "quantile" with its ``fraction``.
    ``of``: a name of :class:`Count`, "pending" or "duration".
    """

    statistic: str
    group: str
    of: str
    fraction: float = 0.0


@dataclass(frozen=True, slots=True)
class Action:
    """What to do when a rule matches, how often, and with which pauses.

    ``backoff``: matches to skip after each run. ``backoff_s``: seconds after a run in which matches are skipped.
    ``text`` is the message of notify.
    """

    kind: ActionKind
    label: str = ""
    value: int = 1
    repetitions: int = 1
    backoff: int = 0
    backoff_s: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        match self.kind:
            case ActionKind.GROW | ActionKind.SHRINK:
                return f"{self.kind} {self.value}"
            case ActionKind.NOTIFY:
                return f"notify {self.text or self.label}"
            case _:
                return f"{self.kind} {self.label}".strip()


@dataclass(frozen=True, slots=True)
class Rule:
    """When ``trigger`` occurs, in ``group`` ("" is any group) and under ``condition``, do ``action``."""

    number: int  # from 1, in the order of the file
    trigger: str
    name: str  # as written
    action: Action
    group: str = ""
    metric: MetricName | None = None
    condition: Condition | None = None

    def __str__(self) -> str:
        where = f" {self.name}" if self.name and self.name != self.trigger else ""
        when = f" {self.condition}" if self.condition else ""
        return f"{self.trigger}{where}{when} -> {self.action}"


@dataclass(frozen=True, slots=True)
class JobSet:
    """``count`` equal jobs of one group.

    ``tasks`` is of each job. ``duration_s`` 0 is without limit. ``workdir`` "" is the folder in which the ensemble
    was started. ``after``: groups whose members must all have succeeded. ``retries``: attempts after a failed one.
    """

    group: str
    command: tuple[str, ...]
    workdir: str = ""
    count: int = 1
    nodes: int = 1
    tasks: int = 1
    duration_s: float = 0.0
    cores: int = 1
    gpus: int = 0
    exclusive: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    requires: str = ""
    urgency: int = 16
    after: tuple[str, ...] = ()
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A whole file. ``heartbeat_s`` 0 is none. ``custom`` is Python source."""

    sets: tuple[JobSet, ...]
    rules: tuple[Rule, ...]
    heartbeat_s: float = 0.0
    custom: str = ""
    debug: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(jobs.group for jobs in self.sets))
