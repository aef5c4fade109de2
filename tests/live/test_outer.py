"""A node that is a job of an outer Flux instance: what others on its machine see of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nodemanager.core.nodes import CloudState
from nodemanager.flux.setup.outer import OuterFlux
from nodemanager.service.assembly.ports import SystemClock
from tests.contract.cloud_subjects import CLUSTER, CLUSTER_UUID, a_launch, a_type
from tests.live.instance import LiveInstance, eventually, why_no_flux

SECRET = "a-ticket-that-nobody-is-to-see"


@pytest.fixture
def outer() -> Iterator[LiveInstance]:
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        instance = LiveInstance(Path(folder), slots=1)
        try:
            instance.start_head()
            instance.start_slot(1)
            yield instance
        finally:
            instance.reap()


def test_what_a_node_is_told_stands_in_no_processs_arguments(outer: LiveInstance) -> None:
    """A ticket is in it; a machine's other users see arguments, and neither its files nor its environment."""
    told = outer.directory / "told"
    script = f"TICKET='{SECRET}'\nls -l \"$0\" > {told}.new\nmv {told}.new {told}\nsleep 3600\n: $TICKET\n"
    port = OuterFlux(outer.uri, CLUSTER, CLUSTER_UUID, lambda *_: script, SystemClock())
    launch = a_launch("l1")
    made = port.create(launch, a_type(launch.type_name))
    eventually("it runs", told.exists)
    (node,) = port.list_nodes()
    assert (node.provider_id, node.state, node.identity) == (made.provider_id, CloudState.RUNNING, made.identity)
    assert told.read_text().startswith("-rw------- ")
    arguments = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any("user-data" in line for line in arguments)
    assert not any(SECRET in line for line in arguments)
    port.destroy(made.provider_id)
    eventually("it has ended", lambda: port.list_nodes()[0].state is CloudState.TERMINATED)
