"""A load on a server: its requests, when each is due, and the processes that send them."""

import asyncio
import dataclasses
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxinfer.measure.serving.stream import StreamRecord, Target, stream_completion

_START_MARGIN_S = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A load: the number, lengths and arrival rate of requests to a server.

    Attributes:
        model: its name there.
        num_prompts: requests in all.
        input_len: N random token ids a prompt.
        output_len: M tokens an answer, exactly; end-of-sequence tokens are ignored.
        vocab_size: ids are below it.
        request_rate: mean arrivals a second of a Poisson process; None sends all at once.
        max_concurrency: requests under way at most; None for any number.
        seed: of prompts and arrivals.
    """

    model: str
    num_prompts: int
    input_len: int
    output_len: int
    vocab_size: int
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
        target: the server.
        requests: HTTP requests, in order.
        arrivals: seconds from the load's start until each is due.
        max_concurrency: requests under way at most; None for any number.
    """

    target: Target
    requests: list[bytes]
    arrivals: list[float]
    max_concurrency: int | None

    async def send(self, start: float) -> list[StreamRecord]:
        """Send each request when it is due, and wait for all answers.

        Args:
            start: when the load begins, on `time.monotonic`'s clock.
        """
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
    """Every `num_shares`-th request of a load from `number` on, and as much of its concurrency."""
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
        records: of all requests, in their order.
        start: when it began, on `time.monotonic`'s clock.
        cpu_s: processor seconds that the client took.
        num_processes: that sent the requests.
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
    num_processes = min(num_processes, most)
    if num_processes == 1:
        share = prepare_share(target, load, 0, 1)
        start, cpu = time.monotonic() + _START_MARGIN_S, time.process_time()
        records = asyncio.run(share.send(start))
        return LoadResult(records, start, time.process_time() - cpu, 1)
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "jaxinfer.measure.serving.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(num_processes)
    ]
    try:
        return _gather(workers, target, load)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _gather(workers: Sequence["subprocess.Popen[bytes]"], target: Target, load: Load) -> LoadResult:
    """Have workers begin together; their records in the order of requests."""
    for i, worker in enumerate(workers):
        order = {"target": dataclasses.asdict(target), "load": dataclasses.asdict(load)}
        _write(worker, order | {"number": i, "num_shares": len(workers)})
    for worker in workers:
        _read(worker)  # it is ready
    start = time.monotonic() + _START_MARGIN_S
    for worker in workers:
        _write(worker, start)
    answers = [_read(worker) for worker in workers]
    records: list[Any] = [None] * load.num_prompts
    for i, answer in enumerate(answers):
        records[i :: len(workers)] = [StreamRecord(**record) for record in answer["records"]]
    return LoadResult(records, start, sum(answer["cpu_s"] for answer in answers), len(workers))


def _write(worker: "subprocess.Popen[bytes]", value: Any) -> None:
    assert worker.stdin is not None  # it is a pipe
    worker.stdin.write(json.dumps(value).encode() + b"\n")
    worker.stdin.flush()


def _read(worker: "subprocess.Popen[bytes]") -> Any:
    assert worker.stdout is not None  # it is a pipe
    if line := worker.stdout.readline():
        return json.loads(line)
    raise RuntimeError(f"a process of the load generator ended with status {worker.wait()}")


def work() -> None:
    """A worker: reads its order, says that it is ready, reads the start, writes its records."""
    order = json.loads(sys.stdin.readline())
    target, load = Target(**order["target"]), Load(**order["load"])
    share = prepare_share(target, load, order["number"], order["num_shares"])
    print("true", flush=True)
    start, cpu = json.loads(sys.stdin.readline()), time.process_time()
    records = asyncio.run(share.send(start))
    cpu_s = time.process_time() - cpu
    rows = [dataclasses.asdict(record) for record in records]
    print(json.dumps({"records": rows, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    work()
