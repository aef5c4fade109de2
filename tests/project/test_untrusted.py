"""One module reads the JSON and YAML of strangers. Files that read other JSON are listed, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

PACKAGE = ROOT / "nodemanager"
READER = "core/untrusted.py"
ALLOWED = {
    "cli/ensemble/manifests.py": "only writes YAML",
    "cloud/gce/account.py": "the administrator's key file",
    "cli/service_client.py": "the answers of our own service",
    "cloud/local/faults.py": "the administrator's file",
    "config/price_list.py": "a file of an installed package",
    "ensemble/file/yaml_text.py": "the places of values, by the reader's own loader",
    "flux/ensembles/worker.py": "our own frame, in the process of the user's functions",
    "flux/handles/far_side.py": "our own frames and the owner's KVS, in a process without our modules",
    "flux/parse/job_journal.py": "its own text, of a jobspec that was read before",
    "history/store/reader.py": "our own file",
    "join/flux_node_join.py": "a script that runs alone on a node; it bounds what it reads",
    "join/key_material.py": "our own file",
    "service/ensemble_costs.py": "our own file",
    "simulation/delegation/ports.py": "our own text, of the simulated instance",
    "simulation/flux/sched_simple.py": "our own text, of the simulated instance",
    "web/api/hidden_jobs.py": "our own answer",
}
_OF_JSON = {"load", "loads", "JSONDecoder"}


def _reads(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(value=ast.Name(id="json"), attr=name) if name in _OF_JSON:
                yield f"json.{name}"
            case ast.Attribute(value=ast.Name(id="yaml"), attr=name):
                yield f"yaml.{name}"
            case ast.ImportFrom(module="json" | "yaml"):
                yield "from json or yaml"
            case ast.Call(func=ast.Attribute(attr="json"), args=[], keywords=[]):
                yield ".json()"


# Eventlogs and our own logs: here ``splitlines`` would also split inside JSON strings.
OF_LOGS = ("flux", "delegation", "actors/delegation", "simulation/delegation", "ensemble")


def test_only_a_line_feed_ends_a_line_of_a_log() -> None:
    splits = [
        str(path.relative_to(PACKAGE))
        for folder in OF_LOGS
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        if any(
            it.attr == "splitlines" for it in ast.walk(ast.parse(path.read_text())) if isinstance(it, ast.Attribute)
        )
    ]
    assert not splits, "split it with nodemanager.core.untrusted.read_lines"


def test_only_one_module_reads_what_strangers_write() -> None:
    found = {
        str(path.relative_to(PACKAGE)): reads
        for path in sorted(PACKAGE.rglob("*.py"))
        if (reads := sorted(set(_reads(path))))
    }
    assert READER in found
    others = {file: reads for file, reads in found.items() if file != READER and file not in ALLOWED}
    assert not others, "read it with nodemanager.core.untrusted, or say here whose content it is"
    assert not ALLOWED.keys() - found.keys(), "these read nothing any more"
