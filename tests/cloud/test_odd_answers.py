"""Whatever a provider answers, a call succeeds or fails. It ends no actor, and unreadable is never empty."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from nodemanager.actors.base import Fate
from nodemanager.actors.cloud import CloudWatcher, CloudWorker
from nodemanager.cloud.openstack.port import launch_tag
from nodemanager.core.facts import CloudCallFailed, CloudListed, LeftoversRemoved, NodeCreated, NodeDestroyed
from nodemanager.core.nodes import Launch
from nodemanager.core.orders import CloudEffect, CreateNode, DestroyNode, ListCloud, SweepCloud, WithDeadline
from nodemanager.core.ports import CloudPort
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because
from tests.cloud.minicluster.setting import launch_of
from tests.cloud.odd_answers import OddAnswers
from tests.cloud.openstack.test_port import DETAILS, FLAVORS, LIST, MADE, POST, TOKENS, cloud_at
from tests.cloud.recorded import Call, Reply, Service, a_service, recorded
from tests.contract.cloud_subjects import SUBJECTS, CloudSubject, LocalSubject, SystemClock, a_launch, a_type
from tests.contract.static_subject import StaticSubject

PATIENCE_S = 3600.0
EXAMPLES = int(os.environ.get("FNM_ODD_ANSWERS", "15"))  # of each provider: about a hundred in all


@dataclass
class Odd:
    """A provider whose answers can be made odd, with at least one node."""

    port: CloudPort
    launch: Callable[[int, int], Launch]  # of a seed, the first or the second
    lies: Callable[[OddAnswers], AbstractContextManager[None]]
    tidy: Callable[[], None] = lambda: None


class Post:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell(self, message: Any) -> None:
        self.told.append(message)


class Mandated:
    def ensure_actor(self) -> None:
        """It always acts."""


class Nova(Service):
    """It has the recorded server, and no other one."""

    def answer(self, call: Call) -> Reply:
        reply = super().answer(call)
        known = "launch" not in call.query.get("tags", "") or launch_tag(a_launch().id) in call.query["tags"]
        return reply if known else recorded("openstack/servers-none")


def _openstack(stack: ExitStack, _: Path) -> Odd:
    nova = stack.enter_context(a_service(Nova))
    nova.says(*TOKENS, recorded("openstack/token"))
    nova.says(*LIST, recorded("openstack/servers-one"))
    nova.says(*FLAVORS, *(recorded(f"openstack/flavors-page-{page}") for page in (1, 2, 3, 4)))
    nova.says("GET", "/image/v2/images", recorded("openstack/images"))
    nova.says("GET", "/network/v2.0/networks", recorded("openstack/networks"))
    nova.says(*POST, recorded("openstack/server-created"))
    nova.says(*DETAILS, recorded("openstack/server"))
    nova.says("DELETE", f"{POST[1]}/{MADE}", recorded("openstack/server-deleted"))

    def launch(seed: int, number: int) -> Launch:
        return a_launch() if number == 1 else a_launch(f"{seed}-{number}")

    return Odd(cloud_at(nova), launch, OddAnswers.over_http)


def _of_subject(name: str) -> Callable[[ExitStack, Path], Odd]:
    def build(stack: ExitStack, folder: Path) -> Odd:
        subject = SUBJECTS[name](folder)
        stack.callback(subject.close)

        def tidy() -> None:
            for node in reversed(subject.standing()):
                subject.port.destroy(node.provider_id)
            if name == "minicluster":
                subject.setting.steps()  # type: ignore[attr-defined]

        def launch(seed: int, number: int) -> Launch:
            if name == "minicluster":
                return launch_of(number, "node", seed)
            return subject.launch(f"{seed}-{number}", f"node-{number}")

        return Odd(subject.port, launch, _lies_of(subject), tidy)

    return build


def _lies_of(subject: CloudSubject) -> Callable[[OddAnswers], AbstractContextManager[None]]:
    match subject:
        case LocalSubject():
            return lambda odd: odd.in_files(subject.directory, "nodes/*/node.json")
        case StaticSubject():
            return lambda odd: odd.in_files(subject.directory, "cloud/hosts.json")
        case _:
            return OddAnswers.over_http


PROVIDERS: dict[str, Callable[[ExitStack, Path], Odd]] = {
    "openstack": _openstack,
    **{name: _of_subject(name) for name in ("ec2", "gce", "azure", "minicluster", "local", "static")},
}


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Odd]:
    with ExitStack() as stack:
        yield PROVIDERS[request.param](stack, tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_odd_answer_is_a_failed_call_and_never_an_empty_list(provider: Odd, seed: int) -> None:
    post, odd = Post(), OddAnswers(seed)
    lister = CloudWatcher(provider.port, SystemClock(), post, Fate())
    worker = CloudWorker(provider.port, Mandated(), SystemClock(), post, Fate())
    provider.tidy()
    launch = provider.launch(seed, 1)
    node = provider.port.create(launch, a_type())
    end = because(Code.STOPPING)
    orders: tuple[ListCloud | SweepCloud | CloudEffect, ...] = (
        ListCloud(),
        ListCloud(),
        CreateNode(provider.launch(seed, 2), a_type()),
        SweepCloud(),
        ListCloud(),
        DestroyNode(launch.id, node.provider_id, end),
    )
    for order in orders:
        post.told.clear()
        odd.lost_all = False
        with provider.lies(odd), capture_logs():
            if isinstance(order, ListCloud | SweepCloud):
                lister.on_receive(order)
            else:
                worker.on_receive(WithDeadline(order, SystemClock().monotonic_s() + PATIENCE_S))
        (fact,) = post.told
        assert isinstance(fact, CloudCallFailed | CloudListed | LeftoversRemoved | NodeCreated | NodeDestroyed)
        if isinstance(fact, CloudListed) and odd.lost_all:
            assert fact.nodes, "what cannot be read is no empty list"
