"""The thread that decides the join service's requests: which it decides together, and what a fault does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from nodemanager.join.admission import Answer, Refusal, RefusalCode
from nodemanager.join.server import TOGETHER_MAX, DecisionThread


def numbered(number: int) -> Callable[[], Answer]:
    return lambda: Refusal(RefusalCode.WRONG, why=str(number))


def test_requests_that_come_meanwhile_are_decided_together_in_their_order() -> None:
    together: list[int] = []
    goes_on = threading.Event()

    def decide(decisions: Sequence[Callable[[], Answer]]) -> list[Answer]:
        together.append(len(decisions))
        assert goes_on.wait(60)
        return [it() for it in decisions]

    async def story() -> list[Answer]:
        thread = DecisionThread(decide)
        answers = [asyncio.create_task(thread.decide(numbered(0)))]
        while not together:  # noqa: ASYNC110 - until the first is being decided
            await asyncio.sleep(0)
        answers += [asyncio.create_task(thread.decide(numbered(number))) for number in range(1, TOGETHER_MAX + 3)]
        await asyncio.sleep(0)
        answers[2].cancel()  # its client is gone
        goes_on.set()
        return [await it for it in answers if not it.cancelling()]

    whys = [it.why for it in asyncio.run(story()) if isinstance(it, Refusal)]
    assert together == [1, TOGETHER_MAX, 2]
    assert whys == [str(number) for number in range(TOGETHER_MAX + 3) if number != 2]


def test_a_fault_of_one_request_fails_no_other_of_its_commit() -> None:
    together: list[int] = []
    goes_on = threading.Event()

    def buggy() -> Answer:
        raise ZeroDivisionError("a bug")

    def decide(decisions: Sequence[Callable[[], Answer]]) -> list[Answer]:
        together.append(len(decisions))
        assert goes_on.wait(60)
        return [it() for it in decisions]

    async def story() -> list[Answer | BaseException]:
        thread = DecisionThread(decide)
        answers = [asyncio.create_task(thread.decide(numbered(0)))]
        while not together:  # noqa: ASYNC110 - until the first is being decided
            await asyncio.sleep(0)
        answers += [asyncio.create_task(thread.decide(it)) for it in (numbered(1), buggy, numbered(2))]
        await asyncio.sleep(0)
        goes_on.set()
        return await asyncio.gather(*answers, return_exceptions=True)

    first, second, faulty, third = asyncio.run(story())
    assert [it.why for it in (first, second, third) if isinstance(it, Refusal)] == ["0", "1", "2"]
    assert isinstance(faulty, ZeroDivisionError)
    assert together == [1, 3, 1, 1, 1]


def test_a_fault_reaches_its_request_and_the_next_one_is_decided() -> None:
    faults = [ZeroDivisionError("a bug")]

    def decide(decisions: Sequence[Callable[[], Answer]]) -> list[Answer]:
        if faults:
            raise faults.pop()
        return [it() for it in decisions]

    async def story() -> None:
        thread = DecisionThread(decide)
        with pytest.raises(ZeroDivisionError):
            await thread.decide(numbered(0))
        answer = await thread.decide(numbered(1))
        assert isinstance(answer, Refusal)
        assert answer.why == "1"

    asyncio.run(story())
