from dataclasses import dataclass, field
from typing import Any

from nodemanager.actors.manager import WorkerPool
from nodemanager.core.nodes import LaunchId, ProviderId
from nodemanager.core.orders import CloudOrder, DestroyNode, WithDeadline
from nodemanager.core.reason_codes import Code
from nodemanager.core.reasons import because


@dataclass
class Post:
    """A mailbox that keeps its messages."""

    told: list[Any] = field(default_factory=list)

    def tell(self, message: CloudOrder) -> None:
        self.told.append(message)


def destroy(name: str) -> WithDeadline[DestroyNode]:
    return WithDeadline(DestroyNode(LaunchId(name), ProviderId(f"i-{name}"), because(Code.GONE)), 60.0)


def test_an_order_goes_to_a_worker_that_has_none() -> None:
    posts = [Post(), Post()]
    crew = WorkerPool(posts)
    crew.dispatch("a", destroy("a"))
    crew.dispatch("b", destroy("b"))
    assert [len(post.told) for post in posts] == [1, 1]


def test_a_worker_that_hangs_holds_up_nobody_else() -> None:
    hung, other = Post(), Post()
    crew = WorkerPool([hung, other])
    crew.dispatch("hangs", destroy("hangs"))
    for name in ("a", "b", "c"):
        crew.dispatch(name, destroy(name))
        crew.mark_done(name)
    assert [it.order.launch for it in hung.told] == ["hangs"]
    assert [it.order.launch for it in other.told] == ["a", "b", "c"]


def test_an_answer_ends_the_oldest_order_about_its_subject() -> None:
    """The first worker answers its order about a node; the second one still works on a later order about it."""
    first, second = Post(), Post()
    crew = WorkerPool([first, second])
    crew.dispatch("a", destroy("a"))
    crew.dispatch("a", destroy("a"))
    crew.mark_done("a")
    crew.dispatch("b", destroy("b"))
    assert [it.order.launch for it in first.told] == ["a", "b"]
    assert [it.order.launch for it in second.told] == ["a"]


def test_a_call_for_several_nodes_is_over_when_all_of_them_are_answered() -> None:
    first, second = Post(), Post()
    crew = WorkerPool([first, second])
    crew.dispatch_together(["a", "b", "c"], destroy("together"))
    for name in ("a", "b", "c"):
        crew.mark_done(name)
    for name in ("hangs", "next"):
        crew.dispatch(name, destroy(name))
    assert [it.order.launch for it in first.told] == ["together", "hangs"]
    assert [it.order.launch for it in second.told] == ["next"]


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    crew = WorkerPool([Post()])
    # It must not raise.
    crew.mark_done("never given")
