"""Own hosts beside a cloud, live: commands wake them, they join by ticket, and commands put them to sleep."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live import elastic as site
from tests.live import host_command
from tests.live.elastic import NODE_TYPE, Elastic, Offer, an_elastic_site
from tests.paths import ROOT

LONG_S = 120.0
HOSTS = ("host1", "host2", "host3")
COMMAND = f"{sys.executable} {ROOT}/tests/live/host_command.py hosts {{{{node}}}}"
OWN = (
    f"\n[Cloud own]\nprovider = static\npriority = 1\n"
    f"wake = {COMMAND} wake\nsleep = {COMMAND} sleep\nprobe = {COMMAND} probe\n"
).replace("{{node}}", "{node}")
# They are used first although they are dearer.
NODES = NODE_TYPE.format(name="own", cores=2, gpus=0, price="0.4", slots="own[1-2]", billing="per-second").replace(
    "cores =", "cloud = own\nhosts = host[1-3]\ncores ="
)
# Hosts of one machine have no folder and no hosts file of their own unless they lie in their home.
HERE = 'node_dir = join\nhosts_file = hosts\nsystemd = no\npoweroff = kill -KILL "$FLUX_NODE_JOIN_PARENT"\n'


@contextmanager
def a_site_with_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elastic]:
    monkeypatch.setattr(site, "JOIN", site.JOIN + HERE)
    monkeypatch.setattr(site, "SITE", site.SITE.replace("boot_timeout = 30s", "boot_timeout = 4m"))
    offers = [Offer("cpu", price="0.1", slots="cpu[1-2]")]
    with an_elastic_site(offers, policy=OWN + NODES, by_tickets=True) as elastic:
        try:
            yield elastic
        finally:
            for home in (elastic.site.path.parent / "hosts").glob("*/"):
                host_command.cut_power(home)
                print(f"--- {home.name}", (home / "console.log").read_text(encoding="utf-8"))


def test_hosts_are_woken_first_join_by_ticket_and_go_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_site_with_hosts(monkeypatch) as elastic:
        homes = elastic.site.path.parent / "hosts"

        def awake() -> list[str]:
            return [name for name in HOSTS if host_command.init_of(homes / name) is not None]

        elastic.start_join_service()
        manager = elastic.start_manager()
        manager.until_said("started")
        first = elastic.submit("sleep", "1")
        elastic.eventually("a host served", lambda: elastic.result(first) == "COMPLETED", LONG_S)
        assert elastic.jobs()[first].slots == ("own1",)
        elastic.eventually("it went to sleep", lambda: not elastic.what_is_left() and not awake(), LONG_S)

        # Three nodes are more than there are slots of hosts: the cloud serves the rest.
        three = elastic.submit("sleep", "2", nodes=3)
        elastic.eventually("both served", lambda: elastic.result(three) == "COMPLETED", LONG_S)
        assert sorted(elastic.jobs()[three].slots) == ["cpu1", "own1", "own2"]
        elastic.eventually("all is gone", lambda: not elastic.what_is_left() and not awake(), LONG_S)

        # A host dies under a job, and is found dead by its probe. The manager itself was killed before.
        long = elastic.submit("sleep", "600")
        elastic.eventually("a job runs", lambda: elastic.jobs()[long].began_at, LONG_S)
        manager.kill()
        (victim,) = awake()
        host_command.cut_power(homes / victim)
        elastic.start_manager().until_said("started")
        elastic.flux("cancel", str(long), check=False)
        elastic.eventually("nothing is left", lambda: not elastic.what_is_left() and not awake(), LONG_S)
        assert elastic.launches() == ()
        status = json.loads(elastic.verb("status", "--json"))
        assert not status["sources"]["cloud own"]["stale"]


def test_a_host_that_cannot_be_woken_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_site_with_hosts(monkeypatch) as elastic:
        homes = elastic.site.path.parent / "hosts"
        homes.mkdir()
        (homes / "host1").write_text("no folder can be made here", encoding="ascii")
        elastic.start_join_service()
        elastic.start_manager().until_said("started")
        job = elastic.submit("sleep", "1", requires={"properties": ["own"]})
        elastic.eventually("another host served", lambda: elastic.result(job) == "COMPLETED", LONG_S)
        assert (homes / "host2" / "console.log").exists()
        (log,) = elastic.site.path.parent.glob("manager-*.log")
        assert "wake of host1: exit status 1" in log.read_text(encoding="utf-8")
        elastic.eventually("it went to sleep", lambda: not elastic.what_is_left(), LONG_S)
