"""The script of a seed: the site, the jobs and the faults, as a list of numbered acts.

An act contains everything it needs and draws nothing during the run. So acts can be left out without changing the
others, which is how a failing run is made shorter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from random import Random
from types import MappingProxyType
from typing import Any, TypeVar

from nodemanager.core.slots import CloudName

FAULTS_S = 160.0  # the length of the phase with faults
JOBS_EVERY_S = 40.0
JOBS_AT_ONCE = (1, 1, 2, 4)
JOB_S = (1.0, 40.0)

# The clouds of a run with two: all types are in the one that has the faults, and two also in the sound one.
FAILING, SOUND = CloudName("failing"), CloudName("sound")
JOB = "job"
UPKEEP = "upkeep"  # an area of faults
NEAR, NEAR_SHARE = "near", 0.5  # of the seeds with two clouds
# Of the seeds, those whose provider lists new nodes minutes late, and by how much at most, in seconds.
LATE, LATE_SHARE, LATE_S = "late", 0.15, (60.0, 240.0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Act:
    """One job or fault. ``amount``, from 0 to 1, depends on the kind: it is a probability or selects something."""

    number: int
    at_s: float
    kind: str
    amount: float
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} at {self.at_s:.1f} s, {self.amount:.2f}, for {self.lasts_s:.1f} s"


def pick(things: Sequence[T], amount: float) -> T | None:
    """Pick one of ``things`` by an act's amount; None if there are none."""
    return things[min(int(amount * len(things)), len(things) - 1)] if things else None


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault: the mean time between two of them, and how long one lasts."""

    every_s: float
    lasts_s: tuple[float, float] = (0.0, 0.0)


# A seed has only a part of all faults, because some faults hide the effect of others.
AREA_SHARE = 0.7  # of the areas that have faults: "cloud", "manager" and so on
FAULT_SHARE = 0.5  # of the faults of an area
JOIN_KNOB_SHARE = 0.8

# Faults that last for the whole phase, with the highest probability of each. The amount is the share of it.
KNOBS: Mapping[str, float] = MappingProxyType(
    {
        "cloud.lost_reply": 0.3,
        "cloud.refused_unclearly": 0.2,
        "cloud.transient": 0.3,
        "cloud.throttle": 0.2,
        "cloud.no_tokens": 1.0,
        "cloud.empty_list": 0.05,
        "cloud.truncated_list": 0.05,
        "cloud.stale_list": 0.2,
        "cloud.shuffled_list": 0.5,
        "cloud.late_list": 20.0,  # seconds
        "cloud.capacity": 0.3,
        "cloud.destroy_ignored": 0.2,
        "boot.dead": 0.3,
        "boot.error": 0.3,
        "boot.hangs": 0.2,
        "boot.slow": 0.3,
        "boot.loops": 0.2,
        "boot.wrong_slot": 0.2,
        "flux.fails": 0.1,
        "flux.lost_reply": 0.1,
        "flux.half_changed": 0.5,
    }
)

KINDS: Mapping[str, FaultKind] = MappingProxyType(
    {
        "cloud.outage": FaultKind(210.0, (5.0, 150.0)),
        "cloud.credentials": FaultKind(280.0, (5.0, 100.0)),
        "cloud.quota": FaultKind(210.0, (20.0, 120.0)),
        "cloud.stockout": FaultKind(140.0, (20.0, 120.0)),
        "cloud.slow_end": FaultKind(210.0, (30.0, 100.0)),
        "cloud.stranger": FaultKind(140.0),
        "cloud.impostor": FaultKind(140.0),
        "cloud.forgotten": FaultKind(100.0),
        "node.vanishes": FaultKind(70.0),
        "node.broker_dies": FaultKind(100.0),
        "node.cut": FaultKind(70.0, (0.5, 60.0)),
        "node.hangs": FaultKind(140.0, (5.0, 100.0)),
        "node.torpid": FaultKind(140.0, (5.0, 100.0)),
        "node.housekeeping": FaultKind(170.0, (5.0, 40.0)),
        "node.housekeeping_hangs": FaultKind(170.0, (60.0, 150.0)),
        "flux.restart": FaultKind(140.0, (1.0, 30.0)),
        "flux.cut": FaultKind(100.0, (1.0, 100.0)),
        "flux.journal_lost": FaultKind(100.0),
        "flux.scheduler_reloaded": FaultKind(140.0, (0.5, 20.0)),
        "flux.wish": FaultKind(80.0),
        "flux.resized": FaultKind(350.0, (1.0, 15.0)),
        "manager.killed": FaultKind(60.0, (0.1, 40.0)),
        "manager.killed_at_a_call": FaultKind(40.0, (0.1, 40.0)),
        "manager.another": FaultKind(170.0, (5.0, 60.0)),
        "manager.frozen": FaultKind(140.0, (1.0, 120.0)),
        "manager.clock_jumps": FaultKind(100.0),
        "journal.full": FaultKind(170.0, (5.0, 100.0)),
        "journal.corrupt": FaultKind(170.0, (0.1, 20.0)),
        "journal.deleted": FaultKind(170.0, (0.1, 20.0)),
        "user.cancels": FaultKind(100.0),
        "user.holds_a_job": FaultKind(140.0),
        "operator.drains": FaultKind(140.0, (5.0, 100.0)),
        "operator.holds": FaultKind(170.0, (5.0, 100.0)),
        "operator.retires": FaultKind(170.0),
        "operator.pauses": FaultKind(210.0, (5.0, 60.0)),
        "operator.stops_the_queue": FaultKind(210.0, (5.0, 60.0)),
        "upkeep.new_image": FaultKind(100.0),
        "upkeep.ages": FaultKind(140.0, (20.0, 100.0)),
        "upkeep.operator_replaces": FaultKind(140.0),
    }
)

# Jobs and faults of runs with peers, that is, other instances in which jobs of this one may run. The mean time
# between two jobs for a peer is that of their kind.
PEER_JOB = "peer.job"
PEER_KNOBS: Mapping[str, float] = MappingProxyType(
    {
        "peer.slow": 5.0,  # seconds
        "peer.answers_twice": 0.5,
        "peer.loses_submit": 0.5,
        "peer.rejects": 0.3,
    }
)
PEER_KINDS: Mapping[str, FaultKind] = MappingProxyType(
    {
        "peer.down": FaultKind(70.0, (1.0, 60.0)),
        "peer.emptied": FaultKind(140.0, (1.0, 30.0)),
        "peer.cut": FaultKind(50.0),
        "peer.hangs": FaultKind(100.0, (5.0, 90.0)),
        "peer.refuses": FaultKind(140.0, (5.0, 60.0)),
        "peer.cancels": FaultKind(100.0),
        "peer.home_cut": FaultKind(100.0),
    }
)
PEER_JOBS = FaultKind(12.0, JOB_S)
JOBS = (JOB, PEER_JOB)

# Faults of runs whose node types have several sizes.
SIZE_KINDS: Mapping[str, FaultKind] = MappingProxyType(
    {
        "size.short": FaultKind(60.0, (20.0, 120.0)),
        "size.quota": FaultKind(60.0, (20.0, 120.0)),
        "size.no_spot": FaultKind(140.0, (20.0, 120.0)),
    }
)
SIZES_EVERY = 4  # so many seeds have one whose types have several sizes
OWN_HOSTS_EVERY = 4  # of so many seeds with two clouds, in one the second cloud is own hosts

# Faults of runs in which nodes are created in placement groups.
GROUP_KNOBS: Mapping[str, float] = MappingProxyType({"cloud.group_only": 0.3, "cloud.group_full": 0.2})
GROUP_KINDS: Mapping[str, FaultKind] = MappingProxyType({"cloud.zone_full": FaultKind(50.0, (10.0, 100.0))})

# What also happens on a site with all of upkeep on. There all faults of upkeep occur.
UPKEEP_KINDS: Mapping[str, FaultKind] = MappingProxyType({"upkeep.gives_back": FaultKind(12.0)})

# What also happens to clouds with budgets of their own.
TWIN_KIND = "operator.cuts_a_budget", FaultKind(60.0, (10.0, 60.0))

# A user who writes jobspecs that cannot be read, or are odd. They wait until the faults stop.
HOSTILE_KIND = "user.writes_odd_jobs", FaultKind(10.0, (FAULTS_S, FAULTS_S))
HOSTILE_SHARE = 0.25  # of the seeds
HOSTILE_USER = 66

# Faults of runs in which nodes join by ticket.
JOIN_KNOBS: Mapping[str, float] = MappingProxyType(
    {
        "join.lost_request": 0.3,
        "join.lost_reply": 0.3,
        "join.client_dies": 0.1,
        "join.service_dies": 0.1,
        "join.post_fails": 0.2,
        "join.twin": 0.3,
        "join.short": 0.3,
    }
)
JOIN_KINDS: Mapping[str, FaultKind] = MappingProxyType(
    {"manager.away": FaultKind(120.0), "node.reclaimed": FaultKind(60.0, (2.0, 60.0))}
)


@dataclass(frozen=True, slots=True)
class Script:
    """The site, jobs and faults of one seed. ``idle_tick_s``: the longest time between two idle ticks."""

    seed: int
    nodes_max: int
    idle_timeout_s: float
    housekeeping_s: float
    idle_tick_s: float
    budget: Decimal | None  # a month's
    joins: bool  # nodes join by ticket
    acts: tuple[Act, ...]
    stacked: bool = False  # the nodes are the pods of a MiniCluster
    peers: int = 0  # other instances in which jobs may run
    twin: bool = False  # there is a second cloud, which has no faults
    own_hosts: bool = False  # the second cloud is a few own hosts, used first, with faults of their own
    sizes: bool = False  # each node type has several sizes, on two markets
    groups: bool = False  # nodes of two types are created in placement groups, in two zones
    upkeep: bool = False  # schedules, prepaid nodes, data to wait for, and jobs that give nodes back
    cloud_budgets: Mapping[str, str] = field(default_factory=dict)  # a day's, of clouds that have one
    near: bool = False  # some jobs say in which cloud their data is
    list_lag_s: float = 0.0  # by so much at most new nodes are listed late, if that is minutes
    covers_lag: bool = False  # the site's ``create_grace`` is longer than that

    def with_acts(self, numbers: Collection[int]) -> Script:
        """Return the script with only these acts."""
        return replace(self, acts=tuple(act for act in self.acts if act.number in numbers))

    def without_faults(self) -> Script:
        return replace(self, acts=tuple(act for act in self.acts if act.kind in JOBS))

    def as_data(self) -> dict[str, Any]:
        """Return the script as JSON values, to keep in a file: a later version may draw another one."""
        acts = [[act.at_s, act.kind, act.amount, act.lasts_s] for act in self.acts]
        return {**asdict(self), "budget": str(self.budget) if self.budget is not None else None, "acts": acts}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Script:
        acts = tuple(Act(number, *act) for number, act in enumerate(data["acts"]))
        budget = Decimal(data["budget"]) if data["budget"] is not None else None
        return Script(**{**data, "budget": budget, "acts": acts})


# Faults that no MiniCluster can have: it makes no node twice or elsewhere, and has one type of node.
NOT_STACKED = (
    "cloud.forgotten",
    "cloud.no_tokens",
    "boot.wrong_slot",
    "flux.wish",
    "flux.resized",
    "flux.half_changed",
)


# Faults after which only lists tell whether a create was carried out. A site whose ``create_grace`` is shorter than
# the lag of its provider's lists then buys such a node twice, as its documentation says.
LEAVE_CREATES_OPEN = (
    "cloud.lost_reply",
    "cloud.refused_unclearly",
    "cloud.outage",
    "manager.killed",
    "manager.killed_at_a_call",
    "manager.another",
    "manager.frozen",
    "manager.away",
    "journal.corrupt",
    "journal.deleted",
)


def draw_script(
    seed: int,
    *,
    joins: bool = False,
    stacked: bool = False,
    peers: bool = False,
    twin: bool = False,
    upkeep: bool = False,
    groups: bool = False,
) -> Script:
    """Draw the script of a seed.

    ``joins``: nodes join by ticket. ``stacked``: they are pods of a MiniCluster. ``peers``: jobs may run elsewhere.
    ``twin``: there is a second cloud. In every fourth seed it is own hosts.
    ``groups``: there are zones, and placement groups.
    ``upkeep``: the site has all of upkeep on.
    """
    draws = Random(f"{seed}/script")
    site = Script(
        seed=seed,
        nodes_max=draws.randint(3, 6),
        idle_timeout_s=draws.choice([5.0, 30.0]),
        housekeeping_s=draws.choice([0.0, 2.0]),
        idle_tick_s=draws.choice([2.0, 6.0]),
        budget=draws.choice([None, None, Decimal("0.40"), Decimal(2)]),
        joins=joins,
        acts=(),
        twin=twin,
        cloud_budgets=_draw_cloud_budgets(_stream(seed, "cloud_budgets")) if twin else {},
        own_hosts=twin and seed % OWN_HOSTS_EVERY == OWN_HOSTS_EVERY - 1,
        upkeep=upkeep,
        near=twin and _stream(seed, NEAR).random() < NEAR_SHARE,
    )
    kinds = {**KINDS, **(JOIN_KINDS if joins else {}), **(UPKEEP_KINDS if upkeep else {})}
    areas = {
        area
        for area in dict.fromkeys(_area(name) for name in (*KNOBS, *KINDS))
        if _stream(seed, area).random() < AREA_SHARE or (upkeep and area == UPKEEP)
    }
    drawn = _draw_jobs(draws)
    for name in KNOBS:
        drawn += _draw_knob(name, _stream(seed, name), FAULT_SHARE) if _area(name) in areas else []
    for name, kind in kinds.items():
        share = 1.0 if upkeep and _area(name) == UPKEEP else FAULT_SHARE
        drawn += _draw_faults(name, kind, _stream(seed, name), share) if _area(name) in areas else []
    for name in JOIN_KNOBS if joins else ():
        drawn += _draw_knob(name, _stream(seed, name), JOIN_KNOB_SHARE)
    if peers:
        site = replace(site, peers=_stream(seed, PEER_JOB).randint(2, 3))
        drawn += _draw_peer_acts(seed)
    if groups:
        site = replace(site, groups=True)
        for name in GROUP_KNOBS:
            drawn += _draw_knob(name, _stream(seed, name), FAULT_SHARE)
        for name, kind in GROUP_KINDS.items():
            drawn += _draw_faults(name, kind, _stream(seed, name))
    site = replace(site, sizes=not (stacked or groups or twin or upkeep) and seed % SIZES_EVERY == 0)
    drawn += _draw_size_acts(seed) if site.sizes else []
    if stacked:
        site = replace(site, stacked=True)
        drawn = [act for act in drawn if act.kind not in NOT_STACKED]
    elif (late := _stream(seed, LATE)).random() < LATE_SHARE:
        site = replace(site, list_lag_s=late.uniform(*LATE_S), covers_lag=late.random() < 0.5)
        left_out = () if site.covers_lag else LEAVE_CREATES_OPEN
        drawn = [act for act in drawn if act.kind not in left_out]
    drawn.sort(key=lambda act: act.at_s)
    drawn += _draw_budget_cuts(site)  # behind all others, whose numbers mean something
    drawn += _draw_faults(*HOSTILE_KIND, _stream(seed, HOSTILE_KIND[0]), HOSTILE_SHARE)
    return replace(site, acts=tuple(replace(act, number=number) for number, act in enumerate(drawn)))


def _stream(seed: int, name: str) -> Random:
    """Return a kind's own random stream, so that a new kind does not change the draws of the others."""
    return Random(f"{seed}/script/{name}")


def _area(name: str) -> str:
    return name.partition(".")[0]


def _draw_jobs(draws: Random) -> list[Act]:
    acts: list[Act] = []
    at_s = 0.0
    while at_s < FAULTS_S:
        at_once = range(draws.choice(JOBS_AT_ONCE))
        acts += [Act(0, at_s, JOB, draws.random(), draws.uniform(*JOB_S)) for _ in at_once]
        at_s += draws.expovariate(1 / JOBS_EVERY_S)
    return acts


def _draw_cloud_budgets(draws: Random) -> dict[str, str]:
    """Draw the budgets of the two clouds. The least pays for a node or two."""
    limits = {cloud: draws.choice([None, None, "0.40", "1.20"]) for cloud in (FAILING, SOUND)}
    return {cloud: limit for cloud, limit in limits.items() if limit is not None}


def _draw_budget_cuts(site: Script) -> list[Act]:
    return _draw_faults(*TWIN_KIND, _stream(site.seed, TWIN_KIND[0]), 0.5) if site.cloud_budgets else []


def _draw_peer_acts(seed: int) -> list[Act]:
    acts = _draw_faults(PEER_JOB, PEER_JOBS, _stream(seed, PEER_JOB), 1.0)
    for name in PEER_KNOBS:
        acts += _draw_knob(name, _stream(seed, name), FAULT_SHARE)
    for name, kind in PEER_KINDS.items():
        acts += _draw_faults(name, kind, _stream(seed, name))
    return acts


def _draw_size_acts(seed: int) -> list[Act]:
    acts: list[Act] = []
    for name, kind in SIZE_KINDS.items():
        acts += _draw_faults(name, kind, _stream(seed, name), 1.0)
    return acts


def _draw_knob(name: str, draws: Random, share: float) -> list[Act]:
    return [Act(0, 0.0, name, draws.random(), FAULTS_S)] if draws.random() < share else []


def _draw_faults(name: str, kind: FaultKind, draws: Random, share: float = FAULT_SHARE) -> list[Act]:
    acts: list[Act] = []
    if draws.random() >= share:
        return acts
    at_s = draws.expovariate(1 / kind.every_s)
    while at_s < FAULTS_S:
        acts.append(Act(0, at_s, name, draws.random(), draws.uniform(*kind.lasts_s)))
        at_s += draws.expovariate(1 / kind.every_s)
    return acts
