"""A :class:`JoinAdmission` with a roster, material and time that a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nodemanager.core.facts import NodeReported
from nodemanager.core.nodes import JoinPhase, LaunchId, Roster, RosterEntry
from nodemanager.core.slots import SlotName
from nodemanager.join.admission import AdmissionRules, Answer, Granted, JoinAdmission, Refusal
from nodemanager.join.exchange import RosterUnreadableError
from nodemanager.join.identity.proof import InstanceReader
from nodemanager.join.key_material import Material
from nodemanager.join.ticket_store import TicketStore
from nodemanager.join.tickets import SiteKey

KEY = SiteKey(b"k" * 32)
CURVE = "the secret curve certificate"
MATERIAL = Material({"hosts": [{"host": "head"}, {"host": "cloud[1-2]"}]}, CURVE, "0.88.0", 1000)
LAUNCH = LaunchId("cloud1-1")
NONCE, OTHER_NONCE = "a" * 64, "b" * 64
SOURCE = "10.0.0.5"


def entry(launch: LaunchId = LAUNCH, slot: str = "cloud1", **changed: Any) -> RosterEntry:
    return RosterEntry(
        launch, SlotName(slot), **{"redeemable_until_at": 1000.0, "may_start": True, "online": False, **changed}
    )


@dataclass
class AdmissionRig:
    rules: AdmissionRules = field(default_factory=lambda: AdmissionRules("head", "10.0.0.1"))
    roster: Roster | None = (entry(),)
    silence_s: float = 0.0
    now_at: float = 0.0
    material: Material = MATERIAL
    instance_in: InstanceReader | None = None

    def __post_init__(self) -> None:
        self.store = TicketStore(":memory:")
        self.restart()

    def restart(self) -> None:
        """Restart the service. It keeps only the contents of its ticket store."""
        self.admission = JoinAdmission(
            KEY, self.rules, self, lambda: self.material, self.store, lambda: self.now_at, self.instance_in
        )

    def current(self) -> tuple[Roster, float]:
        if self.roster is None:
            raise RosterUnreadableError("there is none")
        return self.roster, self.silence_s

    def redeem(
        self,
        nonce: str = NONCE,
        source: str = SOURCE,
        ticket: str = "",
        launch: LaunchId = LAUNCH,
        instance: str = "",
    ) -> Answer:
        return self.admission.redeem(launch, ticket or KEY.ticket(launch), nonce, source, instance)

    def key(self) -> str:
        return str(granted(self.redeem())["lease_key"])

    def reported(self, phase: JoinPhase) -> list[str]:
        reports = [report for _, report in self.store.reports(0) if isinstance(report, NodeReported)]
        return [report.detail for report in reports if report.phase is phase]


def granted(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, Granted), answer
    return dict(answer.body)


def code(answer: Answer) -> str:
    assert isinstance(answer, Refusal), answer
    return str(answer.code)
