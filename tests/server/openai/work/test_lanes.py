"""Large work waits for large work alone, and there is a limit to what waits."""

import asyncio
import threading

import pytest

from jaxinfer.errors import QueueFullError
from jaxinfer.server.openai.work import lanes
from jaxinfer.server.openai.work.lanes import LARGE, Lanes


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def test_small_work_is_done_while_large_work_runs_and_waits():
    may_go_on = threading.Event()

    async def main():
        own = Lanes("test", 2)
        large = [asyncio.ensure_future(own.run(may_go_on.wait, LARGE + 1)) for _ in range(5)]
        assert [await own.run(lambda i=i: i, LARGE) for i in range(20)] == [*range(20)]
        assert not any(each.done() for each in large)
        may_go_on.set()
        assert await asyncio.gather(*large) == [True] * 5
        own.close()

    run(main())


@pytest.mark.parametrize(("lane", "size"), [("small", 1), ("large", LARGE + 1)])
@pytest.mark.parametrize("limit", ["_MOST_WAITING", "_MOST_SIZE"])
def test_more_than_may_wait_is_refused_until_some_is_done_or_given_up(
    monkeypatch, limit, lane, size
):
    monkeypatch.setattr(lanes, limit, 3 if limit == "_MOST_WAITING" else 3 * size)
    may_go_on = threading.Event()

    async def main():
        own = Lanes("test", 1)
        waiting = [asyncio.ensure_future(own.run(may_go_on.wait, size)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match=f"the queue of {lane} texts is full"):
            await own.run(may_go_on.wait, size)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(asyncio.ensure_future(own.run(lambda: True, size)))
        await asyncio.sleep(0)
        may_go_on.set()
        assert await asyncio.gather(*waiting) == [True] * 3
        assert await own.run(lambda: 7, size) == 7
        own.close()

    run(main())


def test_a_work_that_is_larger_than_what_may_wait_is_done_alone(monkeypatch):
    monkeypatch.setattr(lanes, "_MOST_SIZE", 10)

    async def main():
        own = Lanes("test", 1)
        assert await own.run(lambda: 7, 11) == 7
        own.close()

    run(main())


def test_an_exception_of_the_work_is_the_callers():
    async def main():
        own = Lanes("test", 1)
        with pytest.raises(ZeroDivisionError):
            await own.run(lambda: 1 // 0, 1)
        own.close()

    run(main())
