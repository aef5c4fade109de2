"""The verbs of joining: ``join-service`` and ``rotate-cert``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from nodemanager.cli.parsing.exit_status import EXIT_CONFIG, EXIT_FAILED, EXIT_OK
from nodemanager.cli.parsing.verb import Verb

if TYPE_CHECKING:
    from nodemanager.config.site import Site

ROTATED_TEXT = """\
Replaced: {certificate}. Running brokers keep the old certificate until they end.
Now restart rank 0 at a time when running jobs may end. A clean shutdown keeps the queue.
Nodes that joined through the join service fetch the new certificate before they restart their brokers. A node that
boots before rank 0 is back waits, and then joins by itself."""


def join_service(site: Site, chosen: argparse.Namespace) -> int:
    """Run the join service, which admits nodes by their tickets, until SIGTERM or SIGINT."""
    import asyncio

    from nodemanager.join import server
    from nodemanager.service import logs

    del chosen
    logs.configure()
    try:
        asyncio.run(server.serve(site))
    except server.ServiceNotReady as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    return EXIT_OK


def rotate_cert(site: Site, chosen: argparse.Namespace) -> int:
    """Replace the certificate that the brokers share. Restart rank 0 for it to take effect."""
    from nodemanager.join.key_material import MaterialError, rotate_curve_certificate

    del chosen
    try:
        rotate_curve_certificate(site)
    except MaterialError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(ROTATED_TEXT.format(certificate=site.flux.bootstrap_dir / "curve.cert"))
    return EXIT_OK


# Neither has the cloud's credentials: the join service, which nodes reach, must not.
JOIN_SERVICE = Verb(name="join-service", act=join_service, with_credentials=False, is_service=True)
ROTATE_CERT = Verb(name="rotate-cert", act=rotate_cert, with_credentials=False)
