"""The verb ``ensemble``: its own verbs and their options."""

from __future__ import annotations

import argparse

from nodemanager.cli.parsing.parser import Parser
from nodemanager.cli.parsing.verb import Verb, add_json, positive

GRPC_LISTEN = "127.0.0.1:50051"


def ensemble(chosen: argparse.Namespace) -> int:
    """Run jobs by the rules of an ensemble.yaml, on any Flux instance of your own."""
    from nodemanager.cli.ensemble import command

    return command.ensemble(chosen)


def _ensemble(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="ensemble_verb", required=True, metavar="VERB", title="verbs")
    for name, meaning, add in (
        ("check", "Check an ensemble.yaml and print its faults", _file),
        ("run", "Run an ensemble.yaml", _ensemble_run),
        ("status", "Show groups, counts and rules of an ensemble, or list all", _maybe_ensemble),
        ("stop", "Stop an ensemble; its jobs run on", _one_ensemble),
        ("list", "List the ensembles of the instance", _no_options),
        ("manifests", "Print the Kubernetes objects of an Ensemble resource", _manifests),
        ("serve", "Serve members of other instances by gRPC, in the foreground until SIGTERM or SIGINT", _serve),
    ):
        verb = verbs.add_parser(name, help=meaning, description=f"{meaning}.")
        add(verb)
        if name not in {"check", "manifests"}:
            verb.add_argument("--uri", help="the Flux instance (default: the enclosing one)")
        if name not in {"stop", "serve", "manifests"}:
            add_json(verb)


def _no_options(parser: Parser) -> None:
    del parser


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
        type=positive,
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


ENSEMBLE = Verb(
    name="ensemble",
    act=ensemble,
    add_options=_ensemble,
    example="run ensemble.yaml --until-done",
    has_site=False,
)
