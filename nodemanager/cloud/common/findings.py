"""The results of ``check --online``, and how a provider's refusal becomes one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nodemanager.config.site import Site
from nodemanager.core.nodes import FailureKind, Launch, LaunchId
from nodemanager.core.ports import Clock, CloudError
from nodemanager.core.slots import NodeType, Rank, SlotName, TypeName

REMEDY_OF_QUOTA = "Ask the provider for more, or lower nodes_max"
REMEDY_OF_SITE = "Correct it in [Cloud] or in the [Node NAME]"
_REMEDIES: Mapping[FailureKind, str] = {
    FailureKind.CREDENTIALS: "Give the manager the privileges of the page of its cloud (doc/clouds.md)",
    FailureKind.QUOTA: REMEDY_OF_QUOTA,
    FailureKind.CAPACITY: "The manager tries again later, and uses other types meanwhile",
    FailureKind.THROTTLED: "Try again in a minute",
    FailureKind.TRANSIENT: "Try again. If it stays so, look at the provider's status page",
}
_NO_FAULT = frozenset({FailureKind.CAPACITY, FailureKind.THROTTLED, FailureKind.TRANSIENT})


class Verdict(StrEnum):
    """The result of one check. Only a fault keeps the service from working."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was checked, the result, what was found, and what to do about it ("" if nothing)."""

    subject: str
    verdict: Verdict
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"{self.verdict:<8} {self.subject}: {self.text}{remedy}"


def refused(subject: str, error: CloudError) -> Finding:
    """Report an error of the provider, with its remedy. One that may pass by itself is no fault."""
    verdict = Verdict.WARNING if error.kind in _NO_FAULT else Verdict.FAULT
    return Finding(subject, verdict, error.detail, _REMEDIES.get(error.kind, REMEDY_OF_SITE))


def unreadable(subject: str, error: CloudError, needed: str) -> Finding:
    """Report a look-up that was refused. ``needed``: the privilege that only the check uses, so no fault."""
    if error.kind is not FailureKind.CREDENTIALS:
        return refused(subject, error)
    remedy = f"The service works without it. For the check, give {needed}; or run flux-node-manager cloud-test"
    return Finding(subject, Verdict.WARNING, f"it cannot be looked up: {error.detail}", remedy)


def look_up_all(subject: str, lookups: Iterable[Iterator[str]], found: str, needed: str) -> Finding:
    """Report the problems that look-ups yield, or ``found``. After one that is refused, the others are still made.

    ``needed``: as for :func:`unreadable`.
    """
    problems: list[str] = []
    refusal: CloudError | None = None
    for lookup in lookups:
        try:
            for problem in lookup:
                problems.append(problem)  # noqa: PERF402 - those before a refusal count
        except CloudError as error:
            refusal = refusal or error
    if problems:
        return Finding(subject, Verdict.FAULT, "; ".join(problems), REMEDY_OF_SITE)
    return Finding(subject, Verdict.OK, found) if refusal is None else unreadable(subject, refusal, needed)


def compare_quotas(
    site: Site, cpus: Mapping[str, Mapping[TypeName, int]], free: Mapping[str, float]
) -> Iterator[Finding]:
    """Compare the free part of each quota with what ``nodes_max`` nodes can need of it.

    ``cpus``: by quota, what it counts of a node of each type, mostly virtual CPUs.
    """
    short = False
    for quota, by_type in cpus.items():
        per_slot = [by_type[it.name] for it in site.node_types if it.name in by_type for _ in it.slots]
        needed = sum(sorted(per_slot, reverse=True)[: site.limits.nodes_max])
        if needed > free[quota]:
            short = True
            text = f"{needed} may be needed, and {max(0.0, free[quota]):g} are free: {quota}"
            yield Finding("quotas", Verdict.WARNING, text, REMEDY_OF_QUOTA)
    if not short:
        compared = f"there is room for {site.limits.nodes_max} nodes: {', '.join(cpus)}"
        yield Finding("quotas", Verdict.OK, compared if cpus else "the provider lists none that counts these sizes")


def try_sizes(node_type: NodeType, ask: Callable[[Launch, NodeType], None], found: str, clock: Clock) -> Finding:
    """Report what ``ask`` raises for a launch of one of the type's sizes, or ``found``."""
    subject = f"nodes of {node_type.name}"
    try:
        for size in node_type.by_size():
            ask(_launch_of(size, clock), size)
    except CloudError as error:
        return refused(subject, error)
    return Finding(subject, Verdict.OK, found)


def most_cores(site: Site) -> int:
    """The cores of the ``nodes_max`` slots that have most of them."""
    cores = sorted((node_type.cores for node_type in site.node_types for _ in node_type.slots), reverse=True)
    return sum(cores[: site.limits.nodes_max])


def _launch_of(node_type: NodeType, clock: Clock) -> Launch:
    """A launch that is never created, in the first zone of the type."""
    name = f"check-{uuid.uuid4().hex[:12]}"
    zone = node_type.zones[0] if node_type.zones else ""
    return Launch(LaunchId(name), SlotName(name), Rank(0), node_type.name, name, clock.wall_at(), zone)
