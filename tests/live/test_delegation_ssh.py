"""A peer that is reached over ssh: by a stand-in that runs the command on this machine, and by a real sshd."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.delegating import Delegating, delegating
from tests.live.instance import eventually
from tests.live.sshd import an_sshd


@pytest.fixture(params=["stand-in", "sshd"])
def site(request: pytest.FixtureRequest) -> Iterator[Delegating]:
    if request.param == "stand-in":
        with delegating(scheme="ssh://localhost") as running:
            yield running
        return
    with (
        tempfile.TemporaryDirectory(prefix="fnm-ssh-") as folder,
        an_sshd(Path(folder)) as (port, script),
        delegating(scheme=f"ssh://localhost:{port}", ssh=script) as running,
    ):
        yield running


def test_a_job_survives_that_the_connection_is_cut(site: Delegating) -> None:
    job = site.submit(*site.counting("job", "echo said; sleep 5; exit 7"))
    site.until(job, "R")
    relays = [
        process
        for process in psutil.Process(site.manager.process.pid).children(recursive=True)
        if "relay" in " ".join(process.cmdline())
    ]
    assert relays
    for relay in relays:
        relay.kill()
    site.manager.until_said("peer_lost", peer="b")
    eventually("it is connected again", lambda: len(site.manager.said("peer_connected", peer="b")) == 2)
    assert site.ends(job) == ("F", "7")
    assert site.runs("job") == 1
    assert site.output(job).count("said") == 1
