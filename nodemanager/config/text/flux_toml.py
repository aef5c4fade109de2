"""Read and change the types of the slots in a Flux instance's configuration.

Flux reads the resources from ``[[resource.config]]`` tables (flux-config-resource(5)), one per node type. The table
``[node-manager.slots]`` in the same file lists the slots of each type; Flux ignores it. So one atomic replacement
changes both, and one ``config.get`` reads both from a running instance. If a type's machines have less than the
site says, ``[node-manager.promises]`` holds what its slots declare instead.
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
    """The configuration cannot be read or changed. The message says where, why, and what to do."""


# --- reading ----------------------------------------------------------------------------------------------


def read_slot_types(config: Config) -> dict[SlotName, TypeName]:
    """Read the type of each slot, in the order of the file; empty if the configuration has no such table."""
    ours = config.get(OUR_TABLE, {})
    slots = ours.get("slots", {}) if isinstance(ours, Mapping) else None
    if not isinstance(slots, Mapping):
        raise FluxConfigError(f"{OUR_TABLE}.slots: a table with a host list for each node type is needed")
    slot_types: dict[SlotName, TypeName] = {}
    for name, hosts in slots.items():
        for slot in _expand_hosts(hosts, f"{OUR_TABLE}.slots.{name}"):
            if slot in slot_types:
                raise FluxConfigError(
                    f"{OUR_TABLE}.slots: slot {slot} has types {slot_types[slot]} and {name}: remove one"
                )
            slot_types[slot] = TypeName(name)
    return slot_types


def read_promises(config: Config) -> dict[TypeName, Promise]:
    """Read the resources that the slots of some types declare instead of the site's."""
    ours = config.get(OUR_TABLE, {})
    tables = ours.get("promises", {}) if isinstance(ours, Mapping) else {}
    try:
        return {
            TypeName(name): Promise(int(table["cores"]), int(table["gpus"]), int(table["memory"]))
            for name, table in tables.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        raise FluxConfigError(
            f"{OUR_TABLE}.promises: a table with cores, gpus and memory (in bytes) for each node type is needed"
        ) from fault


def with_promises(node_types: Iterable[NodeType], promises: Promises) -> tuple[NodeType, ...]:
    """Return the types, with the promised resources if there is a promise for a type."""
    return tuple(it.with_promise(promises[it.name]) if it.name in promises else it for it in node_types)


def bootstrap_hosts(config: Config) -> list[str]:
    """List the bootstrap table's hosts, in the order of their ranks."""
    entries = config.get("bootstrap", {}).get("hosts", [])
    return [host for entry in entries for host in _expand_hosts(entry.get("host"), "bootstrap.hosts.host")]


def _expand_hosts(text: object, where: str) -> list[SlotName]:
    if not isinstance(text, str):
        raise FluxConfigError(f'{where}: a host list such as "cloud[1-4]" is needed')
    try:
        return [SlotName(host) for host in expand_hostlist(text)]
    except ValueError as error:
        raise FluxConfigError(f"{where}: {error}") from error


# --- the changed configuration ----------------------------------------------------------------------------


def config_with_slot_types(
    config: Config, slot_types: SlotTypes, node_types: Iterable[NodeType], promises: Promises | None = None
) -> dict[str, Any]:
    """Return the configuration with these slot types and additional promises; the rest is unchanged."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    resource = changed.setdefault("resource", {})
    kept = read_promises(config) | dict(promises or {})
    resource["config"] = resource_tables(resource.get("config", []), slot_types, with_promises(node_types, kept))
    changed.setdefault(OUR_TABLE, {})["slots"] = slots_table(slot_types)
    if kept:
        changed[OUR_TABLE]["promises"] = promises_table(kept)
    return changed


def promises_table(promises: Promises) -> dict[str, dict[str, int]]:
    """Return the table ``[node-manager.promises]``."""
    return {
        name: {"cores": promise.cores, "gpus": promise.gpus, "memory": promise.memory_bytes}
        for name, promise in promises.items()
    }


def slots_table(slot_types: SlotTypes) -> dict[str, str]:
    """Return the table ``[node-manager.slots]``: a host list for each type."""
    by_type: dict[TypeName, list[SlotName]] = {}
    for slot, name in slot_types.items():
        by_type.setdefault(name, []).append(slot)
    return {name: compress_hostlist(slots) for name, slots in by_type.items()}


def resource_tables(
    tables: Sequence[Config], slot_types: SlotTypes, node_types: Iterable[NodeType]
) -> list[dict[str, Any]]:
    """Return the ``[[resource.config]]`` tables: other hosts' tables as they are, then one for each type."""
    others = [kept for table in tables if (kept := _without_slots(table, slot_types)) is not None]
    return [*others, *tables_for_types(slot_types, node_types)]


def tables_for_types(slot_types: SlotTypes, node_types: Iterable[NodeType]) -> list[dict[str, Any]]:
    """Return one ``[[resource.config]]`` table for each type that has slots. Raises :class:`FluxConfigError`."""
    types = {node_type.name: node_type for node_type in node_types}
    tables = []
    for name, hosts in slots_table(slot_types).items():
        node_type = types.get(TypeName(name))
        if node_type is None:
            raise FluxConfigError(
                f"{OUR_TABLE}.slots: {hosts} has node type {name}, which the site lacks: keep [Node {name}]"
                f" until its slots have another type (flux-node-manager slots)"
            )
        tables.append(resource_table(node_type, hosts))
    return tables


def resource_table(node_type: NodeType, hosts: str) -> dict[str, Any]:
    """Return the table that declares the resources of these hosts, each a node of the type."""
    table: dict[str, Any] = {"hosts": hosts, "cores": format_idset(range(node_type.cores))}
    if node_type.gpus:
        table["gpus"] = format_idset(range(node_type.gpus))
    if node_type.properties:
        table["properties"] = sorted(node_type.properties)
    return table


def _without_slots(table: Config, slot_types: SlotTypes) -> dict[str, Any] | None:
    hosts = _expand_hosts(table.get("hosts"), "resource.config.hosts")
    kept = [host for host in hosts if host not in slot_types]
    if not kept:
        return None
    return dict(table) if len(kept) == len(hosts) else {**table, "hosts": compress_hostlist(kept)}


def hosts_lacking_units(
    config: Config, held: Mapping[SlotName, tuple[frozenset[int], frozenset[int]]]
) -> list[SlotName]:
    """List the hosts that lack a core or GPU that a job holds. ``held``: the ids of cores and GPUs by host."""
    has: dict[SlotName, tuple[set[int], set[int]]] = {}
    for table in config["resource"]["config"]:
        cores, gpus = parse_idset(table.get("cores", "")), parse_idset(table.get("gpus", ""))
        for host in _expand_hosts(table["hosts"], "resource.config.hosts"):
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
    text: str, slot_types: SlotTypes, node_types: Iterable[NodeType], promises: Promises | None = None
) -> str:
    """Return the TOML text with these slot types. The rest of the text, comments and order stay as they are."""
    node_types = tuple(node_types)
    wanted = config_with_slot_types(_parse_toml(text), slot_types, node_types, promises)
    node_types = with_promises(node_types, read_promises(wanted))
    document = tomlkit.parse(text)
    resource = document.setdefault("resource", tomlkit.table())
    tables = resource.get("config")
    if tables is None:
        resource["config"] = tables = tomlkit.aot()
    if not isinstance(tables, AoT):
        raise FluxConfigError("resource.config: [[resource.config]] tables are needed, not an array in one line")
    for index in reversed(range(len(tables))):
        kept = _without_slots(tables[index], slot_types)
        if kept is None:
            del tables[index]
        elif kept["hosts"] != tables[index]["hosts"]:
            tables[index]["hosts"] = kept["hosts"]
    for fields in tables_for_types(slot_types, node_types):
        table = tomlkit.table()
        table.update(fields)
        table.add(tomlkit.nl())  # a blank line after the table
        tables.append(table)
    ours = document.setdefault(OUR_TABLE, tomlkit.table(is_super_table=True))
    ours["slots"] = tomlkit.item(slots_table(slot_types))
    if promises:
        ours["promises"] = tomlkit.item(wanted[OUR_TABLE]["promises"])
    changed = tomlkit.dumps(document)
    if _parse_toml(changed) != wanted:
        raise FluxConfigError(
            "the [[resource.config]] tables cannot be changed alone where they are: move them below [resource]"
        )
    return changed


def toml_with_hosts(text: str, hosts: Sequence[str]) -> str:
    """Return the TOML text with hosts added at the end of the bootstrap table, where they get the next ranks."""
    document = tomlkit.parse(text)
    table = document.get("bootstrap", {}).get("hosts")
    if table is None:
        raise FluxConfigError(
            "bootstrap.hosts is missing: slots can be added only to an instance started from a bootstrap table"
        )
    entry = tomlkit.inline_table()
    entry["host"] = compress_hostlist(hosts)
    if isinstance(table, AoT):
        new = tomlkit.table()
        new.update(entry)
        table.append(new)
    else:
        table.append(entry)
    changed = tomlkit.dumps(document)
    if bootstrap_hosts(_parse_toml(changed)) != [*bootstrap_hosts(_parse_toml(text)), *hosts]:
        raise FluxConfigError("hosts cannot be added to bootstrap.hosts as it is: write one entry per line")
    return changed


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FluxConfigError(f"this is not valid TOML: {error}") from error


def read_conf_d(folder: Path) -> dict[str, Any]:
    """Read all tables of ``FOLDER/conf.d`` like Flux: file by file, and a later table replaces an earlier one.

    Without files, there are no tables. Raises :class:`FluxConfigError`.
    """
    tables: dict[str, Any] = {}
    for file in sorted((folder / "conf.d").glob("*.toml")):
        tables |= ConfigFile(file).read()
    return tables


def admits_guests(config: Config) -> bool:
    """Whether users other than the instance's owner may submit jobs. See flux-config-access(5)."""
    return _table(config, "access").get("allow-guest-user") is True


def imp_path(config: Config) -> str:
    """The path of flux-imp, which starts guests' jobs on every node; "" if none is set. See flux-config-exec(5)."""
    path = _table(config, "exec").get("imp", "")
    return path if isinstance(path, str) else ""


def _table(config: Config, name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, Mapping) else {}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file in a configuration folder that declares the resources."""

    path: Path

    @classmethod
    def find(cls, folder: Path) -> ConfigFile:
        """Find the one file in ``FOLDER/conf.d`` with a ``[resource]`` table. Raises :class:`FluxConfigError`."""
        files = cls.resource_files(folder)
        if len(files) != 1:
            found = ", ".join(str(path) for path in files) or "none"
            raise FluxConfigError(
                f"{folder / 'conf.d'}: one *.toml file with a [resource] table is needed, found {found}: set"
                " bootstrap_dir to the folder that init wrote"
            )
        return cls(files[0])

    @classmethod
    def resource_files(cls, folder: Path) -> tuple[Path, ...]:
        """List the files in ``FOLDER/conf.d`` with a ``[resource]`` table. Raises :class:`FluxConfigError`."""
        files = sorted((folder / "conf.d").glob("*.toml"))
        return tuple(path for path in files if "resource" in cls(path).read())

    def text(self) -> str:
        """Read the file. Raises :class:`FluxConfigError`."""
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise FluxConfigError(f"{self.path}: {error}") from error

    def read(self) -> dict[str, Any]:
        """Read and parse the file. Raises :class:`FluxConfigError`."""
        try:
            return _parse_toml(self.text())
        except FluxConfigError as error:
            raise FluxConfigError(f"{self.path}: {error}") from error

    def write(self, text: str) -> None:
        """Replace the file atomically; on return the new text survives a crash of the machine."""
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
