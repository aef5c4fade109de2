"""What changes the fingerprint of a node type, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.core.upkeep.rules import changed_parts
from tests.config.test_site import site_of


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        (("Cloud", "image", "img-2"), ("image",)),
        (("Node cpu", "image", "img-2"), ("image",)),
        (("Node cpu", "size", "c5.large"), ("size",)),
        (("Node cpu", "network", "net-2"), ("network",)),
        (("Cloud", "key_name", "admin"), ("network",)),
        (("Flux", "port", "8051"), ("user-data",)),
        (("Join", "flux", "/opt/flux/bin/flux"), ("user-data",)),
        (("Node cpu", "price_per_hour", "9"), ()),
        (("Node cpu", "zones", "eu-a"), ()),  # the lease says the zone
        (("Join", "requests_burst", "5"), ()),
        (("Limits", "nodes_max", "9"), ()),
    ],
)
def test_only_what_a_node_is_made_from_changes_its_fingerprint(
    tmp_path: Path, key: tuple[str, str, str], changed: tuple[str, ...]
) -> None:
    before, after = (site_of(tmp_path, *keys).node_types[0].made_from for keys in ((), (key,)))
    assert changed_parts(before, after) == changed
