"""What a job is told about the place of its data, whatever its reason."""

from __future__ import annotations

from decimal import Decimal

import pytest

from nodemanager.core.jobs import Near, Shape
from nodemanager.core.slots import CloudName
from nodemanager.planner.policy import CloudRules
from nodemanager.planner.reasons import describe_near
from tests.builders import a_job, a_policy

POLICY = a_policy(
    clouds={
        CloudName("east"): CloudRules(egress_price_per_gib=Decimal("0.09")),
        CloudName("west"): CloudRules(),
    }
)


@pytest.mark.parametrize(
    ("near", "fault", "told"),
    [
        (None, "", ""),
        (("east", 200), "", "east, 200GiB, 18.00 of egress elsewhere"),
        (("east", 0), "", "east, its egress is not known"),
        (("west", 200), "", "west, 200GiB, its egress is not known"),
        (("mars", 200), "", "near: the site has no cloud mars; it has east, west"),
        (
            ("east", 0),
            "data: 'x' is no size",
            "east, its egress is not known; data: 'x' is no size",
        ),
        (("mars", 0), "data: 'x'", "data: 'x'; near: the site has no cloud mars; it has east, west"),
        (None, "data: there is no near", "data: there is no near"),
    ],
)
def test_the_cloud_of_its_data_and_the_price_of_its_egress(
    near: tuple[str, int] | None, fault: str, told: str
) -> None:
    place = Near(CloudName(near[0]), near[1] * 2**30) if near is not None else None
    job = a_job(1, Shape(1, 1, near=place), near_fault=fault)
    assert describe_near(job, POLICY) == told
