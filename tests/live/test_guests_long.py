"""Two guests and the owner at work, while managers are killed and one guest makes Flux drain node after node.

It runs for ``FNM_GUESTS_S`` seconds (default 45), with the seed ``FNM_GUESTS_SEED``. ``pytest -s`` shows figures.
"""

from __future__ import annotations

import json
import os
import pwd
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

import pytest

from nodemanager.core.drains import is_drain_by_flux
from tests.live.multi_user import OWNER, MultiUserSite, guests, site

__all__ = ["guests", "site"]  # the fixtures

LENGTH_S = float(os.environ.get("FNM_GUESTS_S", "45"))
SEED = int(os.environ.get("FNM_GUESTS_SEED", "1"))
PRICE_PER_HOUR = {"cloud1": 0.1, "other1": 0.2}
JOBS_MAX = 2  # of each user at a time


@dataclass
class Run:
    """What happened."""

    good: dict[str, list[str]] = field(default_factory=dict)  # the jobs of each user
    bad: list[str] = field(default_factory=list)
    without_manager: list[tuple[float, float]] = field(default_factory=list)

    def absent_s(self, from_at: float, to_at: float) -> float:
        """For how long there was no manager in a span."""
        return sum(max(0.0, min(to_at, end) - max(from_at, begin)) for begin, end in self.without_manager)


@pytest.mark.timeout(LENGTH_S + 300)
@pytest.mark.parametrize("site", [{"by_tickets": False}], indirect=True)
def test_nobody_pays_for_unusable_nodes_and_nobody_stops_another(
    site: MultiUserSite, guests: dict[str, int]
) -> None:
    (drainer, other) = guests
    run = play(site, drainer, (OWNER, other, drainer))
    for job in active(site, drainer):
        site.flux(OWNER, "cancel", job, check=False)  # the breaker may put them off for long
    for user in (OWNER, other):
        site.eventually(f"the jobs of {user} have run", lambda user=user: not active(site, user))
    site.eventually("all nodes leave", lambda: site.online() == [])

    for user in (OWNER, other):
        ran = {job: site.flux(OWNER, "jobs", "-ano", "{result}", job) for job in run.good[user]}
        assert set(ran.values()) == {"COMPLETED"}, ran
        uid = str(pwd.getpwnam(user).pw_uid)
        assert f"{uid}\\n" in site.flux(user, "job", "eventlog", "-p", "output", run.good[user][0])
    lives = list(unusable(site, run))
    report(site, run, lives)
    assert all(ended for _, _, ended in lives), "a node that Flux had drained never left"


def play(site: MultiUserSite, drainer: str, users: tuple[str, ...]) -> Run:
    rng, run, end_s = random.Random(SEED), Run({user: [] for user in users}), time.monotonic() + LENGTH_S
    while time.monotonic() < end_s:
        for user in users:
            if len(active(site, user)) < JOBS_MAX and rng.random() < 0.6:
                command = f"id -u; sleep {rng.uniform(0, 2):.1f}"
                run.good[user].append(site.flux(user, "submit", "-N1", "-t", "1m", "sh", "-c", command))
        if len(active(site, drainer)) < JOBS_MAX and rng.random() < 0.5:
            early_end = f"--setopt=initrc={site.folder}/initrc.lua"
            run.bad.append(site.flux(drainer, "submit", "-N2", "-t", "1m", early_end, "true"))
        if rng.random() < 0.15:
            site.manager.process.send_signal(signal.SIGKILL)
            site.manager.process.wait(10)
            killed_at = time.time()
            site.start_manager()
            run.without_manager.append((killed_at, time.time()))
    return run


def active(site: MultiUserSite, user: str) -> list[str]:
    return site.flux(OWNER, "jobs", "-no", "{id}", f"--user={user}").split()


def unusable(site: MultiUserSite, run: Run) -> Iterator[tuple[str, float, bool]]:
    """Each node that Flux drained: its slot, for how long it was paid since, and whether it ended."""
    ends = sorted(
        (datetime.fromisoformat(line["timestamp"]).timestamp(), str(line["node"]).rpartition("-")[0])
        for manager in site.managers
        for line in manager.said("node", now="gone")
    )
    events = [
        json.loads(line) for line in site.flux(OWNER, "kvs", "get", "--raw", "resource.eventlog").splitlines()
    ]
    ended_at: dict[str, float] = {}
    for event in events:
        context = event.get("context", {})
        if event["name"] != "drain" or not is_drain_by_flux(str(context.get("reason"))):
            continue
        for slot in PRICE_PER_HOUR:
            if slot not in str(context.get("nodelist")) or event["timestamp"] < ended_at.get(slot, 0.0):
                continue
            end = next((at for at, name in ends if name == slot and at > event["timestamp"]), None)
            ended_at[slot] = end or float("inf")
            paid_s = (end or time.time()) - event["timestamp"]
            yield slot, paid_s - run.absent_s(event["timestamp"], end or time.time()), end is not None


def report(site: MultiUserSite, run: Run, lives: list[tuple[str, float, bool]]) -> None:
    print(f"\n{LENGTH_S:g} s, seed {SEED}: {len(run.without_manager)} managers killed, {len(run.bad)} bad jobs")
    for user, jobs in run.good.items():
        seen = [
            site.flux(OWNER, "jobs", "-ano", "{t_submit:.2f} {t_run:.2f} {result}", job).split() for job in jobs
        ]
        waits = [float(began) - float(submitted) for submitted, began, *_ in seen if float(began)]
        ran = sum(it[-1] == "COMPLETED" for it in seen)
        wait = f"median {median(waits):.1f} s, longest {max(waits):.1f} s" if waits else "none"
        print(f"{user}: {ran} of {len(jobs)} jobs ran as uid {pwd.getpwnam(user).pw_uid}; waits: {wait}")
    paid = sum(PRICE_PER_HOUR[slot] * paid_s / 3600 for slot, paid_s, _ in lives)
    longest = max((paid_s for _, paid_s, _ in lives), default=0.0)
    print(
        f"{len(lives)} nodes drained by Flux; paid since, without the time that no manager ran: {paid:.5f},"
        f" the longest {longest:.1f} s (foreign_drain_after is 1 s)"
    )
