"""The ticket of a batch: with the proof of an instance it is good for that node's slot, and without it for none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodemanager.core.nodes import JoinPhase, ProviderId, RosterEntry, launch_id
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, SlotName
from nodemanager.join.admission import AdmissionRules, Answer
from nodemanager.join.exchange import decode_roster, encode_roster
from nodemanager.join.identity.ec2 import InstanceIdentities
from tests.join.admission import KEY, NONCE, OTHER_NONCE, SOURCE, AdmissionRig, code, entry, granted
from tests.join.identities import identities, signer

BATCH, OTHER_BATCH = "19ab4c2f3d1", "19ab4c30000"


def member(number: int, batch: str = BATCH, **changed: Any) -> RosterEntry:
    slot = f"cloud{number}"
    instance = ProviderId(f"i-{batch[-3:]}{number:05d}")
    return entry(launch_id(SlotName(slot), batch), slot, **{"provider_id": instance, **changed})


class BatchRig(AdmissionRig):
    """A service for three nodes of one batch and one of another."""

    def __init__(self, certificate: str | None = None) -> None:
        super().__init__(
            roster=(member(1), member(2), member(3), member(4, OTHER_BATCH)),
            instance_in=identities(certificate or signer().pem).instance_in,
        )

    def join(self, number: int = 1, nonce: str = NONCE, **changed: str) -> Answer:
        """Show the ticket of the batch as the node that is ``number``."""
        shown = {
            "batch": BATCH,
            "ticket": KEY.batch_ticket(BATCH),
            "identity": signer().document(f"i-{BATCH[-3:]}{number:05d}"),
            **changed,
        }
        return self.admission.redeem_batch(
            shown["batch"], shown["ticket"], nonce, shown["identity"], changed.get("source", SOURCE)
        )


def test_each_node_of_a_batch_gets_its_own_slot() -> None:
    rig = BatchRig()
    given = [granted(rig.join(number, f"{number}" * 64)) for number in (1, 2, 3)]
    assert [it["slot"] for it in given] == ["cloud1", "cloud2", "cloud3"]
    assert [it["launch"] for it in given] == [f"cloud{number}-{BATCH}" for number in (1, 2, 3)]
    assert len({it["lease_key"] for it in given}) == 3
    for it in given:
        assert granted(rig.admission.fetch(it["launch"], it["lease_key"], SOURCE))["slot"] == it["slot"]


@pytest.mark.parametrize(
    "identity",
    ["", "i-3d100001", '{"instanceId": "i-3d100001"}', "AAAA"],
)
def test_the_ticket_alone_brings_nothing(identity: str) -> None:
    rig = BatchRig()
    assert code(rig.join(identity=identity)) == "unproven"
    granted(rig.join())  # and nothing was used up


def test_a_document_that_somebody_else_signed_brings_nothing() -> None:
    rig = BatchRig()
    assert code(rig.join(identity=signer("somebody else").document("i-3d100001"))) == "unproven"


@pytest.mark.parametrize(
    "ticket", [KEY.batch_ticket(OTHER_BATCH), KEY.ticket(launch_id(SlotName("cloud1"), BATCH))]
)
def test_the_identity_alone_brings_nothing(ticket: str) -> None:
    assert code(BatchRig().join(ticket=ticket)) == "wrong"


def test_the_ticket_of_a_batch_is_no_ticket_of_a_launch() -> None:
    rig = BatchRig()
    launch = launch_id(SlotName("cloud1"), BATCH)
    assert code(rig.redeem(launch=launch, ticket=KEY.batch_ticket(BATCH))) == "wrong"


@pytest.mark.parametrize("instance", ["i-00000001", "i-00000004"], ids=["a stranger's", "of another batch"])
def test_another_instance_brings_nothing(instance: str) -> None:
    assert code(BatchRig().join(identity=signer().document(instance))) == "not_current"


def test_a_node_of_another_batch_is_let_in_by_that_batch_only() -> None:
    rig, theirs = BatchRig(), signer().document("i-00000004")
    assert code(rig.join(identity=theirs)) == "not_current"
    given = rig.join(identity=theirs, batch=OTHER_BATCH, ticket=KEY.batch_ticket(OTHER_BATCH))
    assert granted(given)["slot"] == "cloud4"


def test_a_slot_is_given_once() -> None:
    rig = BatchRig()
    first = granted(rig.join())
    assert granted(rig.join()) == first  # its reply was lost
    rig.restart()
    assert code(rig.join(nonce=OTHER_NONCE, source="6.6.6.6")) == "used"
    assert rig.reported(JoinPhase.REPLAYED) == ["its ticket was shown again by 6.6.6.6"]


def _gone(it: RosterEntry) -> RosterEntry:
    return replace(it, provider_id=None)


def _expired(it: RosterEntry) -> RosterEntry:
    return replace(it, redeemable_until_at=0.0)


@pytest.mark.parametrize(
    ("change", "refusal"), [(_gone, "not_current"), (_expired, "expired")], ids=["not listed yet", "too late"]
)
def test_a_node_that_may_not_join_now_is_refused(
    change: Callable[[RosterEntry], RosterEntry], refusal: str
) -> None:
    rig = BatchRig()
    rig.roster = tuple(map(change, rig.roster or ()))
    assert code(rig.join()) == refusal


def test_source_addresses_are_checked_as_for_any_ticket() -> None:
    rig = BatchRig()
    rig.rules = AdmissionRules("head", "10.0.0.1", check_source=True)
    rig.roster = (member(1, addresses=("10.0.0.9",)),)
    rig.restart()
    assert code(rig.join()) == "wrong_source"


def test_a_site_without_batches_redeems_none() -> None:
    rig = AdmissionRig(roster=(member(1),))
    answer = rig.admission.redeem_batch(
        BATCH, KEY.batch_ticket(BATCH), NONCE, signer().document("i-3d100001"), SOURCE
    )
    assert code(answer) == "unproven"


def test_the_roster_names_instances_and_an_older_service_can_read_it() -> None:
    roster = (member(1), entry())
    text = encode_roster(roster, 5.0)
    assert decode_roster(text) == (roster, 5.0)
    assert all(len(row) == 6 for row in json.loads(text)["entries"])


def test_what_vouches_for_one_clouds_instances_admits_no_node_of_another() -> None:
    rig = BatchRig()
    theirs = signer("a server of their own")
    rig.instance_in = InstanceIdentities({DEFAULT_CLOUD: signer().pem, CloudName("own"): theirs.pem}).instance_in
    rig.roster = (member(1), member(2, cloud=CloudName("own")))
    rig.restart()
    assert code(rig.join(1, identity=theirs.document("i-3d100001"))) == "not_current"
    assert code(rig.join(2, identity=signer().document("i-3d100002"))) == "not_current"
    assert granted(rig.join(1))["slot"] == "cloud1"
    assert granted(rig.join(2, identity=theirs.document("i-3d100002")))["slot"] == "cloud2"


def test_two_clouds_may_use_one_instance_id() -> None:
    rig = BatchRig()
    west = signer("another region")
    rig.instance_in = InstanceIdentities({CloudName("east"): signer().pem, CloudName("west"): west.pem}).instance_in
    same = ProviderId("i-1")
    rig.roster = (
        member(1, cloud=CloudName("east"), provider_id=same),
        member(2, cloud=CloudName("west"), provider_id=same),
    )
    rig.restart()
    assert granted(rig.join(identity=west.document(same)))["slot"] == "cloud2"
    assert granted(rig.join(identity=signer().document(same)))["slot"] == "cloud1"
