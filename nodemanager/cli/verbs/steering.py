"""The verbs that steer the running service. Their docstrings are the help texts."""

from __future__ import annotations

import getpass
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.verbs.service_call import parse_moment, show, with_exit_status

if TYPE_CHECKING:
    from rich.console import Console

    from nodemanager.cli.service_client import Client
    from nodemanager.config.site import Site


def _node_option(parser: Parser) -> None:
    parser.add_argument("node", metavar="NODE", help="the node's slot or launch")


def _order_options(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="TEXT", help="say why; status, explain and the history show it")
    parser.add_argument(
        "--until", metavar="TIME", help='it ends by itself then: 2026-11-21T14:00, or "8h" from now'
    )


def _hold(parser: Parser) -> None:
    _node_option(parser)
    _order_options(parser)


def hold(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Hold a node: it gets no new job and is not terminated until you release it."""
    _steer_node("hold", "held", client, site, chosen, console)


def release(client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    """Release a node that is held, or that an operator retires or replaces."""
    _steer_node("release", "released", client, site, chosen, console)


def _retire(parser: Parser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE", help="the node's slot or launch")
    parser.add_argument("--rolling", action="store_true", help="replace in turns, as [Disruption] allows")
    parser.add_argument("--all", action="store_true", help="with --rolling: every node")
    parser.add_argument("--type", metavar="TYPE", help="with --all: only nodes of this type")
    _order_options(parser)


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
    from nodemanager.cli.service_client import quote_segment

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
    show(
        client.post("/reload", _order(client, chosen)),
        chosen,
        console,
        lambda document: f"reloaded {document['path']}",
    )


def _steer_node(verb: str, done: str, client: Client, site: Site, chosen: Namespace, console: Console) -> None:
    del site
    from nodemanager.cli.service_client import quote_segment

    name = chosen.node
    _show_done(
        client.post(f"/{verb}/{quote_segment(name)}", _order(client, chosen)), f"{name} {done}", chosen, console
    )


def _show_done(document: Mapping[str, Any], done: str, chosen: Namespace, console: Console) -> None:
    not_yet = "" if document["on_record"] else " (accepted, but not yet on record: see status)"
    show(document, chosen, console, lambda readable: f"{done}{not_yet}{_waits_for(readable)}")


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


HOLD = Verb(
    name="hold",
    act=with_exit_status(hold),
    add_options=_hold,
    example="cloud3 --until 8h --reason 'its disk is being looked at'",
    prints_json=True,
)
RELEASE = Verb(
    name="release", act=with_exit_status(release), add_options=_node_option, example="cloud3", prints_json=True
)
RETIRE = Verb(
    name="retire",
    act=with_exit_status(retire),
    add_options=_retire,
    example="--all --type large --rolling",
    prints_json=True,
)
PAUSE = Verb(
    name="pause",
    act=with_exit_status(pause),
    add_options=_order_options,
    example="--until 2h",
    prints_json=True,
)
RESUME = Verb(name="resume", act=with_exit_status(resume), prints_json=True)
RELOAD = Verb(name="reload", act=with_exit_status(reload), prints_json=True)
