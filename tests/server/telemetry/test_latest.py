"""A value is read anew if that is quick, and else shown as it was last; reads don't pile up."""

import asyncio

import pytest

from jaxinfer.server.telemetry.latest import Latest


class Source:
    """Gives 1, 2, ...; waits until `is_quick`."""

    def __init__(self):
        self.num_reads = 0
        self.is_quick = asyncio.Event()
        self.is_quick.set()

    async def read(self):
        self.num_reads += 1
        number = self.num_reads
        await self.is_quick.wait()
        return number


def test_a_slow_read_is_one_and_its_callers_have_the_last_value():
    async def main():
        source = Source()
        latest = Latest(source.read, 0.01)
        assert await latest.get() == 1
        assert await latest.get() == 2
        source.is_quick.clear()
        assert await asyncio.gather(*(latest.get() for _ in range(5))) == [2] * 5
        assert await latest.get() == 2
        assert source.num_reads == 3
        source.is_quick.set()
        await asyncio.sleep(0.01)
        assert await latest.get() == 4

    asyncio.run(main())


def test_the_first_value_is_waited_for():
    async def main():
        source = Source()
        source.is_quick.clear()
        asyncio.get_running_loop().call_later(0.1, source.is_quick.set)
        assert await Latest(source.read, 0.01).get() == 1

    asyncio.run(main())


def test_a_read_that_raises_is_its_callers_and_the_next_one_is_tried():
    async def main():
        outcomes = [ValueError("no"), 5]

        async def read():
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        latest = Latest(read, 1.0)
        with pytest.raises(ValueError, match="no"):
            await latest.get()
        assert await latest.get() == 5

    asyncio.run(main())
