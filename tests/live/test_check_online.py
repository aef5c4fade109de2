"""``check --online`` on a real instance: each line is ok, and an instance without the site's slots is named."""

from __future__ import annotations

from dataclasses import replace

from nodemanager.cli.online import checks
from nodemanager.cloud.common.findings import Verdict
from nodemanager.core.slots import SlotName
from tests.live.elastic import Elastic


def test_the_instance_of_the_site_is_ok_in_every_line(elastic: Elastic) -> None:
    found = list(checks.check_instance(elastic.site))
    assert [it.subject for it in found] in (["instance", "slots"], ["instance", "slots", "scheduler"])  # Fluxion's
    assert {it.verdict for it in found} == {Verdict.OK}
    assert found[0].text.startswith("flux-core ")
    address = f"{elastic.site.flux.head_address}:{elastic.site.flux.port}"
    assert checks.check_address("rank 0", address, checks.RANK0_REMEDY).verdict is Verdict.OK


def test_a_slot_that_the_instance_was_not_started_with_is_a_fault(elastic: Elastic) -> None:
    first, *others = elastic.site.node_types
    wider = replace(first, slots=(*first.slots, SlotName("unknown9")))
    found = list(checks.check_instance(replace(elastic.site, node_types=(wider, *others))))
    assert (found[-1].subject, found[-1].verdict) == ("slots", Verdict.FAULT)
    assert found[-1].text.endswith("unknown9")
