"""How old each thing that we know is, and what has to be asked again."""

from __future__ import annotations

from nodemanager.core.facts import CloudChanged
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.planner.state.snapshot import Snapshot, Source


def all_sources(snapshot: Snapshot) -> tuple[Source, ...]:
    """The sources whose calls have a deadline."""
    writes = snapshot.operator.steering_write, snapshot.spending.write, snapshot.queues.hold_write
    clouds = (account.source for account in snapshot.accounts.values())
    return (snapshot.sources.claim, *writes, snapshot.sources.flux, *clouds)


def expire_calls(snapshot: Snapshot) -> Snapshot:
    """The snapshot with calls past their deadline counted as failed."""
    now_s = snapshot.now_s
    return replace(
        snapshot,
        sources=replace(
            snapshot.sources,
            claim=_expired(snapshot.sources.claim, now_s),
            flux=_expired(snapshot.sources.flux, now_s),
        ),
        accounts={
            name: replace(account, source=_expired(account.source, now_s))
            for name, account in snapshot.accounts.items()
        },
        operator=replace(snapshot.operator, steering_write=_expired(snapshot.operator.steering_write, now_s)),
        queues=replace(snapshot.queues, hold_write=_expired(snapshot.queues.hold_write, now_s)),
        spending=replace(snapshot.spending, write=_expired(snapshot.spending.write, now_s)),
    )


def _expired(source: Source, now_s: float) -> Source:
    if source.answer_due_s is None or source.answer_due_s > now_s:
        return source
    return replace(source, answer_due_s=None, failure="no answer in time", retry_s=now_s + 1.0)


def with_answer(source: Source, started_s: float) -> Source:
    """The source after an answer whose query began at ``started_s``."""
    return replace(source, seen_s=started_s, answer_due_s=None, failure="", retry_s=0.0)


def is_old(source: Source, started_s: float) -> bool:
    """Whether this answer or a later one is known already."""
    return source.seen_s is not None and started_s <= source.seen_s


def newer(news_s: float | None, started_s: float) -> float | None:
    """The time of news that a query begun at ``started_s`` may lack; None if there is none."""
    return news_s if news_s is not None and news_s > started_s else None


def unsettled_since_s(snapshot: Snapshot) -> float:
    """Since when news has arrived that no plan has considered: now, if there was none."""
    return snapshot.news.unsettled_s if snapshot.news.unsettled_s is not None else snapshot.now_s


def require_look(snapshot: Snapshot) -> Snapshot:
    """Make a look at the ranks due; nothing is bought before it."""
    return replace(
        snapshot,
        news=replace(snapshot.news, look_due_since_s=snapshot.now_s, unsettled_s=unsettled_since_s(snapshot)),
    )


def require_list(snapshot: Snapshot, fact: CloudChanged, policy: Policy) -> Snapshot:
    """Make a list of the cloud due: its nodes have changed."""
    name = policy.only_cloud(fact.cloud)
    account = snapshot.account_of(name)
    source = replace(account.source, news_s=snapshot.now_s)
    return snapshot.with_account(name, replace(account, source=source))
