"""Values that one can hold in mind: a dataclass of the core or the planner has few fields, or groups of them."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import nodemanager.core
import nodemanager.planner

FIELDS_MAX = 15
WIDER = {
    "Policy": "what the site says, in groups, and what it says without the schedule in force",
    "Plan": "what the whole program reads of one decision",
    "Node": "all that is known of a node; the failure of its latest call stands beside its tries",
    "FluxRank": "one for each rank, replaced by every look that finds a change",
    "NodeType": "one field for each key of its section in the site that the planner reads",
    "Allocation": "the working state of one packing, not a value",
    "StepContext": "the working state of one round of steps, not a value",
    "_Search": "the working state of one search, not a value",
}


def _dataclasses(package: ModuleType) -> Iterator[type]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for it in vars(importlib.import_module(found.name)).values():
            if isinstance(it, type) and dataclasses.is_dataclass(it) and it.__module__ == found.name:
                yield it


def test_no_dataclass_has_more_than_fifteen_fields() -> None:
    wide = {
        it.__name__
        for package in (nodemanager.core, nodemanager.planner)
        for it in _dataclasses(package)
        if len(dataclasses.fields(it)) > FIELDS_MAX
    }
    assert wide == WIDER.keys()
