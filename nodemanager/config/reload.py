"""The site changes that a running service applies at a reload, and those that need a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from pydantic import BaseModel

from nodemanager.config.clouds import section_of
from nodemanager.config.site import Site
from nodemanager.core.slots import CloudName

# A reload applies only these. At the start, all other settings were built into adapters, threads or the instance.
RELOADABLE: Mapping[str, frozenset[str] | None] = {  # None: every key
    "site": frozenset({"currency"}),
    "limits": None,
    "budget": None,
    "disruption": None,
    "notify": None,
    "schedules": None,
    "policy": None,
    "timing": None,
    "web": frozenset({"tokens_file"}),  # the file is read again at each reload
    # Each create names its image, and no existing node depends on it.
    "cloud": frozenset(
        {"creates_per_s", "creates_burst", "image", "price_list", "nodes_max", "price_per_hour_max", "priority"}
        | {"per_day", "per_month", "egress_price_per_gib"}
    ),
    "nodes": frozenset(
        {
            "price_per_hour",
            "spot_price_per_hour",
            "billing_window_s",
            "billing_minimum_s",
            "spares",
            "only_for",
            "mode",
            "image",
            "sizes",
        }
        | {"prepaid", "prepaid_until_at", "price_until_at", "max_age_s", "disruption_max", "disruption_windows"}
    ),
}
NOT_RELOADABLE = {
    "timing": frozenset({"probe_s", "relist_s", "manager_silence_max_s"}),  # the last is in the user-data
    "policy": frozenset({"misfit", "burst", "delegate_to", "wait_for_data", "early_release"}),
}
# Computed from other settings, which are compared; and what each cloud has of its own.
DERIVED = frozenset({"path", "node_types", "networks", "cloud", "cloud_name", "credentials", "parts"})


def needs_restart(old: Site, new: Site) -> tuple[str, ...]:
    """List the changed settings that need a restart, as ``[Section] key``."""
    if old.acts != new.acts:
        return ("whether the manager acts at all ([Site] mode, [Node NAME] mode)",)
    if list(old.by_cloud) != list(new.by_cloud):
        return ("the list of [Cloud NAME]",)
    of_clouds = (
        changed
        for name, cloud in old.by_cloud.items()
        for changed in _cloud_restart_keys(name, cloud, new.by_cloud[name])
    )
    of_site = (
        changed
        for field in fields(Site)
        if field.name not in DERIVED
        for changed in _restart_keys(field.name, getattr(old, field.name), getattr(new, field.name))
    )
    return (*of_clouds, *of_site)


def _restart_keys(name: str, old: object, new: object) -> Iterator[str]:
    if old == new:
        return
    if name == "schedules":
        return  # all of it is for the planner
    if name == "nodes" and isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _node_restart_keys(old, new)
    elif name == "ensembles":
        yield "[Ensemble NAME]"
    elif name == "peers":
        yield "the [Peer NAME] sections"
    elif isinstance(old, BaseModel) and isinstance(new, BaseModel):
        taken = RELOADABLE.get(name, frozenset())
        left_out = NOT_RELOADABLE.get(name, frozenset())
        for key in _changed_keys(old, new):
            if key in left_out or not (taken is None or key in taken):
                yield f"[{name.title()}] {key_in_file(type(old), key)}"
    elif name not in (RELOADABLE["site"] or ()):
        yield f"[Site] {name}"


def _cloud_restart_keys(name: CloudName, old: Site, new: Site) -> Iterator[str]:
    """What a cloud has of its own."""
    section = section_of(name)
    yield from map(section.in_own_words, _restart_keys("cloud", old.cloud, new.cloud))
    if old.credentials != new.credentials:
        yield f"[{section.credentials}]"


def _node_restart_keys(old: Mapping[str, BaseModel], new: Mapping[str, BaseModel]) -> Iterator[str]:
    if list(old) != list(new):
        yield "the list of [Node NAME]"  # it numbers the slots
    for name in old.keys() & new.keys():
        for key in _changed_keys(old[name], new[name]):
            if key not in (RELOADABLE["nodes"] or ()):
                yield f"[Node {name}] {key_in_file(type(old[name]), key)}"


def key_in_file(settings: type[BaseModel], name: str) -> str:
    """The key of a field, as written in the file."""
    return str(settings.model_fields[name].validation_alias or name)


def _changed_keys(old: BaseModel, new: BaseModel) -> Iterator[str]:
    for key in type(old).model_fields:
        if getattr(old, key) != getattr(new, key):
            yield key
