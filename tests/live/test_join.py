"""Nodes join a real Flux by their tickets, each by its own user-data; the test says who holds a slot."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemanager.cli import main
from nodemanager.core.nodes import LaunchId
from nodemanager.join.key_material import MaterialPaths
from nodemanager.join.tickets import read_site_key
from tests.live.instance import SLOT_NAME, why_no_flux
from tests.live.joining import Yard

YardOf = Callable[..., Yard]


@pytest.fixture
def yard_of() -> Iterator[YardOf]:
    """Yards to be made, and surely reaped."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    made: list[Yard] = []
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:

        def make(**settings: str) -> Yard:
            made.append(Yard(Path(directory), **settings))
            return made[-1]

        try:
            yield make
        finally:
            for yard in made:
                yard.reap()


def test_a_node_joins_by_its_ticket_and_runs_a_job(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud2-1", "cloud2")
    node = yard.node(launch).boot()
    yard.eventually("it is online", lambda: "cloud2" in yard.online())
    assert yard.flux("run", "-N1", *SLOT_NAME) == "cloud2"
    yard.eventually("it says so", lambda: yard.reported(launch, "started"))
    assert node.lives


def test_nodes_join_in_any_order_rank_0_last(yard_of: YardOf) -> None:
    """A node may boot before the service, before the roster names it, and before its leader."""
    yard = yard_of()
    early, late = yard.node(LaunchId("cloud1-1")).boot(), yard.node(LaunchId("cloud3-1"))
    yard.eventually("it looks for the service", lambda: "flux-node-join" in early.said())
    yard.start_service()
    late.boot()
    yard.eventually("it is not known yet", lambda: "not_current" in late.said())
    yard.launch("cloud3-1", "cloud3")
    yard.launch("cloud1-1", "cloud1")
    yard.eventually("brokers wait for rank 0", lambda: early.broker() and late.broker())
    yard.start_head()
    yard.eventually("both are online", lambda: yard.online() == {"cloud1", "cloud3"}, within_s=60)


def test_rank_0_goes_away_while_a_node_boots_and_the_node_joins_when_it_is_back(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    yard.kill_head()
    node = yard.node(yard.launch("cloud1-1", "cloud1")).boot()
    yard.eventually("its broker waits", node.broker)
    yard.start_head()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"}, within_s=60)


def test_a_node_comes_back_after_rank_0_was_restarted(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    yard.node(launch).boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    yard.stop_head()
    yard.eventually("its broker ended", lambda: yard.reported(launch, "ended"))
    yard.start_head()
    yard.eventually("it is online again", lambda: yard.online() == {"cloud1"}, within_s=60)


def test_of_two_nodes_with_one_ticket_one_joins_and_no_job_dies(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    first = yard.node(launch).boot()
    yard.eventually("the first is online", lambda: yard.online() == {"cloud1"})
    job = yard.flux("submit", "-N1", "sleep", "600")
    yard.eventually("a job runs there", lambda: yard.job_state(job) == "R")
    second = yard.node(launch).boot()
    yard.eventually("the second is refused", lambda: "refuses the ticket: used" in second.said())
    yard.eventually("it is an alarm", lambda: yard.reported(launch, "replayed"))
    assert second.broker() is None
    assert first.broker() is not None
    assert yard.job_state(job) == "R"


def test_a_copy_of_a_nodes_disk_puts_nobody_out_and_is_an_alarm(yard_of: YardOf) -> None:
    """Here both are on one machine, so that the copy cannot tell what it is: the service can."""
    yard = yard_of(renew="2s")
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    true_node = yard.node(launch).boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    job = yard.flux("submit", "-N1", "sleep", "600")
    yard.eventually("a job runs there", lambda: yard.job_state(job) == "R")
    copy = yard.node(launch)
    shutil.copytree(true_node.folder / "join", copy.folder / "join")
    copy.boot()
    yard.eventually("it is told to wait", lambda: copy.said().count("in_use") >= 2)
    yard.eventually("it is an alarm", lambda: yard.reported(launch, "replayed"))
    assert "two processes at once" in yard.reported(launch, "replayed")[0]
    assert copy.broker() is None
    assert yard.job_state(job) == "R"
    true_node.kill()
    yard.eventually("it gets in once the other is gone", copy.broker)


def test_two_nodes_that_show_one_ticket_at_once_are_one_node(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    nodes = [yard.node(launch).boot() for _ in range(3)]
    yard.eventually("two are refused", lambda: sum("ticket: used" in node.said() for node in nodes) == 2)
    yard.eventually("one joins", lambda: yard.online() == {"cloud1"})
    assert sum(node.broker() is not None for node in nodes) == 1


def test_a_replaced_node_that_comes_back_takes_nobodys_place(yard_of: YardOf) -> None:
    """Cut off, given up, its slot leased again: when it is back it starts no broker, and ends."""
    yard = yard_of(orphan_grace="2s")
    yard.start_head()
    yard.start_service()
    old = yard.node(yard.launch("cloud1-1", "cloud1")).boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    broker = old.broker()
    assert broker is not None
    broker.suspend()  # as a machine whose network is gone
    yard.end_lease("cloud1-1")
    yard.eventually("it hears of it", lambda: "not_current" in old.said())
    new = yard.node(yard.launch("cloud1-2", "cloud1")).boot()
    yard.eventually("the new one has its place", lambda: "cloud1" in yard.online() and new.broker())
    job = yard.flux("submit", "-N1", "sleep", "600")
    yard.eventually("a job runs there", lambda: yard.job_state(job) == "R")
    broker.resume()
    yard.eventually("the old one ends", lambda: old.broker() is None)
    yard.eventually("and all of it", lambda: not old.lives)
    assert yard.job_state(job) == "R"


@pytest.mark.parametrize(
    ("how", "refusal"),
    [("wrong", "wrong"), ("expired", "expired"), ("of another launch", "wrong")],
)
def test_what_is_no_good_ticket_never_lets_in(yard_of: YardOf, how: str, refusal: str) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1", redeemable_until_at=0.0 if how == "expired" else time.time() + 600)
    other = LaunchId("cloud1-2")
    node = {
        "wrong": lambda: yard.node(launch, TICKET="0" * 64),
        "expired": lambda: yard.node(launch),
        "of another launch": lambda: yard.node(other, LAUNCH=launch),
    }[how]().boot()
    yard.eventually("it is refused", lambda: f"refuses the ticket: {refusal}" in node.said())
    assert node.broker() is None
    assert not (node.folder / "join" / "curve.cert").exists()
    assert yard.online() == set()


def test_a_ticket_of_an_ended_launch_lets_nobody_in(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    node = yard.node(launch)
    yard.end_lease(launch)
    node.boot()
    yard.eventually("it is told to wait", lambda: node.said().count("not_current") >= 2)
    assert node.broker() is None


def test_another_certificate_is_told_nothing(yard_of: YardOf) -> None:
    """Whoever stands in for the service is not shown the ticket, and gives no program to run."""
    yard = yard_of()
    yard.start_service()
    node = yard.node(yard.launch("cloud1-1", "cloud1"), FINGERPRINT="0" * 64).boot()
    yard.eventually("it stops at the certificate", lambda: "another certificate" in node.said())
    assert not (node.folder / "join" / "flux-node-join").exists()
    assert yard.reports() == []


def test_another_version_of_flux_is_said_in_plain_words(yard_of: YardOf) -> None:
    yard = yard_of(join="flux_version = 0.99.0")
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    node = yard.node(launch).boot()
    yard.eventually("it says so", lambda: yard.reported(launch, "failed"))
    (said,) = yard.reported(launch, "failed")
    assert "this node's image has flux-core 0.88.0, rank 0 runs 0.99.0" in said
    assert "build the image with flux-core 0.99.0" in said
    assert node.broker() is None


def test_a_lost_reply_and_a_killed_client_harm_nobody(yard_of: YardOf) -> None:
    """The ticket was taken and the answer never came: the same nonce gets it, and no alarm is raised."""
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    launch = yard.launch("cloud1-1", "cloud1")
    node = yard.node(launch)
    (node.folder / "join").mkdir()
    nonce = "ab" * 32
    (node.folder / "join" / "state.json").write_text(
        json.dumps({"launch": launch, "nonce": nonce, "lease_key": ""}), encoding="utf-8"
    )
    ticket = read_site_key(MaterialPaths(yard.site.join.material_dir).site_key).ticket(launch)
    first = yard.post("redeem", {"launch": launch, "ticket": ticket, "nonce": nonce})
    node.boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    kept = json.loads((node.folder / "join" / "state.json").read_text())
    assert kept["lease_key"] == first["lease_key"]
    assert yard.reported(launch, "replayed") == []


def test_a_node_that_lost_its_power_joins_again_with_what_it_kept(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    node = yard.node(yard.launch("cloud1-1", "cloud1")).boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    yard.change("cloud1-1", redeemable_until_at=0.0, online=True)
    node.kill()
    yard.eventually("it is offline", lambda: yard.online() == set())
    node.boot()
    yard.eventually("it is online again", lambda: yard.online() == {"cloud1"})
    assert yard.reported("cloud1-1", "replayed") == []


def test_the_hosts_file_follows_joins_and_leaves(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_service()
    node = yard.node(yard.launch("cloud1-1", "cloud1", addresses=("8.8.8.8", "10.0.0.1")))
    (node.folder / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")
    node.boot()
    own = {"localhost": "127.0.0.1", "head": "127.0.0.1", "cloud1": "10.0.0.1"}
    yard.eventually("it knows itself", lambda: node.hosts() == own)
    yard.launch("cloud2-1", "cloud2", addresses=("10.0.0.2",))
    yard.eventually("it knows who came", lambda: node.hosts() == own | {"cloud2": "10.0.0.2"})
    yard.end_lease("cloud2-1")
    yard.eventually("and who left", lambda: node.hosts() == own)
    assert node.process is not None
    client = next(process for process in node.processes() if "python" in process.name())
    client.terminate()
    yard.eventually("its own lines go with it", lambda: node.hosts() == {"localhost": "127.0.0.1"})


def test_a_changed_certificate_reaches_every_node_with_the_restart_of_rank_0(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_head()
    yard.start_service()
    node = yard.node(yard.launch("cloud1-1", "cloud1")).boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    yard.change("cloud1-1", online=True)
    before = (node.folder / "join" / "curve.cert").read_text()
    assert main.main(["rotate-cert", "--config", str(yard.site_file)]) == 0
    new = yard.node(yard.launch("cloud2-1", "cloud2")).boot()
    yard.eventually("a new node has the new one", new.broker)
    assert yard.online() == {"cloud1"}, "it is let in only after the restart"
    yard.stop_head()
    yard.change("cloud1-1", online=False)
    yard.start_head()
    yard.eventually("both are online", lambda: yard.online() == {"cloud1", "cloud2"}, within_s=60)
    assert (node.folder / "join" / "curve.cert").read_text() != before


def test_a_broker_that_waits_with_a_former_certificate_is_started_anew(yard_of: YardOf) -> None:
    yard = yard_of()
    yard.start_service()
    node = yard.node(yard.launch("cloud1-1", "cloud1")).boot()
    yard.eventually("it waits for rank 0", node.broker)
    assert main.main(["rotate-cert", "--config", str(yard.site_file)]) == 0
    yard.start_head()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"}, within_s=60)


def test_a_node_whose_manager_and_rank_0_are_dead_ends_itself_once_no_job_runs(yard_of: YardOf) -> None:
    yard = yard_of(silence_max="3s")
    yard.start_head()
    yard.start_service()
    busy = yard.node(yard.launch("cloud1-1", "cloud1"), POWEROFF="touch powered-off", SHELL_EMPTY_MAX_S="3").boot()
    idle = yard.node(yard.launch("cloud2-1", "cloud2"), POWEROFF="touch powered-off").boot()
    yard.eventually("both are online", lambda: yard.online() == {"cloud1", "cloud2"})
    job = yard.flux(
        "submit", "-N1", "--requires=host:cloud1", "sh", "-c", f"until [ -e {yard.folder}/end ]; do sleep 0.1; done"
    )
    yard.eventually("a job runs on one", lambda: yard.job_state(job) == "R")

    yard.kill_head()
    yard.fall_silent()

    yard.eventually("the idle one ends", (idle.folder / "powered-off").exists, within_s=60)
    assert idle.broker() is None
    assert busy.lives
    assert not (busy.folder / "powered-off").exists()
    (yard.folder / "end").touch()
    yard.eventually("the other when its job is done", (busy.folder / "powered-off").exists, within_s=60)


def test_a_node_that_only_its_manager_left_is_drained_before_it_ends(yard_of: YardOf) -> None:
    """Rank 0 lives, and might give it a job at the last moment."""
    yard = yard_of(silence_max="3s")
    yard.start_head()
    service = yard.start_service()
    node = yard.node(yard.launch("cloud1-1", "cloud1")).boot()
    yard.eventually("it is online", lambda: yard.online() == {"cloud1"})
    service.kill()
    yard.fall_silent()
    yard.eventually("its machine is off", lambda: not node.lives, within_s=60)
    assert "flux-node-manager:cloud1-1" in yard.flux("resource", "drain")


def test_a_node_that_nobody_lets_in_ends_itself(yard_of: YardOf) -> None:
    yard = yard_of(silence_max="2s")
    node = yard.node(LaunchId("cloud1-1"), POWEROFF="touch powered-off").boot()
    yard.eventually("it is off", (node.folder / "powered-off").exists)
