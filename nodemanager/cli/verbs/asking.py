"""The verbs that ask the running service. Their docstrings are the help texts."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodemanager.cli import listing
from nodemanager.cli.listing import Listing
from nodemanager.cli.parsing.exit_status import EXIT_OK, EXIT_UNAVAILABLE
from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.terminal import shows_unicode_ids, unicode_id
from nodemanager.cli.verbs.service_call import (
    UsageError,
    parse_moment,
    print_error,
    print_listing,
    readable,
    show,
    with_exit_status,
)
from nodemanager.core.notation import NotationError, escape_unprintable, parse_fsd

if TYPE_CHECKING:
    from rich.console import Console

    from nodemanager.cli.service_client import Client
    from nodemanager.config.site import Site

KINDS = ("job", "node", "type", "ensemble")
NAMED = ("jobs", "nodes", "types", "ensembles")


def status(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Show queue, nodes, cost and problems on one screen."""
    del site
    from nodemanager.cli import tables

    show(client.status(), chosen, console, tables.status)


def top(site: Site, chosen: Namespace) -> int:
    """Show nodes, waiting jobs and events live, with keys to explain, hold, retire and pause."""
    from nodemanager.cli.service_client import ServiceUnreachable, make_client
    from nodemanager.cli.top.command import NoTerminal, run_top

    try:
        run_top(make_client(site))
    except NoTerminal as error:
        chosen.usage_error(str(error))
    except ServiceUnreachable as error:
        return print_error(error, EXIT_UNAVAILABLE, as_json=False)
    return EXIT_OK


def nodes(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List the nodes, each with its reason."""
    del site
    from nodemanager.cli import tables

    show(client.get("/nodes"), chosen, console, tables.nodes)


def jobs(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List the active jobs, and why each one waits."""
    del site
    from nodemanager.cli import tables

    show(client.get("/jobs"), chosen, console, tables.jobs)


def peers(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List the instances in which jobs of this one may run: free cores, backlog, wait, price, our jobs there."""
    del site
    from nodemanager.cli import tables

    show(client.get("/peers"), chosen, console, tables.peers)


def _explain(parser: Parser) -> None:
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=f"one of {', '.join(KINDS)}")
    parser.add_argument("name", metavar="NAME", help="a job's id, a node's slot or launch, or a node type")
    parser.add_argument("--at", metavar="TIME", help='explain a past time, such as 2026-11-21T14:00, or "2h" ago')


def explain(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Explain why a job waits, a node or an ensemble's nodes are kept or not, or a node type is bought or not."""
    del site
    from nodemanager.cli.service_client import quote_segment

    kind, name = chosen.kind, chosen.name
    # "2h ago" is by the service's clock, because a simulated service has its own.
    at = parse_moment(chosen.at, "--at", lambda span_s: client.status()["at"] - span_s) if chosen.at else None
    document = client.get(f"/explain/{kind}/{quote_segment(name)}", at=at)
    if kind == "job" and not chosen.json and shows_unicode_ids():
        document = {**document, "subject": unicode_id(document["subject"])}
    from nodemanager.cli import tables

    show(document, chosen, console, tables.explanation)


def plan(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Show what would be ordered now with the site that --config names. Nothing is ordered."""
    from pydantic import TypeAdapter

    from nodemanager.cli import tables
    from nodemanager.planner.policy import Policy
    from nodemanager.service.assembly.cluster import with_cluster_uuid
    from nodemanager.service.assembly.policy import policy_of

    policy = policy_of(with_cluster_uuid(site))
    fixed = replace(policy.fixed, block_s=dict(policy.fixed.block_s))
    body = TypeAdapter(Policy).dump_json(replace(policy, fixed=fixed))
    show(client.post("/plan", body), chosen, console, tables.plan)


def _events(parser: Parser) -> None:
    parser.add_argument("--follow", action="store_true", help="also show new events as they happen")


def events(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Show recent events; with --follow, also new ones as they happen."""
    del site
    recent = client.get("/events/recent")["events"]
    if chosen.format and not chosen.no_headers and not chosen.json:
        print_listing(Listing(listing.EVENTS, ()), chosen, console)
    for event in recent:
        _show_event(event, chosen, console)
    if chosen.follow:
        after = recent[-1]["number"] if recent else 0
        for event in client.follow(after):
            _show_event(event, chosen, console)


def _show_event(event: Mapping[str, Any], chosen: Namespace, console: Console) -> None:
    if chosen.json:
        print(json.dumps(event), flush=True)
        return
    from nodemanager.cli import tables

    if chosen.format:
        row = tables.event_cells(readable(event))
        print(*Listing(listing.EVENTS, [row]).lines(chosen.format, headers=False), flush=True)
    else:
        console.print(tables.event(readable(event)))


def _report(parser: Parser) -> None:
    parser.add_argument("--since", default="7d", metavar="SPAN", help="how far to look back (default: 7d)")


def report(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Report cost by type, user and queue, and waits, boots and failures, over a span of time."""
    del site
    try:
        since_s = parse_fsd(chosen.since)
    except NotationError as error:
        raise UsageError(f"--since: {error}") from error
    from nodemanager.cli import tables

    show(client.get("/report", since_s=since_s), chosen, console, tables.report)


def _names(parser: Parser) -> None:
    parser.add_argument("kind", choices=NAMED)


def names(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List job ids, nodes, node types or ensembles, one a line, for the shell's completion."""
    del console
    match chosen.kind:
        case "jobs":
            found = [job["job"] for job in client.get("/jobs")["jobs"]]
        case "nodes":
            found = client.get("/fleet")["slot"]
        case "ensembles":
            found = list(site.ensembles)
        case _:
            found = [node_type.name for node_type in site.node_types]
    print(*(escape_unprintable(name) for name in found), sep="\n")


STATUS = Verb(name="status", act=with_exit_status(status), example="--json", prints_json=True, for_guests=True)
TOP = Verb(name="top", act=top)
NODES = Verb(
    name="nodes",
    act=with_exit_status(nodes),
    example="-o '{slot:<12} {state:<9} {cost:>8}'",
    prints_json=True,
    columns=listing.NODES,
    for_guests=True,
)
JOBS = Verb(name="jobs", act=with_exit_status(jobs), prints_json=True, columns=listing.JOBS, for_guests=True)
PEERS = Verb(name="peers", act=with_exit_status(peers), prints_json=True, columns=listing.PEERS)
EXPLAIN = Verb(
    name="explain",
    act=with_exit_status(explain),
    add_options=_explain,
    example="node cloud3 --at 2h",
    prints_json=True,
    for_guests=True,
)
PLAN = Verb(name="plan", act=with_exit_status(plan), prints_json=True)
EVENTS = Verb(
    name="events",
    act=with_exit_status(events),
    add_options=_events,
    example="--follow",
    prints_json=True,
    columns=listing.EVENTS,
)
REPORT = Verb(
    name="report", act=with_exit_status(report), add_options=_report, example="--since 30d", prints_json=True
)
NAMES = Verb(name="names", act=with_exit_status(names), add_options=_names)  # for the shell's completion
