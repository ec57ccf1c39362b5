"""Streams of events: comments in silence, faults as events, and an end that closes the source."""

import asyncio

import pytest

from jaxinfer.server.openai.errors import invalid
from jaxinfer.server.openai.merging import begun, merged
from jaxinfer.server.openai.sse import EventStream


class Source:
    """Items at intervals; knows whether it was closed."""

    def __init__(self, *items, seconds=0.0):
        self.items = items
        self.seconds = seconds
        self.num_open = 0
        self.num_taken = 0

    async def __call__(self):
        self.num_open += 1
        try:
            for item in self.items:
                await asyncio.sleep(self.seconds)
                if isinstance(item, Exception):
                    raise item
                self.num_taken += 1
                yield item
        finally:
            self.num_open -= 1


async def run(stream, *, leaves_after=None):
    """What a client gets that leaves after some seconds, or stays."""
    sent = []

    async def receive():
        await asyncio.sleep(60 if leaves_after is None else leaves_after)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await asyncio.wait_for(stream({"type": "http"}, receive, send), 10)
    return sent


def bodies(sent):
    return b"".join(message.get("body", b"") for message in sent)


def event_stream(source, keep_alive_seconds=60):
    events = source()
    return EventStream(events, events, keep_alive_seconds=keep_alive_seconds)


def test_silence_is_filled_with_comments():
    source = Source(b"data: 1\n\n", b"data: 2\n\n", seconds=0.2)
    sent = asyncio.run(run(event_stream(source, keep_alive_seconds=0.04)))
    text = bodies(sent)
    assert text.replace(b": keep-alive\n\n", b"") == b"data: 1\n\ndata: 2\n\n"
    first, rest = text.split(b"data: 1\n\n")
    assert first.count(b": keep-alive\n\n") >= 2
    assert rest.count(b": keep-alive\n\n") >= 2
    assert sent[-1]["more_body"] is False


def test_a_talkative_stream_has_no_comments():
    source = Source(*[b"data: 1\n\n"] * 20, seconds=0.05)
    assert b"keep-alive" not in bodies(asyncio.run(run(event_stream(source, 0.5))))


def test_a_fault_is_the_last_event():
    source = Source(b"data: 1\n\n", invalid("no"))
    text = bodies(asyncio.run(run(event_stream(source)))).decode()
    assert text.startswith('data: 1\n\ndata: {"error":{"message":"no"')
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("leaves_after", [0.0, 0.05])
def test_the_source_is_closed_with_the_client(leaves_after):
    source = Source(*[b"x"] * 1000, seconds=0.02)
    asyncio.run(run(event_stream(source), leaves_after=leaves_after))
    assert source.num_open == 0
    assert source.num_taken < 10


def test_merged_streams_give_all_items_of_each_in_order():
    sources = [Source(*range(5), seconds=0.001 * i) for i in range(4)]

    async def main():
        got = [[] for _ in sources]
        async for i, item in merged([source() for source in sources]):
            got[i].append(item)
        return got

    assert asyncio.run(main()) == [list(range(5))] * 4


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("ends", ["closed", "cancelled", "fault"])
def test_merged_streams_end_together(count, ends):
    sources = [Source(*range(100), seconds=0.01) for _ in range(count)]
    if ends == "fault":
        sources[-1] = Source(ValueError("boom"), seconds=0.02)

    async def main():
        stream = merged([source() for source in sources])
        if ends == "fault":
            with pytest.raises(ValueError, match="boom"):
                async for _ in stream:
                    pass
        elif ends == "closed":
            await anext(stream)
            await stream.aclose()
        else:
            task = asyncio.create_task(_drain(stream))
            await asyncio.sleep(0.03)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stream.aclose()
        return [source.num_open for source in sources]

    assert asyncio.run(main()) == [0] * count


async def _drain(stream):
    async for _ in stream:
        pass


def test_a_stream_begins_with_its_first_item_or_without_it_in_time():
    async def main(seconds):
        source = Source(1, 2, seconds=0.05)
        stream = await begun(source(), seconds)
        taken = source.num_taken
        return taken, [item async for item in stream]

    assert asyncio.run(main(5)) == (1, [1, 2])
    assert asyncio.run(main(0.001)) == (0, [1, 2])


def test_a_stream_that_is_refused_never_begins():
    async def main():
        with pytest.raises(ValueError, match="boom"):
            await begun(Source(ValueError("boom"))(), 5)

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [5, 0.001])
def test_a_stream_that_began_can_be_closed_before_it_is_read(seconds):
    async def main():
        source = Source(1, 2, seconds=0.05)
        stream = await begun(source(), seconds)
        assert source.num_open == 1
        await stream.aclose()
        return source.num_open

    assert asyncio.run(main()) == 0
