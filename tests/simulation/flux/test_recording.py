"""The simulated Flux, taken through the steps of a recording, gives the answers of the real one.

The recording's instance has 4 cores on cloud1-4 and 8 cores with 2 GPUs on gpu1-2. Its last steps, which re-type a
rank while the instance runs, are left out: the simulated one cannot do that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.core.slots import Rank, SlotName
from nodemanager.simulation.flux.brokers import ResourceEvent
from nodemanager.simulation.flux.instance import JournalFollower
from nodemanager.simulation.flux.job_manager import JobEvent
from nodemanager.simulation.flux.jobid import format_f58
from nodemanager.simulation.time.world import World
from tests.paths import DATA
from tests.simulation.fleets import small_instance, up

RECORDING = DATA / "elastic-instance.jsonl"
RETYPED_AT = 35.7
REPLIES = ("resource.status", "sched.resource-status", "overlay.health")
DRAIN_REASON = "node manager: idle, billing window closes"

Event = tuple[str, Mapping[str, Any]]


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    entries = (json.loads(line) for line in RECORDING.read_text().splitlines())
    return tuple(entry for entry in entries if entry["t"] < RETYPED_AT)


def of_kind(kind: str) -> Iterator[dict[str, Any]]:
    return (entry for entry in recorded() if entry["kind"] == kind)


def submitted() -> list[dict[str, Any]]:
    return [event for event in of_kind("job-event") if event["name"] == "submit"]


@dataclass
class Replay:
    """The simulated instance on its way through the recording."""

    world: World = field(default_factory=lambda: World(seed=1))
    jobs: list[JobEvent] = field(default_factory=list)
    resources: list[ResourceEvent] = field(default_factory=list)
    ids: dict[int, JobId] = field(default_factory=dict)
    replies: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flux = small_instance(self.world)
        self.flux.follow(JournalFollower(self.jobs.append, self.resources.append, pytest.fail))

    def submit(self, index: int, housekeeping_s: Mapping[Rank, float] | None = None) -> None:
        event = submitted()[index]
        command = event["jobspec"]["tasks"][0]["command"]
        jobspec = json.loads(renamed(event["jobspec"], self.ids))
        run_s = float(command[1]) if command[0] == "sleep" else 0.04
        urgency = event["context"]["urgency"]
        self.ids[event["jobid"]] = self.flux.submit(
            jobspec, run_s=run_s, urgency=urgency, housekeeping_s=housekeeping_s
        )

    def ask(self, entry: Mapping[str, Any]) -> None:
        answers: dict[str, Callable[[], Mapping[str, Any]]] = {
            "resource.status": self.flux.resource_status,
            "sched.resource-status": self.flux.sched_resource_status,
            "overlay.health": self.flux.overlay_health,
        }
        self.replies[entry["label"], entry["topic"]] = answers[entry["topic"]]()

    def run(self) -> None:
        asked = [
            (entry["t"], lambda entry=entry: self.ask(entry))
            for entry in of_kind("rpc")
            if entry["topic"] in REPLIES
        ]
        for at_s, act in sorted([*asked, *self.steps()], key=lambda step: step[0]):
            self.world.advance_to(at_s)
            act()
        self.world.advance_to(RETYPED_AT)

    def steps(self) -> list[tuple[float, Callable[[], None]]]:
        """The actions from outside, with the times at which they took effect in the recording."""
        flux = self.flux
        return [
            *((0.31, lambda index=index: self.submit(index)) for index in range(5)),
            (2.77, lambda: up(flux, "cloud1", "cloud2", "gpu1")),
            (10.02, lambda: self.submit(5)),
            (11.05, lambda: self.submit(6)),
            (13.33, lambda: flux.broker_down(SlotName("gpu1"), lost=True)),
            (20.33, lambda: up(flux, "gpu1")),
            (24.1, lambda: self.submit(7, {Rank(1): 4.0})),
            (29.29, lambda: flux.drain(Rank(2), DRAIN_REASON)),
            (30.41, lambda: flux.broker_down(SlotName("cloud2"), lost=False)),
            (34.43, lambda: flux.undrain(Rank(2))),
        ]


def renamed(value: object, ids: Mapping[int, JobId]) -> str:
    """The value as JSON, the recorded job ids in it replaced by the simulated ones."""
    text = json.dumps(value)
    for theirs, ours in ids.items():
        text = text.replace(format_f58(JobId(theirs)), format_f58(ours))
    return text


@pytest.fixture(scope="module")
def replay() -> Replay:
    replay = Replay()
    replay.run()
    return replay


def is_estimate(context: Mapping[str, Any]) -> bool:
    return "t_estimate" in context.get("annotations", {}).get("sched", {})


@pytest.mark.parametrize("index", range(8))
def test_each_job_has_the_same_events_in_the_same_order(replay: Replay, index: int) -> None:
    theirs = submitted()[index]["jobid"]
    real = [
        (event["name"], json.loads(renamed(event["context"], replay.ids)))
        for event in of_kind("job-event")
        if event["jobid"] == theirs and not is_estimate(event["context"])
    ]
    simulated = [(event.name, event.context) for event in replay.jobs if event.job_id == replay.ids[theirs]]
    assert simulated == real


def test_the_jobs_are_moved_on_in_the_same_order(replay: Replay) -> None:
    # Not compared: starts, and the ends of two jobs that run at once, which are a race in the real one.
    racing = {"start", "finish", "release", "free", "clean", "validate"}
    real = [
        (replay.ids[event["jobid"]], event["name"])
        for event in of_kind("job-event")
        if event["name"] not in racing and not is_estimate(event["context"])
    ]
    simulated = [(event.job_id, event.name) for event in replay.jobs if event.name not in racing]
    assert simulated == real


def test_jobs_get_the_same_resources(replay: Replay) -> None:
    def untimed(resources: Mapping[str, Any] | None) -> Mapping[str, Any]:
        assert resources is not None
        execution = dict(resources["execution"])
        starttime, expiration = execution.pop("starttime"), execution.pop("expiration")
        return {**resources, "execution": execution, "limit_s": round(expiration - starttime, 3)}

    real = {replay.ids[e["jobid"]]: untimed(e["R"]) for e in of_kind("job-event") if e["name"] == "alloc"}
    simulated = {event.job_id: untimed(event.R) for event in replay.jobs if event.name == "alloc"}
    assert simulated == real


def test_submit_and_nothing_else_carries_the_jobspec(replay: Replay) -> None:
    assert {event.name for event in replay.jobs if event.jobspec is not None} == {"submit"}
    assert {event.name for event in replay.jobs if event.R is not None} == {"alloc"}


def test_the_resource_journal_says_the_same(replay: Replay) -> None:
    real = [(event["name"], event["context"]) for event in of_kind("resource-event")]
    # The first three events were posted before anyone could follow the journal.
    assert [name for name, _ in real[:3]] == ["restart", "resource-define", "online"]
    assert [(event.name, event.context) for event in replay.resources] == real[3:]


def test_a_start_is_told_as_the_real_one_told_its_own() -> None:
    world = World(seed=1)
    flux = small_instance(world)
    events: list[ResourceEvent] = []
    flux._brokers.listeners.append(events.append)  # nobody can follow the journal while rank 0 is down
    flux.restart()
    world.advance_by(10)
    real = list(of_kind("resource-event"))[:3]
    assert [(event.name, event.context, event.R) for event in events] == [
        (event["name"], event["context"], event.get("R")) for event in real
    ]


@pytest.mark.parametrize("topic", REPLIES)
def test_the_replies_are_the_same_at_every_moment(replay: Replay, topic: str) -> None:
    asked = [entry for entry in of_kind("rpc") if entry["topic"] == topic]
    assert len(asked) == 13
    for entry in asked:
        simulated = replay.replies[entry["label"], topic]
        assert timeless(simulated) == timeless(entry["response"]), entry["label"]


def timeless(reply: Any) -> Any:
    """Return the reply with each time and duration replaced by its kind."""
    if isinstance(reply, Mapping):
        return {
            key: type(value).__name__ if key in ("timestamp", "duration") else timeless(value)
            for key, value in reply.items()
        }
    return [timeless(part) for part in reply] if isinstance(reply, list) else reply
