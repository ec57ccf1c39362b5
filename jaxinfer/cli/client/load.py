"""A load on a server: its requests, when each is due, and the processes that send them."""

import asyncio
import concurrent.futures
import dataclasses
import multiprocessing
import random
import threading
import time
from typing import Any

from jaxinfer.cli.client.stream import StreamRecord, Target, stream_completion

_START_MARGIN_S = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A load: the number, lengths and arrival rate of requests to a server.

    Attributes:
        model: the model's name on the server.
        num_prompts: requests in all.
        input_len: random token ids of each prompt.
        output_len: tokens of each answer, exactly: end-of-sequence tokens are ignored.
        vocab_size: prompts hold token ids below this.
        request_rate: mean arrivals a second of a Poisson process; None is inf, all at once.
        max_concurrency: requests under way at most; None is any number.
        seed: seed of prompts and arrivals.
    """

    model: str
    num_prompts: int = 100
    input_len: int = 1024
    output_len: int = 128
    vocab_size: int = 256
    request_rate: float | None = None
    max_concurrency: int | None = None
    seed: int = 0

    def arrivals(self) -> list[float]:
        """Seconds from the start until each request is due, ascending."""
        if self.request_rate is None:
            return [0.0] * self.num_prompts
        source, now, times = random.Random(self.seed), 0.0, []
        for _ in range(self.num_prompts):
            times.append(now)
            now += source.expovariate(self.request_rate)
        return times

    def body(self, index: int) -> dict[str, Any]:
        """The JSON body of a request; the prompt depends on seed and index alone."""
        source = random.Random(f"{self.seed}/{index}")
        return {
            "model": self.model,
            "prompt": source.choices(range(self.vocab_size), k=self.input_len),
            "max_tokens": self.output_len,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The requests of one process, ready to be sent.

    Attributes:
        arrivals: seconds from the load's start until each is due.
    """

    target: Target
    requests: list[bytes]
    arrivals: list[float]
    max_concurrency: int | None

    async def send(self, start: float) -> list[StreamRecord]:
        """Send each request when due, from `start` (`time.monotonic`) on; wait for all answers."""
        records = [StreamRecord(start + arrival) for arrival in self.arrivals]
        slots = asyncio.Semaphore(self.max_concurrency or len(records) or 1)

        async def send(request: bytes, record: StreamRecord) -> None:
            async with slots:
                await stream_completion(self.target, request, record)

        async with asyncio.TaskGroup() as group:
            for request, record in zip(self.requests, records, strict=True):
                if (wait := record.due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                group.create_task(send(request, record))
        return records


def prepare_share(target: Target, load: Load, number: int, num_shares: int) -> Share:
    """Every `num_shares`-th request of a load from `number`, and that share of its concurrency."""
    limit = load.max_concurrency
    if limit is not None:
        limit = limit // num_shares + (number < limit % num_shares)
    indices = range(number, load.num_prompts, num_shares)
    requests = [target.request("POST", "/v1/completions", load.body(index)) for index in indices]
    return Share(target, requests, load.arrivals()[number::num_shares], limit)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadResult:
    """The results of a load.

    Attributes:
        start: when it began, on `time.monotonic`'s clock.
        cpu_s: processor seconds that the client took.
    """

    records: list[StreamRecord]
    start: float
    cpu_s: float
    num_processes: int


def run_load(target: Target, load: Load, num_processes: int) -> LoadResult:
    """Send a load from some processes, each with its share of requests and of concurrency.

    Raises:
        RuntimeError: a process of the client ended before its time.
    """
    most = min(load.num_prompts, load.max_concurrency or load.num_prompts)
    num = min(num_processes, most)
    if num == 1:
        results = [_send_share(target, load, 0, 1)]
    else:
        context = multiprocessing.get_context("spawn")
        together = (context.Barrier(num),)
        with concurrent.futures.ProcessPoolExecutor(num, context, _share_barrier, together) as pool:
            sent = [pool.submit(_send_share, target, load, number, num) for number in range(num)]
            results = [future.result() for future in sent]
    records: list[Any] = [None] * load.num_prompts
    for number, result in enumerate(results):
        records[number::num] = result.records
    start = min(result.start for result in results)
    return LoadResult(records, start, sum(result.cpu_s for result in results), num)


_barrier: threading.Barrier | None = None
"""Makes the client's processes begin together; None with a single process."""


def _share_barrier(barrier: threading.Barrier) -> None:
    global _barrier  # noqa: PLW0603  # a pool hands barriers to its processes this way only
    _barrier = barrier


def _send_share(target: Target, load: Load, number: int, num_shares: int) -> LoadResult:
    share = prepare_share(target, load, number, num_shares)
    if _barrier is not None:
        _barrier.wait()
    start, cpu = time.monotonic() + _START_MARGIN_S, time.process_time()
    records = asyncio.run(share.send(start))
    return LoadResult(records, start, time.process_time() - cpu, 1)
