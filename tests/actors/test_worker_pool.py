from dataclasses import dataclass, field
from typing import Any

from nodemanager.actors.worker_pool import Crew
from nodemanager.core.nodes import LaunchId, ProviderId
from nodemanager.core.orders import CloudOrder, DestroyNode, Timely
from nodemanager.core.reasons import because


@dataclass
class Post:
    """A mailbox that keeps what it is told."""

    told: list[Any] = field(default_factory=list)

    def tell(self, message: CloudOrder) -> None:
        self.told.append(message)


def destroy(name: str) -> Timely[DestroyNode]:
    return Timely(DestroyNode(LaunchId(name), ProviderId(f"i-{name}"), because("test")), 60.0)


def test_an_order_goes_to_a_worker_that_has_none() -> None:
    posts = [Post(), Post()]
    crew = Crew(posts)
    crew.give("a", destroy("a"))
    crew.give("b", destroy("b"))
    assert [len(post.told) for post in posts] == [1, 1]


def test_a_worker_that_hangs_holds_up_nobody_else() -> None:
    hung, other = Post(), Post()
    crew = Crew([hung, other])
    crew.give("hangs", destroy("hangs"))
    for name in ("a", "b", "c"):
        crew.give(name, destroy(name))
        crew.done(name)
    assert [it.order.launch for it in hung.told] == ["hangs"]
    assert [it.order.launch for it in other.told] == ["a", "b", "c"]


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    crew = Crew([Post()])
    crew.done("never given")
