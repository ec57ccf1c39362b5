"""The end of a front end: requests have the time that the operator gives them, then none."""

import asyncio
import time

import pytest

from jaxinfer.cli.service import front_end_process


class Front:
    """Notes what it is told; its requests end when `done` is set.

    Attributes:
        calls: names, in order.
        done: whether no request runs any more.
    """

    def __init__(self):
        self.calls = []
        self.done = asyncio.Event()

    def start_draining(self):
        self.calls.append("start_draining")

    async def drained(self):
        await self.done.wait()
        self.calls.append("drained")

    def abort_all(self):
        self.calls.append("abort_all")


def drain(seconds, happens=lambda front, ending: None):
    """What a front is told, and the seconds it took, where something happens after 50 ms."""

    async def main():
        front, ending = Front(), asyncio.Semaphore(0)
        asyncio.get_running_loop().call_later(0.05, lambda: happens(front, ending))
        start = time.monotonic()
        await asyncio.wait_for(front_end_process._drain(front, seconds, ending), 20)
        return front.calls, time.monotonic() - start

    return asyncio.run(main())


def test_what_has_not_ended_in_time_is_aborted():
    calls, seconds = drain(0.2)
    assert calls == ["start_draining", "abort_all"]
    assert seconds >= 0.2


@pytest.mark.parametrize(
    ("happens", "calls"),
    [
        (lambda front, _: front.done.set(), ["start_draining", "drained", "abort_all"]),
        (lambda _, ending: ending.release(), ["start_draining", "abort_all"]),
    ],
    ids=["all have ended", "a second signal"],
)
def test_there_is_no_waiting_longer_than_needed(happens, calls):
    told, seconds = drain(15.0, happens)
    assert told == calls
    assert seconds < 10
