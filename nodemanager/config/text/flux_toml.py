"""A Flux instance's configuration as values: how its slots are divided among node types, and how that is changed.

R stands in ``[[resource.config]]`` tables (flux-config-resource(5)), one a node type; which type that is stands
beside it in ``[node-manager.slots]``, a host list a type, of which Flux takes no notice. So the division and the
resources are in one file, replaced in one step, and a running instance is asked for both (``config.get``). Where a
type's machines have less than the site says, what its slots declare instead stands in ``[node-manager.promises]``.
"""

from __future__ import annotations

import copy
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions
from tomlkit.items import AoT

from nodemanager.core.notation import compress_hostlist, expand_hostlist, format_idset, parse_idset
from nodemanager.core.slots import NodeType, Promise, SlotName, TypeName

OUR_TABLE = "node-manager"
SlotTypes = Mapping[SlotName, TypeName]
Promises = Mapping[TypeName, Promise]
Config = Mapping[str, Any]


class FluxConfigError(Exception):
    """The configuration cannot be read or changed: where, why, and what to do."""


# --- reading ----------------------------------------------------------------------------------------------


def read_slot_types(config: Config) -> dict[SlotName, TypeName]:
    """The type of each slot, in the order of the file; empty where the configuration says nothing of it."""
    ours = config.get(OUR_TABLE, {})
    slots = ours.get("slots", {}) if isinstance(ours, Mapping) else None
    if not isinstance(slots, Mapping):
        raise FluxConfigError(f"{OUR_TABLE}.slots: a table of host lists by node type is needed")
    division: dict[SlotName, TypeName] = {}
    for name, hosts in slots.items():
        for slot in _hosts(hosts, f"{OUR_TABLE}.slots.{name}"):
            if slot in division:
                raise FluxConfigError(
                    f"{OUR_TABLE}.slots: slot {slot} is of type {division[slot]} and of type {name}; a slot has one"
                )
            division[slot] = TypeName(name)
    return division


def read_promises(config: Config) -> dict[TypeName, Promise]:
    """What the slots of some types declare in place of what the site says of the type."""
    ours = config.get(OUR_TABLE, {})
    tables = ours.get("promises", {}) if isinstance(ours, Mapping) else {}
    try:
        return {
            TypeName(name): Promise(int(table["cores"]), int(table["gpus"]), int(table["memory"]))
            for name, table in tables.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        raise FluxConfigError(
            f"{OUR_TABLE}.promises: a table of cores, gpus and memory (in bytes) by node type is needed"
        ) from fault


def with_promises(node_types: Iterable[NodeType], promises: Promises) -> tuple[NodeType, ...]:
    return tuple(it.with_promise(promises[it.name]) if it.name in promises else it for it in node_types)


def bootstrap_hosts(config: Config) -> list[str]:
    """The bootstrap table's hosts, in the order of their ranks."""
    entries = config.get("bootstrap", {}).get("hosts", [])
    return [host for entry in entries for host in _hosts(entry.get("host"), "bootstrap.hosts.host")]


def _hosts(text: object, where: str) -> list[SlotName]:
    if not isinstance(text, str):
        raise FluxConfigError(f'{where}: a host list such as "cloud[1-4]" is needed')
    try:
        return [SlotName(host) for host in expand_hostlist(text)]
    except ValueError as error:
        raise FluxConfigError(f"{where}: {error}") from error


# --- what another division makes of it --------------------------------------------------------------------


def config_with_slot_types(
    config: Config, division: SlotTypes, node_types: Iterable[NodeType], promises: Promises | None = None
) -> dict[str, Any]:
    """The configuration with the slots divided so, and more promises; all that it says else stays."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    resource = changed.setdefault("resource", {})
    kept = read_promises(config) | dict(promises or {})
    resource["config"] = resource_tables(resource.get("config", []), division, with_promises(node_types, kept))
    changed.setdefault(OUR_TABLE, {})["slots"] = slots_table(division)
    if kept:
        changed[OUR_TABLE]["promises"] = promises_table(kept)
    return changed


def promises_table(promises: Promises) -> dict[str, dict[str, int]]:
    return {
        name: {"cores": promise.cores, "gpus": promise.gpus, "memory": promise.memory_bytes}
        for name, promise in promises.items()
    }


def slots_table(division: SlotTypes) -> dict[str, str]:
    by_type: dict[TypeName, list[SlotName]] = {}
    for slot, name in division.items():
        by_type.setdefault(name, []).append(slot)
    return {name: compress_hostlist(slots) for name, slots in by_type.items()}


def resource_tables(
    tables: Sequence[Config], division: SlotTypes, node_types: Iterable[NodeType]
) -> list[dict[str, Any]]:
    """The ``[[resource.config]]`` tables: those of other hosts as they are, then one for each type with slots."""
    others = [kept for table in tables if (kept := _without(table, division)) is not None]
    return [*others, *tables_for_types(division, node_types)]


def tables_for_types(division: SlotTypes, node_types: Iterable[NodeType]) -> list[dict[str, Any]]:
    types = {node_type.name: node_type for node_type in node_types}
    made = []
    for name, hosts in slots_table(division).items():
        node_type = types.get(TypeName(name))
        if node_type is None:
            raise FluxConfigError(
                f"{OUR_TABLE}.slots: {hosts} is of node type {name}, which the site does not name: keep"
                f" [Node {name}] in it until its slots are of another type (flux-node-manager slots)"
            )
        made.append(resource_table(node_type, hosts))
    return made


def resource_table(node_type: NodeType, hosts: str) -> dict[str, Any]:
    """What a node of the type has, as R declares it."""
    table: dict[str, Any] = {"hosts": hosts, "cores": format_idset(range(node_type.cores))}
    if node_type.gpus:
        table["gpus"] = format_idset(range(node_type.gpus))
    if node_type.properties:
        table["properties"] = sorted(node_type.properties)
    return table


def _without(table: Config, division: SlotTypes) -> dict[str, Any] | None:
    hosts = _hosts(table.get("hosts"), "resource.config.hosts")
    kept = [host for host in hosts if host not in division]
    if not kept:
        return None
    return dict(table) if len(kept) == len(hosts) else {**table, "hosts": compress_hostlist(kept)}


def hosts_lacking_units(
    config: Config, held: Mapping[SlotName, tuple[frozenset[int], frozenset[int]]]
) -> list[SlotName]:
    """The hosts that lack a core or a GPU which a job holds there. ``held``: ids of cores and GPUs by host."""
    has: dict[SlotName, tuple[set[int], set[int]]] = {}
    for table in config["resource"]["config"]:
        cores, gpus = parse_idset(table.get("cores", "")), parse_idset(table.get("gpus", ""))
        for host in _hosts(table["hosts"], "resource.config.hosts"):
            own = has.setdefault(host, (set(), set()))
            own[0].update(cores)
            own[1].update(gpus)
    nothing: tuple[set[int], set[int]] = (set(), set())
    return [
        host
        for host, (cores_held, gpus_held) in held.items()
        if not (cores_held <= has.get(host, nothing)[0] and gpus_held <= has.get(host, nothing)[1])
    ]


# --- the file ---------------------------------------------------------------------------------------------


def toml_with_slot_types(
    text: str, division: SlotTypes, node_types: Iterable[NodeType], promises: Promises | None = None
) -> str:
    """The TOML file with the slots divided so. What it says else keeps its words, its comments and its order."""
    node_types = tuple(node_types)
    wanted = config_with_slot_types(_parsed(text), division, node_types, promises)
    node_types = with_promises(node_types, read_promises(wanted))
    document = tomlkit.parse(text)
    resource = document.setdefault("resource", tomlkit.table())
    tables = resource.get("config")
    if tables is None:
        resource["config"] = tables = tomlkit.aot()
    if not isinstance(tables, AoT):
        raise FluxConfigError("resource.config: [[resource.config]] tables are needed, not an array in one line")
    for index in reversed(range(len(tables))):
        kept = _without(tables[index], division)
        if kept is None:
            del tables[index]
        elif kept["hosts"] != tables[index]["hosts"]:
            tables[index]["hosts"] = kept["hosts"]
    for made in tables_for_types(division, node_types):
        table = tomlkit.table()
        table.update(made)
        table.add(tomlkit.nl())  # a blank line after it
        tables.append(table)
    ours = document.setdefault(OUR_TABLE, tomlkit.table(is_super_table=True))
    ours["slots"] = tomlkit.item(slots_table(division))
    if promises:
        ours["promises"] = tomlkit.item(wanted[OUR_TABLE]["promises"])
    changed = tomlkit.dumps(document)
    if _parsed(changed) != wanted:
        raise FluxConfigError(
            "[[resource.config]] stands where it cannot be changed alone: have its tables follow [resource]"
        )
    return changed


def toml_with_hosts(text: str, hosts: Sequence[str]) -> str:
    """The TOML file with hosts added to the end of the bootstrap table, where they get the next ranks."""
    document = tomlkit.parse(text)
    table = document.get("bootstrap", {}).get("hosts")
    if table is None:
        raise FluxConfigError("bootstrap.hosts is needed: the instance was not started from a bootstrap table")
    entry = tomlkit.inline_table()
    entry["host"] = compress_hostlist(hosts)
    if isinstance(table, AoT):
        made = tomlkit.table()
        made.update(entry)
        table.append(made)
    else:
        table.append(entry)
    changed = tomlkit.dumps(document)
    if bootstrap_hosts(_parsed(changed)) != [*bootstrap_hosts(_parsed(text)), *hosts]:
        raise FluxConfigError("bootstrap.hosts cannot be lengthened as it is written: write one entry a line")
    return changed


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FluxConfigError(f"it is not TOML: {error}") from error


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The one file of a configuration folder that holds the resources."""

    path: Path

    @classmethod
    def find(cls, folder: Path) -> ConfigFile:
        """The file in ``FOLDER/conf.d`` with a ``[resource]`` table. Raises :class:`FluxConfigError`."""
        holders = cls.resource_files(folder)
        if len(holders) != 1:
            found = ", ".join(str(path) for path in holders) or "none"
            raise FluxConfigError(
                f"{folder / 'conf.d'}: one *.toml file with a [resource] table is needed, found {found}: is"
                " bootstrap_dir the folder that init wrote?"
            )
        return cls(holders[0])

    @classmethod
    def resource_files(cls, folder: Path) -> tuple[Path, ...]:
        """The files in ``FOLDER/conf.d`` with a ``[resource]`` table. Raises :class:`FluxConfigError`."""
        files = sorted((folder / "conf.d").glob("*.toml"))
        return tuple(path for path in files if "resource" in cls(path).read())

    def text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise FluxConfigError(f"{self.path}: {error}") from error

    def read(self) -> dict[str, Any]:
        try:
            return _parsed(self.text())
        except FluxConfigError as error:
            raise FluxConfigError(f"{self.path}: {error}") from error

    def write(self, text: str) -> None:
        """Replace the file in one step; on return that survives a crash of the machine."""
        if text == self.text():
            return
        try:
            mode = self.path.stat().st_mode & 0o777
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=self.path.parent, prefix=f".{self.path.name}.", delete=False
            ) as draft:
                draft.write(text)
                draft.flush()
                os.fchmod(draft.fileno(), mode)
                os.fsync(draft.fileno())
            Path(draft.name).replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise FluxConfigError(f"{self.path} cannot be replaced: {error.strerror}") from error
