"""Which changes of a site a running service takes up, and which need it to start anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from pydantic import BaseModel

from nodemanager.config.site import Site

# What was read into adapters, threads or the instance itself when the service began stays as it is. Beside these.
RELOADABLE: Mapping[str, frozenset[str] | None] = {  # None: all of it
    "limits": None,
    "budget": None,
    "policy": None,
    "timing": None,
    # An image is named by each create, and nothing of a node that stands depends on it.
    "cloud": frozenset({"creates_per_s", "creates_burst", "image"}),
    "nodes": frozenset({"price_per_hour", "billing_window_s", "billing_minimum_s", "spares", "mode", "image"}),
}
NOT_RELOADABLE = {
    "timing": frozenset({"probe_s", "relist_s", "manager_silence_max_s"}),  # the last is in the user-data
    "policy": frozenset({"misfit"}),
}
DERIVED = frozenset({"path", "node_types", "networks"})  # of other settings, which are named themselves


def needs_restart(old: Site, new: Site) -> tuple[str, ...]:
    """The changed settings that only a start takes up, as ``[Section] key``; empty where there are none."""
    if old.acts != new.acts:
        return ("whether anything is done at all ([Site] mode, [Node NAME] mode)",)
    return tuple(
        changed
        for field in fields(Site)
        if field.name not in DERIVED
        for changed in _changed(field.name, getattr(old, field.name), getattr(new, field.name))
    )


def _changed(name: str, old: object, new: object) -> Iterator[str]:
    if old == new:
        return
    if name == "nodes" and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _changed_nodes(old, new)
    elif isinstance(old, BaseModel) and isinstance(new, BaseModel):
        taken = RELOADABLE.get(name, frozenset())
        left_out = NOT_RELOADABLE.get(name, frozenset())
        for key in _keys_changed(old, new):
            if key in left_out or not (taken is None or key in taken):
                yield f"[{name.title()}] {_written(type(old), key)}"
    else:
        yield f"[Site] {name}"


def _changed_nodes(old: Mapping[str, BaseModel], new: Mapping[str, BaseModel]) -> Iterator[str]:
    if list(old) != list(new):
        yield "the list of [Node NAME]"  # it numbers the slots
    for name in old.keys() & new.keys():
        for key in _keys_changed(old[name], new[name]):
            if key not in (RELOADABLE["nodes"] or ()):
                yield f"[Node {name}] {_written(type(old[name]), key)}"


def _written(settings: type[BaseModel], name: str) -> str:
    """A key as it stands in the file."""
    return str(settings.model_fields[name].validation_alias or name)


def _keys_changed(old: BaseModel, new: BaseModel) -> Iterator[str]:
    for key in type(old).model_fields:
        if getattr(old, key) != getattr(new, key):
            yield key
