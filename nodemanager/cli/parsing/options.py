"""The arguments and the example of each verb."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nodemanager.cli.parsing.parser import Parser

KINDS = ("job", "node", "type", "ensemble")
PROGRAM = "flux-node-manager"
SITE = "--config site.ini"
NAMES_VERB = "names"  # for the shell's completion, so --help does not list it
GRPC_LISTEN = "127.0.0.1:50051"
PROVIDERS_SURVEYED = ("ec2", "openstack", "gce", "azure")
NAMED = ("jobs", "nodes", "types", "ensembles")

AddArguments = Callable[[Parser], None]


def _nothing(parser: Parser) -> None:
    del parser


@dataclass(frozen=True, slots=True)
class VerbOptions:
    """What a verb takes. ``example``: the command line after the verb, without ``--config``."""

    example: str = ""
    add: AddArguments = _nothing
    prints_json: bool = False
    has_site: bool = True


# --- the options of single verbs --------------------------------------------------------------------------


def _check(parser: Parser) -> None:
    parser.add_argument(
        "--online",
        action="store_true",
        help="also ask the account, the instance and the join service; nothing is created or changed",
    )


def _init(parser: Parser) -> None:
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="write the bootstrap of a new instance to this folder; with --provider: the site file (site.ini)",
    )
    parser.add_argument(
        "--existing",
        metavar="DIR",
        help="print what to add to the instance whose configuration is in this folder",
    )
    _nested(parser)
    site = parser.add_argument_group(
        "a first site file",
        "With --provider, ask the account what it offers, and write a site file. Give no --config. The keys come "
        "from the environment. On a terminal, init asks for the options that are left out.",
    )
    site.add_argument("--provider", choices=PROVIDERS_SURVEYED, help="the account to ask")
    site.add_argument("--cluster", metavar="NAME", help="the cluster's name (default: lab)")
    site.add_argument("--region", metavar="NAME", help="the region that the nodes run in")
    site.add_argument("--image", metavar="ID", help="the nodes' image (default: the newest of the account)")
    site.add_argument("--network", metavar="ID", help="the nodes' VPC, network or subnet")
    site.add_argument("--size", nargs="+", metavar="NAME", help="a node type for each of these sizes")
    site.add_argument("--head-address", metavar="ADDRESS", help="rank 0's address (default: this machine's)")
    site.add_argument("--project", metavar="ID", help="gce: the project")
    site.add_argument("--resource-group", metavar="NAME", help="azure: a group that holds only nodes")
    site.add_argument("--ssh-key", metavar="FILE", help="azure: a public key (default: yours in ~/.ssh)")
    site.add_argument("--endpoint", metavar="URL", help="another server with the provider's API, for tests")


def _nested(parser: Parser) -> None:
    parser.add_argument("--nested", action="store_true", help="rank 0 will be a job of an outer Flux")


def _cloud_test(parser: Parser) -> None:
    parser.add_argument("--keep", action="store_true", help="keep the node, which then costs money")
    parser.add_argument("--cloud", metavar="NAME", default="", help="test this one of the site's clouds")


def _prices(parser: Parser) -> None:
    parser.add_argument(
        "--table", metavar="TOML", help='read your own price list, with "SIZE" = price under each [REGION]'
    )
    parser.add_argument(
        "--region", metavar="NAME", help="use this region of the price list, if the site does not name it"
    )
    parser.add_argument("--cloud", metavar="NAME", default="", help="compare this one of the site's clouds")


def _slots(parser: Parser) -> None:
    parser.add_argument("--slots", nargs="+", metavar="TYPE=N", help="give each node type this number of slots")


def _resize(parser: Parser) -> None:
    parser.add_argument(
        "--slots", nargs="+", required=True, metavar="TYPE=N", help="the new number of slots of each node type"
    )
    parser.add_argument("--force", action="store_true", help="resize even if jobs run; they are lost")
    parser.add_argument(
        "--i-restart-it", action="store_true", help="you or your supervisor start rank 0 when it ends"
    )


def _expand(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOBID", help="the outer job that runs the instance")
    parser.add_argument(
        "-N", dest="nodes", type=_positive, required=True, metavar="COUNT", help="the number of nodes to add"
    )


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}": give a whole number of 1 or more')
    return int(text)


def _explain(parser: Parser) -> None:
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help=f"one of {', '.join(KINDS)}")
    parser.add_argument("name", metavar="NAME", help="a job's id, a node's slot or launch, or a node type")
    parser.add_argument("--at", metavar="TIME", help='explain a past time, such as 2026-11-21T14:00, or "2h" ago')


def _events(parser: Parser) -> None:
    parser.add_argument("--follow", action="store_true", help="also show new events as they happen")


def _report(parser: Parser) -> None:
    parser.add_argument("--since", default="7d", metavar="SPAN", help="how far to look back (default: 7d)")


def _node(parser: Parser) -> None:
    parser.add_argument("node", metavar="NODE", help="the node's slot or launch")


def _order(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="TEXT", help="say why; status, explain and the history show it")
    parser.add_argument(
        "--until", metavar="TIME", help='it ends by itself then: 2026-11-21T14:00, or "8h" from now'
    )


def _hold(parser: Parser) -> None:
    _node(parser)
    _order(parser)


def _retire(parser: Parser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE", help="the node's slot or launch")
    parser.add_argument("--rolling", action="store_true", help="replace in turns, as [Disruption] allows")
    parser.add_argument("--all", action="store_true", help="with --rolling: every node")
    parser.add_argument("--type", metavar="TYPE", help="with --all: only nodes of this type")
    _order(parser)


def _chaos(parser: Parser) -> None:
    from nodemanager.chaos import command

    command.add_options(parser)


def _simulate(parser: Parser) -> None:
    from nodemanager.whatif import command

    parser.add_argument("subject", metavar="WORKLOAD", help="a trace, a history or a model (doc/what-if.md)")
    command.add_options(parser)


def _data_safe(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOBID", help="the job whose data was copied off its nodes")
    parser.add_argument(
        "ranks",
        nargs="?",
        default="",
        metavar="RANKS",
        help='on rank 0: the ranks that are done, such as 1-3, or "all"; default: the rank of this machine, and '
        "on rank 0 all",
    )
    parser.add_argument("--uri", default="", help="the Flux instance (default: the enclosing one)")


def _release_idle(parser: Parser) -> None:
    parser.add_argument(
        "--most", type=_positive, metavar="N", help="give back at most N nodes (default: all idle ones)"
    )
    parser.add_argument("--uri", default="", help="the instance that gives nodes back (default: the enclosing one)")


def _suggest(parser: Parser) -> None:
    from nodemanager.whatif import suggest

    suggest.add_options(parser)


def _ensemble(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="ensemble_verb", required=True, metavar="VERB", title="verbs")
    for name, meaning, add in (
        ("check", "Check an ensemble.yaml and print its faults", _file),
        ("run", "Run an ensemble.yaml", _ensemble_run),
        ("status", "Show groups, counts and rules of an ensemble, or list all", _maybe_ensemble),
        ("stop", "Stop an ensemble; its jobs run on", _one_ensemble),
        ("list", "List the ensembles of the instance", _nothing),
        ("manifests", "Print the Kubernetes objects of an Ensemble resource", _manifests),
        ("serve", "Serve members of other instances by gRPC, in the foreground until SIGTERM or SIGINT", _serve),
    ):
        verb = verbs.add_parser(name, help=meaning, description=f"{meaning}.")
        add(verb)
        if name not in {"check", "manifests"}:
            verb.add_argument("--uri", help="the Flux instance (default: the enclosing one)")
        if name not in {"stop", "serve", "manifests"}:
            _json(verb)


def _file(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="an ensemble.yaml (doc/ensembles.md)")


def _manifests(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="an Ensemble of ensemble.flux-framework.org/v1alpha1")
    parser.add_argument("--namespace", default="default", help="where the objects belong (default: default)")
    parser.add_argument("--image", default="", help="the image of the pods, with flux-node-manager on PATH")
    parser.add_argument("--cores", type=int, default=0, help="the cores of a pod, as flux resource list shows them")
    parser.add_argument("--material", metavar="DIR", help="the folder with the service's token and certificate")


def _ensemble_run(parser: Parser) -> None:
    _file(parser)
    parser.add_argument("--name", help="the ensemble's name (default: the file's, without .yaml)")
    parser.add_argument("--until-done", action="store_true", help="also end when nothing more can happen")

    parser.add_argument("--service", metavar="HOST:PORT", help="the gRPC service that keeps nodes for the run")
    _material(parser)


def _serve(parser: Parser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=GRPC_LISTEN,
        help=f"where to listen (default: {GRPC_LISTEN})",
    )
    parser.add_argument(
        "--miniclusters",
        metavar="NAME,NAME",
        default="",
        help="change the sizes of these MiniClusters, instead of asking an instance's node manager",
    )
    parser.add_argument("--namespace", default="", help="with --miniclusters: theirs (default: that of the access)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="with --miniclusters (default: the pod's account)")
    parser.add_argument(
        "--pods-max",
        type=_positive,
        metavar="N",
        help="with --miniclusters: how many pods they share (default: no limit)",
    )
    _material(parser)


def _material(parser: Parser) -> None:
    parser.add_argument("--material", metavar="DIR", help="the folder with the service's token and certificate")
    parser.add_argument(
        "--plaintext", action="store_true", help="use neither TLS nor token, on the loopback interface only"
    )


def _maybe_ensemble(parser: Parser) -> None:
    parser.add_argument("ensemble", nargs="?", metavar="NAME", help="the ensemble (default: list all)")


def _one_ensemble(parser: Parser) -> None:
    parser.add_argument("ensemble", metavar="NAME", help="the ensemble")


# --- all verbs --------------------------------------------------------------------------------------------

OPTIONS: Mapping[str, VerbOptions] = {
    "run": VerbOptions(),
    "check": VerbOptions("--online", _check, prints_json=True),
    "init": VerbOptions("--output /etc/flux-cloud", _init),
    "start-command": VerbOptions("", _nested),
    "cloud-test": VerbOptions("", _cloud_test),
    "prices": VerbOptions("--table prices.toml --region eu-central-1", _prices),
    "join-service": VerbOptions(),
    "rotate-cert": VerbOptions(),
    "simulate": VerbOptions("poisson:jobs=1000 --sweep idle_timeout=60s..15m", _simulate, prints_json=True),
    "suggest": VerbOptions("--since 30d", _suggest, prints_json=True),
    "chaos": VerbOptions("--seeds 0-99", _chaos, prints_json=True, has_site=False),
    "ensemble": VerbOptions("run ensemble.yaml --until-done", _ensemble, has_site=False),
    "data-safe": VerbOptions("$FLUX_JOB_ID", _data_safe, has_site=False),
    "release-idle": VerbOptions("--most 2", _release_idle, has_site=False),
    "slots": VerbOptions("--slots large=8 gpu=2", _slots),
    "resize": VerbOptions("--slots large=64", _resize),
    "expand": VerbOptions("f23Abc -N 2", _expand),
    "status": VerbOptions("--json", prints_json=True),
    "top": VerbOptions(),
    "nodes": VerbOptions("", prints_json=True),
    "jobs": VerbOptions("", prints_json=True),
    "peers": VerbOptions("", prints_json=True),
    "explain": VerbOptions("node cloud3 --at 2h", _explain, prints_json=True),
    "plan": VerbOptions("", prints_json=True),
    "events": VerbOptions("--follow", _events, prints_json=True),
    "report": VerbOptions("--since 30d", _report, prints_json=True),
    "hold": VerbOptions("cloud3 --until 8h --reason 'its disk is being looked at'", _hold, prints_json=True),
    "release": VerbOptions("cloud3", _node, prints_json=True),
    "retire": VerbOptions("--all --type large --rolling", _retire, prints_json=True),
    "pause": VerbOptions("--until 2h", _order, prints_json=True),
    "resume": VerbOptions("", prints_json=True),
    "reload": VerbOptions("", prints_json=True),
}


def add_verbs(parser: Parser, meanings: Mapping[str, str], given: Sequence[str] | None) -> None:
    """Add a parser for each verb. ``meanings``: one sentence each.

    ``given``: the words of the command line; None for all. The options of a verb that is not among them are left
    out, because those of ``simulate`` and ``chaos`` take long to import.
    """
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    # Without a help text argparse does not list it.
    names = verbs.add_parser(NAMES_VERB)
    names.add_argument("kind", choices=NAMED)
    _config(names)
    for name, meaning in meanings.items():
        options = OPTIONS[name]
        verb = verbs.add_parser(name, help=meaning.rstrip("."), description=meaning, epilog=_example(name, options))
        if options.has_site:
            _config(verb)
        if options.prints_json:
            _json(verb)
        if given is None or name in given:
            options.add(verb)
        verb.set_defaults(usage_error=verb.error)
    parser.set_defaults(verb="run", json=False, usage_error=parser.error)


def _config(parser: Parser) -> None:
    # The top parser takes it too, before the verb. Its value stays if the verb's is not given.
    parser.add_argument("--config", default=argparse.SUPPRESS, metavar="SITE.INI", help="the site file")


def _json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _example(name: str, options: VerbOptions) -> str:
    site = f" {SITE}" if options.has_site else ""
    return f"example:\n  {PROGRAM} {name}{site} {options.example}".rstrip()
