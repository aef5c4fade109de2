"""How a scope of a refusal is named in reasons."""

from __future__ import annotations

import pytest

from nodemanager.core.slots import Market, TypeName
from nodemanager.planner.backoff import scope_name
from nodemanager.planner.snapshot import EVERYTHING, Scope


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (EVERYTHING, "account"),
        (Scope(EVERYTHING.type_name, Market.SPOT), "spot"),
        (Scope(TypeName("gpu")), "gpu"),
        (Scope(TypeName("gpu"), size="g5.xlarge"), "gpu as g5.xlarge"),
    ],
)
def test_a_scope_is_named_by_its_type_and_size_or_by_its_market_or_the_account(scope: Scope, name: str) -> None:
    assert scope_name(scope) == name
