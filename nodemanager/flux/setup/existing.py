"""Propose the changes that make an existing instance elastic: placeholders in its table, and their resources.

This module changes nothing. It shows the changes as a diff for GNU patch. The instance's administrator applies it
and restarts rank 0 once.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from nodemanager.config.site import Site
from nodemanager.config.text.flux_toml import (
    FluxConfigError,
    SlotTypes,
    bootstrap_hosts,
    read_conf_d,
    toml_with_hosts,
    toml_with_slot_types,
)
from nodemanager.core.notation import NotationError, compress_hostlist, expand_hostlist, format_idset, parse_idset
from nodemanager.core.untrusted import read_json
from nodemanager.flux.delegate.setup import (
    BYPASS,
    FROBNICATOR_FILE,
    flux_delegate_path,
    frobnicator_plugins,
    setup_faults,
)
from nodemanager.flux.fluxion import QMANAGER
from nodemanager.flux.parse.resources import LEADER
from nodemanager.flux.setup.bootstrap import BootstrapError


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposed changes to an instance's configuration. Its text is for the administrator."""

    diff: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        if not self.diff:
            return "# The instance already has the slots of the site.\n"
        return "".join([*(f"# {note}\n" for note in self.notes), self.diff])


def propose(site: Site, folder: Path) -> Proposal:
    """Read an instance's ``*.toml`` files in FOLDER or FOLDER/conf.d, and propose what to add.

    Raises :class:`BootstrapError` if the instance cannot become elastic as it is.
    """
    conf = folder / "conf.d" if (folder / "conf.d").is_dir() else folder
    before = {path: _read_text(path) for path in sorted(conf.glob("*.toml"))}
    tables = {path: _parse_toml(path, text) for path, text in before.items()}
    after = dict(before)
    try:
        _add_hosts(site, after, _file_with_table(tables, "bootstrap", conf))
        _add_resources(site, after, _file_with_table(tables, "resource", conf))
        if site.delegates:
            _add_delegation(after, tables, _file_with_table(tables, "resource", conf), frobnicator_file(site))
    except FluxConfigError as error:
        raise BootstrapError(f"{conf}: {error}") from error
    diff = "".join(_diff(path, before[path], text) for path, text in after.items())
    config = {key: value for table in tables.values() for key, value in table.items()}
    return Proposal(diff, tuple(_notes(site, config, folder, conf)))


def _diff(path: Path, before: str, after: str) -> str:
    """Write a diff that ``patch`` can read, with its mark for a missing newline at the end of a file."""
    lines = difflib.unified_diff(_lines(before), _lines(after), str(path), str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Split into lines with their ends. For ``patch`` only a newline ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _read_text(path: Path) -> str:
    """Read a file without changing its line ends."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeError) as error:
        raise BootstrapError(f"{path}: {error}") from error


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BootstrapError(f"{path} is not valid TOML: {error}") from error


def _file_with_table(tables: Mapping[Path, Mapping[str, Any]], name: str, conf: Path) -> Path:
    holders = [path for path, table in tables.items() if name in table]
    if len(holders) != 1:
        found = ", ".join(str(path) for path in holders) or "none"
        raise BootstrapError(
            f"{conf}: one *.toml file with a [{name}] table is needed, found {found}: only an instance that is"
            " started from a bootstrap table, with configured resources, can become elastic"
        )
    return holders[0]


def _add_hosts(site: Site, texts: dict[Path, str], path: Path) -> None:
    known = set(bootstrap_hosts(tomllib.loads(texts[path])))
    for node_type in site.node_types:
        new = [slot for slot in node_type.slots if slot not in known]
        if new:
            texts[path] = toml_with_hosts(texts[path], new)


def _add_resources(site: Site, texts: dict[Path, str], path: Path) -> None:
    texts[path] = _with_resource_tables(texts[path], path)
    slot_types: SlotTypes = {slot: node_type.name for node_type in site.node_types for slot in node_type.slots}
    text = toml_with_slot_types(texts[path], slot_types, site.node_types)
    document = tomlkit.parse(text)
    if not document["resource"].get("noverify"):
        document["resource"]["noverify"] = True
        text = tomlkit.dumps(document)
    texts[path] = text


def frobnicator_file(site: Site) -> Path:
    """The copy of our frobnicator plugin for an existing instance. ``init --existing`` writes it."""
    return site.state_dir / FROBNICATOR_FILE


def frobnicator_in_use(site: Site) -> Path:
    """The file of our frobnicator plugin that the instance's configuration should name.

    ``init`` writes it beside the configuration of a new instance, ``init --existing`` to ``state_dir``.
    """
    of_init = site.flux.bootstrap_dir / FROBNICATOR_FILE
    return of_init if of_init.exists() else frobnicator_file(site)


def write_frobnicator(site: Site) -> None:
    """Write our frobnicator plugin to where the proposal says it is. Raises :class:`BootstrapError`."""
    file = frobnicator_file(site)
    try:
        shutil.copyfile(flux_delegate_path(), file)
    except OSError as error:
        raise BootstrapError(f"{file}: {error.strerror}") from error


def delegation_faults(site: Site) -> tuple[str, ...]:
    """Name the lines that delegation needs and the instance's configuration lacks, as far as that can be read."""
    folder = site.flux.bootstrap_dir
    if not site.delegates or site.flux.simulated or not os.access(folder / "conf.d", os.R_OK | os.X_OK):
        return ()
    try:
        config = read_conf_d(folder)
    except FluxConfigError:
        return ()  # not written yet, or a fault that the site's loading reports
    if not config:
        return ()
    loaded = [str(plugin.get("load", "")) for plugin in config.get("job-manager", {}).get("plugins", [])]
    return tuple(setup_faults(config, {"plugins": loaded}, frobnicator_in_use(site)))


def _add_delegation(
    texts: dict[Path, str], tables: Mapping[Path, Mapping[str, Any]], default: Path, frobnicator: Path
) -> None:
    """Load the two plugins of delegation, in the files that have such tables already, or else in ``default``."""
    ingest = next((path for path, table in tables.items() if "ingest" in table), default)
    document = tomlkit.parse(texts[ingest])
    frobnicators = _table_in(_table_in(document, "ingest"), "frobnicator")
    loaded = [str(name) for name in frobnicators.get("plugins", frobnicator_plugins(frobnicator)[:-1])]
    if FROBNICATOR_FILE not in {Path(name).name for name in loaded}:
        frobnicators["plugins"] = [*loaded, str(frobnicator)]
        texts[ingest] = tomlkit.dumps(document)
    manager = next((path for path, table in tables.items() if "job-manager" in table), default)
    document = tomlkit.parse(texts[manager])
    plugins = _table_in(document, "job-manager")
    present = plugins.get("plugins", [])
    if BYPASS not in {Path(str(plugin.get("load", ""))).name for plugin in present}:
        line = tomlkit.inline_table()
        line["load"] = BYPASS
        plugins["plugins"] = [*present, line]
        texts[manager] = tomlkit.dumps(document)


def _table_in(parent: Any, name: str) -> Any:
    if name not in parent:
        parent[name] = tomlkit.table()
    return parent[name]


def _with_resource_tables(text: str, path: Path) -> str:
    """Replace R from a file (``resource.path``) by ``[[resource.config]]`` tables, if there are none yet."""
    resource = tomllib.loads(text)["resource"]
    if "config" in resource or "path" not in resource:
        return text
    if "scheduling" in resource:
        raise BootstrapError(
            f"{path}: resource.scheduling describes every node to the scheduler, but not the placeholders: first"
            " remove it, or generate it again with the placeholders"
        )
    file = Path(resource["path"])
    try:
        found = resource_tables_of_r(read_json(_read_text(path.parent / file)))
    except (ValueError, KeyError, TypeError) as error:
        raise BootstrapError(f"{file}, R of this instance, cannot be read: {error}") from error
    document = tomlkit.parse(text)
    made = tomlkit.aot()
    for fields in found:
        table = tomlkit.table()
        table.update(fields)
        table.add(tomlkit.nl())
        made.append(table)
    del document["resource"]["path"]
    document["resource"]["config"] = made
    return tomlkit.dumps(document)


def resource_tables_of_r(r: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ``[[resource.config]]`` tables equal to an R (RFC 20). Raises ``ValueError`` and the like."""
    if "scheduling" in r:
        raise ValueError("it has a scheduling key, which describes every node to the scheduler")
    execution = r["execution"]
    entries = [(rank, entry["children"]) for entry in execution["R_lite"] for rank in parse_idset(entry["rank"])]
    ranks = sorted({rank for rank, _ in entries})
    hosts = [host for text in execution["nodelist"] for host in expand_hostlist(text)]
    if len(hosts) != len(ranks):
        raise ValueError(f"{len(hosts)} hosts for {len(ranks)} ranks")
    host_of = dict(zip(ranks, hosts, strict=True))
    properties = {name: set(parse_idset(text)) for name, text in execution.get("properties", {}).items()}
    units: dict[int, tuple[set[int], set[int]]] = {rank: (set(), set()) for rank in ranks}
    for rank, has in entries:
        units[rank][0].update(parse_idset(has.get("core", "")))
        units[rank][1].update(parse_idset(has.get("gpu", "")))
    same: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for rank, (cores, gpus) in units.items():
        own = tuple(sorted(name for name, members in properties.items() if rank in members))
        same.setdefault((format_idset(cores), format_idset(gpus), own), []).append(host_of[rank])
    return [
        {
            "hosts": compress_hostlist(members),
            "cores": core_ids,
            **({"gpus": gpu_ids} if gpu_ids else {}),
            **({"properties": list(own)} if own else {}),
        }
        for (core_ids, gpu_ids, own), members in same.items()
    ]


def _runs_jobs_on_leader(config: Mapping[str, Any]) -> bool:
    """Whether Flux runs jobs on rank 0. ``resource.exclude`` is a set of ranks or a list of hosts."""
    excluded = config.get("resource", {}).get("exclude", "")
    if not isinstance(excluded, str) or not excluded:
        return True
    try:
        return LEADER not in parse_idset(excluded)
    except NotationError:
        pass
    try:
        return not {*expand_hostlist(excluded)} & {*bootstrap_hosts(config)[:1]}
    except NotationError as error:
        raise BootstrapError(f"resource.exclude: neither ranks nor hosts: {error}") from error


def _notes(site: Site, config: Mapping[str, Any], folder: Path, conf: Path) -> Iterator[str]:
    yield "Nothing was changed. Apply this on rank 0, and on nodes with their own files: patch -d / -p1 <DIFF"
    yield "Then restart rank 0 once, because it reads the table at its start. Running jobs end, waiting jobs stay."
    if not config.get("resource", {}).get("noverify"):
        yield "noverify: a node's own host name and cores differ from its slot's. It applies to all nodes."
    if config.get("tbon", {}).get("topo", "kary:0") != "kary:0":
        yield 'tbon.topo must be "kary:0": a node reaches only rank 0, and a placeholder cannot be its parent.'
    if _runs_jobs_on_leader(config):
        yield "Rank 0 runs jobs: resource.exclude does not name it. Its cores serve jobs before a node is bought,"
        yield 'and the manager never ends it. To keep jobs off rank 0, set exclude = "0" in [resource].'
    else:
        yield "Rank 0 runs no jobs: resource.exclude names it. Its cores do not count, and every job gets nodes."
    if "checkpoint-period" not in config.get("kvs", {}):
        yield "Consider [kvs] checkpoint-period: without it a crash of rank 0 loses all jobs."
    if QMANAGER not in config:
        yield f'Fluxion needs [{QMANAGER}] queue-policy = "easy", or it denies jobs for more nodes than are up.'
    if site.limits.nodes_max < len(site.slots) and "limits" not in config.get("policy", {}):
        yield f"Consider [policy.limits] job-size.max.nnodes = {site.limits.nodes_max}, nodes_max of the site:"
        yield "a larger job can never run, and in queue order it holds up all jobs behind it."
    yield "Rank 0 must be started with -Sbroker.quorum=1 (flux.service does so) and a statedir."
    expected = folder if conf != folder else conf.parent
    if site.flux.bootstrap_dir != expected and conf.name == "conf.d":
        yield f"In [Flux] the site needs: bootstrap_dir = {expected}"
