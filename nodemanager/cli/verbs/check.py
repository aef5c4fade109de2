"""The verb ``check``: the site file, and with ``--online`` what it names."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, EXIT_UNAVAILABLE
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.verbs.site_warnings import warnings_of
from nodemanager.core.notation import escape_unprintable

if TYPE_CHECKING:
    from nodemanager.cloud.common.findings import Finding
    from nodemanager.config.site import Site
    from nodemanager.core.nodes import Launch
    from nodemanager.core.ports import CloudPort
    from nodemanager.core.slots import NodeType

COSTS_SINCE_DAYS = 30
DAY_S = 86_400.0


def _check(parser: Parser) -> None:
    parser.add_argument(
        "--online",
        action="store_true",
        help="also ask the account, the instance and the join service; nothing is created or changed",
    )


@dataclass(slots=True)
class _Output:
    """Prints what was found, each line with its label, or collects it for ``--json``."""

    path: Path
    as_json: bool
    found: list[dict[str, str]] = field(default_factory=list)
    has_fault: bool = False

    def say(self, label: str, text: str) -> None:
        """Tell of the site file: "note", "warning" or "fault"."""
        self.has_fault = self.has_fault or label == "fault"
        if self.as_json:
            self.found.append({"verdict": label, "subject": str(self.path), "text": text, "remedy": ""})
        else:
            print(f"{self.path}: {label}: {text}", file=sys.stdout if label == "note" else sys.stderr)

    def tell(self, finding: Finding, part: Site | None, where: str) -> None:
        """Tell of the account, the instance or the machine."""
        words = part.cloud_section.in_own_words if part is not None else str
        self.has_fault = self.has_fault or str(finding.verdict) == "fault"
        if self.as_json:
            subject, text = where + finding.subject, words(finding.text)
            verdict, remedy = str(finding.verdict), words(finding.remedy)
            self.found.append({"verdict": verdict, "subject": subject, "text": text, "remedy": remedy})
        else:
            print(where + escape_unprintable(words(str(finding))), flush=True)

    def end(self, status: int) -> int:
        if self.as_json:
            print(
                json.dumps({"site": str(self.path), "good": not self.has_fault, "findings": self.found}, indent=2)
            )
        return status


def check(site: Site, chosen: argparse.Namespace) -> int:
    """Check the site file and print its faults and warnings."""
    from nodemanager.flux.setup.bootstrap import FluxTooOld, gpu_warning
    from nodemanager.flux.setup.existing import delegation_faults

    output = _Output(site.path, chosen.json)
    for warning in warnings_of(site):
        output.say("warning", warning)
    try:
        gpus = gpu_warning(site)
    except FluxTooOld as error:
        output.say("fault", str(error))
        return output.end(EXIT_UNAVAILABLE)
    if gpus:
        output.say("warning", gpus)
    for note in _notes(site):
        output.say("note", note)
    undelegated = (f"no job can be delegated: {fault}" for fault in delegation_faults(site))
    for fault in (*_ensemble_faults(site), *_grpc_faults(site), *_token_faults(site), *undelegated):
        output.say("fault", fault)
    if output.has_fault:
        return output.end(EXIT_CONFIG)
    slots = _slots_of(site)
    types = f"{len(site.node_types)} node type{'s' if len(site.node_types) != 1 else ''}"
    if not chosen.json:
        print(f"{site.path}: good; {types}, {slots} slots, mode {site.mode_text}")
    if chosen.online:
        _check_online(site, output)
    return output.end(EXIT_FAILED if output.has_fault else EXIT_OK)


def _slots_of(site: Site) -> int:
    return sum(len(node_type.slots) for node_type in site.node_types)


def _notes(site: Site) -> Iterator[str]:
    if not site.flux.simulated:
        yield from dict.fromkeys(part.rules.poweroff_effect for part in site.by_cloud.values())
    for part in site.by_cloud.values():
        if key := part.missing_for_batches:
            yield (
                "each node is created by a call of its own; one call creates several if"
                f" [{part.cloud_section.section}] {key} is set"
            )
    slots, nodes_max = _slots_of(site), site.limits.nodes_max
    if slots > nodes_max:
        yield f"{slots} slots, but nodes_max = {nodes_max}: a job for more than {nodes_max} nodes can never run"
    yield from _gpu_notes(site)
    yield from _gpu_costs(site)


def _check_online(site: Site, output: _Output) -> None:
    from nodemanager.cli.cloud_test import make_test_site, user_data
    from nodemanager.cli.online.checks import check_cloud, check_flux, check_state_dir
    from nodemanager.cli.prices import bundled_prices, compare_site_prices
    from nodemanager.cloud.providers import check_creates, cloud_factory
    from nodemanager.service.assembly.cluster import NotInitialised, with_cluster_uuid
    from nodemanager.service.assembly.ports import SystemClock, size_service

    try:
        site = with_cluster_uuid(site)
    except NotInitialised:
        site = make_test_site(site)  # nothing of the cluster exists yet
    clock = SystemClock()

    def of_cloud(part: Site) -> Iterator[Finding]:
        def script(_launch: Launch, _node_type: NodeType) -> str:
            return user_data(part)

        def make_port() -> CloudPort:
            return cloud_factory(part, script, clock, size_service(part))()

        prices = compare_site_prices(part, bundled_prices(part))
        return check_cloud(part, make_port, lambda: check_creates(part, script, clock), prices)

    parts = site.by_cloud.values()
    for part, findings in (
        *((part, of_cloud(part)) for part in parts),
        (None, check_state_dir(site)),
        (None, check_flux(site)),
    ):
        where = f"cloud {part.cloud_name}: " if part is not None and len(parts) > 1 else ""
        for finding in findings:
            output.tell(finding, part, where)


def _gpu_notes(site: Site) -> Iterator[str]:
    """What follows from ``only_for`` for jobs without GPUs, where a site sets it."""
    from nodemanager.core.reason_text import format_money
    from nodemanager.core.slots import OnlyFor

    def per_core(node_type: NodeType) -> Decimal:
        return node_type.price_per_hour / node_type.cores

    others = [it for it in site.node_types if not it.is_reserved and not it.gpus]
    cheapest = min(others, key=per_core, default=None)
    for it in site.node_types:
        if it.only_for is OnlyFor.GPU:
            yield f"[Node {it.name}] only_for = gpu: a job without GPUs that fits on no other type never runs"
        elif it.gpus and not it.is_reserved and cheapest is not None and per_core(it) > per_core(cheapest):
            yield (
                f"[Node {it.name}] only_for = any: jobs without GPUs may pay {format_money(per_core(it))} a"
                f" core-hour there; {cheapest.name} costs {format_money(per_core(cheapest))}"
            )


def _gpu_costs(site: Site) -> Iterator[str]:
    """What nodes with GPUs cost lately while nobody used their GPUs, from the history of the site."""
    from nodemanager.cli import tables
    from nodemanager.history.store.reader import HistoryReader, HistoryUnreadable
    from nodemanager.history.store.schema import HISTORY_FILE

    path = site.state_dir / HISTORY_FILE
    if not any(it.gpus for it in site.node_types) or not path.exists():
        return
    try:
        rows = HistoryReader(path).misused(time.time() - COSTS_SINCE_DAYS * DAY_S)
    except HistoryUnreadable as error:
        yield f"what nodes with GPUs cost is not known: {error}"
        return
    if rows:
        yield f"in the last {COSTS_SINCE_DAYS} days {tables.misused(rows)}"


def _ensemble_faults(site: Site) -> list[str]:
    if not site.ensembles:
        return []
    from nodemanager.service.ensembles import EnsembleFileError, read_assignment

    faults = []
    for name, settings in site.ensembles.items():
        try:
            read_assignment(name, settings)
        except EnsembleFileError as error:
            faults.append(str(error))
    return faults


def _grpc_faults(site: Site) -> list[str]:
    key = f"[{site.cloud_section.section}] service" if site.cloud.service else ""
    if site.web.grpc_listen != "off":
        key = "[Web] grpc_listen"
    if not key:
        return []
    from nodemanager.web.grpc.messages import GrpcMissing, load_grpc

    try:
        load_grpc()
    except GrpcMissing as error:
        return [f"{key}: {error}"]
    return []


def _token_faults(site: Site) -> list[str]:
    if site.web.tokens_file is None:
        return []
    from nodemanager.web.state.token import TokenError, read_named_tokens

    try:
        read_named_tokens(site.web.tokens_file)
    except TokenError as error:
        return [f"[Web] tokens_file: {line}" for line in str(error).splitlines()]
    return []


CHECK = Verb(name="check", act=check, add_options=_check, example="--online", prints_json=True)
