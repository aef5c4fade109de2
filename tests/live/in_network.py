"""The service, whose local nodes enter a network of the test.

``python -m tests.live.in_network --config site.ini PREFIX 4|6``
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nodemanager.config.load import load_site
from nodemanager.service import logs, service
from nodemanager.service.assembly.cluster import with_cluster_uuid
from nodemanager.service.assembly.ports import make_ports
from nodemanager.service.outputs import Outputs
from tests.live.networks import Network, let_nodes_enter


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("prefix")
    parser.add_argument("version", type=int)
    chosen = parser.parse_args()
    let_nodes_enter(Network(chosen.prefix, chosen.version))
    logs.configure()
    site = with_cluster_uuid(load_site(chosen.config))
    return service.serve(site, make_ports(site), Outputs(site))


if __name__ == "__main__":
    sys.exit(main())
