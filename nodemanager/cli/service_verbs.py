"""The verbs that ask or steer the running service. Their docstrings are the help texts."""

from __future__ import annotations

import getpass
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from nodemanager.cli.service_client import (
    Client,
    NotAllowed,
    NotTheOwner,
    RequestDeclined,
    ServiceUnreachable,
    make_client,
    quote_segment,
)
from nodemanager.cli.terminal import escape_document, make_console, shows_unicode_ids, unicode_id, with_unicode_ids
from nodemanager.config.site import Site
from nodemanager.core.notation import NotationError, escape_unprintable, parse_fsd
from nodemanager.planner.state.policy import Policy

if TYPE_CHECKING:  # only what shows something on a terminal loads Rich: the service does without its 4 MB
    from rich.console import Console, RenderableType

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE and EX_NOPERM (sysexits.h)
EXIT_NO_PERMISSION = 77

GUESTS_ASK = ("status", "nodes", "jobs", "explain")


def not_for_guests(why: str) -> NotAllowed:
    """Say what a user has who may not ask the service itself."""
    return NotAllowed(
        f"{why}. Only the owner of the Flux instance may ask the service. What every user has:\n"
        "  why your jobs wait:   flux jobs -o '{id.f58:>12} {user.nodes}'\n"
        '  one job in full:      flux python -c \'import flux; print(flux.Flux().rpc("node-manager-info.explain",'
        ' {"id": "JOBID"}).get())\'\n'
        "  how the fleet is:     flux python -c 'import flux;"
        ' print(flux.Flux().rpc("node-manager-info.status").get())\''
    )


class UsageError(Exception):
    """The command line is incomplete or wrong. The message shows the correct form."""


ServiceVerb = Callable[[Client, Site, Namespace, "Console"], None]


def with_exit_status(ask: ServiceVerb) -> Callable[[Site, Namespace], int]:
    """Wrap a verb for the command line: errors go to standard error and become an exit status."""

    def verb(site: Site, chosen: Namespace) -> int:
        try:
            ask(make_client(site), site, chosen, make_console(soft_wrap=not sys.stdout.isatty()))
        except UsageError as error:
            return print_error(error, EXIT_USAGE, as_json=chosen.json)
        except RequestDeclined as error:
            return print_error(error, EXIT_FAILED, as_json=chosen.json)
        except ServiceUnreachable as error:
            return print_error(error, EXIT_UNAVAILABLE, as_json=chosen.json)
        except NotTheOwner as error:
            return print_error(not_for_guests(str(error)), EXIT_NO_PERMISSION, as_json=chosen.json)
        except NotAllowed as error:
            return print_error(error, EXIT_NO_PERMISSION, as_json=chosen.json)
        return EXIT_OK

    verb.__doc__ = ask.__doc__
    return verb


def print_error(error: Exception, status: int, *, as_json: bool) -> int:
    """Print an error on standard error, as text or as one line of JSON. Returns the exit status."""
    if as_json:
        print(json.dumps({"error": str(error), "exit_status": status}), file=sys.stderr)
        return status
    # The text may be the service's, in several lines, and contain anything.
    print(*(escape_unprintable(line) for line in str(error).split("\n")), sep="\n", file=sys.stderr)
    return status


def _show(document: Any, chosen: Namespace, console: Console, shown: Callable[[Any], RenderableType]) -> None:
    if chosen.json:
        print(json.dumps(document, indent=2))
    else:
        console.print(shown(_readable(document)))


def _readable(document: Any) -> Any:
    """Return a document as the terminal may show it."""
    document = escape_document(document)
    return with_unicode_ids(document) if shows_unicode_ids() else document


# --- asking -----------------------------------------------------------------------------------------------


def status(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Show queue, nodes, cost and problems on one screen."""
    del site
    from nodemanager.cli import tables

    _show(client.status(), chosen, console, tables.status)


def nodes(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List the nodes, each with its reason."""
    del site
    from nodemanager.cli import tables

    _show(client.get("/nodes"), chosen, console, tables.nodes)


def jobs(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List the active jobs, and why each one waits."""
    del site
    from nodemanager.cli import tables

    _show(client.get("/jobs"), chosen, console, tables.jobs)


def peers(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """List the instances in which jobs of this one may run: free cores, backlog, wait, price, our jobs there."""
    del site
    from nodemanager.cli import tables

    _show(client.get("/peers"), chosen, console, tables.peers)


def explain(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Explain why a job waits, a node or an ensemble's nodes are kept or not, or a node type is bought or not."""
    del site
    kind, name = chosen.kind, chosen.name
    # "2h ago" is by the service's clock, because a simulated service has its own.
    at = parse_moment(chosen.at, "--at", lambda span_s: client.status()["at"] - span_s) if chosen.at else None
    document = client.get(f"/explain/{kind}/{quote_segment(name)}", at=at)
    if kind == "job" and not chosen.json and shows_unicode_ids():
        document = {**document, "subject": unicode_id(document["subject"])}
    from nodemanager.cli import tables

    _show(document, chosen, console, tables.explanation)


def plan(
    client: Client, site: Site, chosen: Namespace, console: Console, *, policy_of: Callable[[Site], Policy]
) -> None:
    """Show what would be ordered now with the site that --config names. Nothing is ordered."""
    policy = policy_of(site)
    fixed = replace(policy.fixed, block_s=dict(policy.fixed.block_s))
    body = TypeAdapter(Policy).dump_json(replace(policy, fixed=fixed))
    from nodemanager.cli import tables

    _show(client.post("/plan", body), chosen, console, tables.plan)


def events(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Show recent events; with --follow, also new ones as they happen."""
    del site
    recent = client.get("/events/recent")["events"]
    for event in recent:
        _show_event(event, chosen, console)
    if chosen.follow:
        after = recent[-1]["number"] if recent else 0
        for event in client.follow(after):
            _show_event(event, chosen, console)


def _show_event(event: Mapping[str, Any], chosen: Namespace, console: Console) -> None:
    if chosen.json:
        print(json.dumps(event), flush=True)
    else:
        from nodemanager.cli import tables

        console.print(tables.event(_readable(event)))


def report(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Report cost by type, user and queue, and waits, boots and failures, over a span of time."""
    del site
    try:
        since_s = parse_fsd(chosen.since)
    except NotationError as error:
        raise UsageError(f"--since: {error}") from error
    from nodemanager.cli import tables

    _show(client.get("/report", since_s=since_s), chosen, console, tables.report)


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


# --- steering ---------------------------------------------------------------------------------------------


def hold(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Hold a node: it gets no new job and is not terminated until you release it."""
    _steer_node("hold", "held", client, site, chosen, console)


def release(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Release a node that is held, or that an operator retires or replaces."""
    _steer_node("release", "released", client, site, chosen, console)


def retire(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Retire a node: drain it, and terminate it once nothing runs there; with --rolling when its turn comes."""
    if chosen.node and not (chosen.all or chosen.type or chosen.rolling):
        _steer_node("retire", "will be retired", client, site, chosen, console)
        return
    if not chosen.rolling or chosen.all == bool(chosen.node) or (chosen.type and not chosen.all):
        chosen.usage_error("give NODE, NODE --rolling, or --all --rolling, with --type TYPE if you like")
    if chosen.node:
        _steer_node("replace", "will be replaced when its turn comes", client, site, chosen, console)
        return
    path = f"/replace-all/{quote_segment(chosen.type)}" if chosen.type else "/replace-all"
    document = client.post(path, _order(client, chosen))
    _show_done(document, f"{len(document['nodes'])} nodes will be replaced in turns", chosen, console)


def pause(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Pause all decisions until you resume them. Existing nodes still cost money."""
    del site
    _show_done(client.post("/pause", _order(client, chosen)), "paused", chosen, console)


def resume(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Resume decisions after a pause."""
    del site
    _show_done(client.post("/resume", _order(client, chosen)), "resumed", chosen, console)


def reload(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Reload the site in the running service. A site with a fault changes nothing."""
    del site
    _show(
        client.post("/reload", _order(client, chosen)),
        chosen,
        console,
        lambda document: f"reloaded {document['path']}",
    )


def _steer_node(verb: str, done: str, client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    del site
    name = chosen.node
    _show_done(
        client.post(f"/{verb}/{quote_segment(name)}", _order(client, chosen)), f"{name} {done}", chosen, console
    )


def _show_done(document: Mapping[str, Any], done: str, chosen: Namespace, console: Console) -> None:
    not_yet = "" if document["on_record"] else " (accepted, but not yet on record: see status)"
    _show(document, chosen, console, lambda readable: f"{done}{not_yet}{_waits_for(readable)}")


def _waits_for(document: Mapping[str, Any]) -> str:
    return f". Not yet: {document['waits_for']}" if document.get("waits_for") else ""


def _order(client: Client, chosen: Namespace) -> dict[str, object]:
    """The body of a request that steers: who asks, and the verb's --reason and --until if it has them."""
    order: dict[str, object] = {"by": _user_name()}
    if why := getattr(chosen, "reason", None):
        order["reason"] = why
    if until := getattr(chosen, "until", None):
        # "8h" is by the service's clock, because a simulated service has its own.
        order["until_at"] = parse_moment(until, "--until", lambda span_s: client.status()["at"] + span_s)
    return order


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def parse_moment(text: str, option: str, moved_by: Callable[[float], float]) -> float:
    """Parse a time: ISO 8601 (local time by default), seconds since the epoch, or a span such as "2h" from now.

    Returns seconds since the epoch. ``moved_by`` gives the moment that lies a span in seconds from now. It is
    called only if needed. Raises ``UsageError``.
    """
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number > 1e8:
        return number
    try:
        span_s = parse_fsd(text)
    except NotationError as error:
        raise UsageError(f'{option}: "2026-11-21T14:00" or "2h" is needed, not "{text}"') from error
    return moved_by(span_s)
