"""A peer that is reached over ssh, by a stand-in for ssh that runs the command on this machine."""

from __future__ import annotations

import psutil

from tests.live.delegating import delegating
from tests.live.instance import eventually


def test_a_job_survives_that_the_connection_is_cut() -> None:
    with delegating(scheme="ssh://localhost") as site:
        job = site.submit(*site.counting("job", "sleep 5; exit 7"))
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
