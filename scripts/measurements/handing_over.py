"""Measures the engine process's time to hand a step's tokens to a front end, without a device."""

import contextlib
import dataclasses
import gc
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.service.description import engine_message
from jaxinfer.server.service.front_end_requests import FrontEndRequests
from jaxinfer.server.service.messages import Add, ToFrontEnd, encode
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.engine.engine import Engine
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.result import StepResult, TokenScores
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler

STREAMS, PROMPT_TOKENS, BLOCK_SIZE = 256, 8, 16
_NUM_TOP = 5
_LIMIT_MS = 1.0
_ROUNDS = 7


def handing_over_report(steps: int = 200) -> dict[str, Any]:
    """Milliseconds per decode step to hand the tokens of 256 streams to a front end.

    From the fetched arrays to the socket, without log-probabilities and with one for each token.
    The median over steps, the best of seven such medians (other work on the machine can only add).
    """
    kinds = [None, 1]
    rounds = [[measure_handing_over(logprobs, steps) for logprobs in kinds] for _ in range(_ROUNDS)]
    rows = [
        {"logprobs": logprobs, "ms_a_step": min(each) * 1e3}
        for logprobs, each in zip(kinds, zip(*rounds, strict=True), strict=True)
    ]
    return {"streams": STREAMS, "steps": steps, "kinds": rows, "limit_ms": _LIMIT_MS}


def handing_over_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    return [
        f"handing over the tokens of {report['streams']} streams, ms a decode step "
        f"(limit {report['limit_ms']:.0f})",
        f"{'logprobs':>10}{'ms':>8}",
        *(f"{row['logprobs'] or 0:>10}{row['ms_a_step']:>8.2f}" for row in report["kinds"]),
    ]


def measure_handing_over(logprobs: int | None, steps: int) -> float:
    """The median of seconds per step to hand over its tokens."""
    bench = HandingOverBench(logprobs, steps)
    try:
        return statistics.median(bench.driver.call(lambda: bench.run(steps)))
    finally:
        bench.close()


class HandingOverBench:
    """256 streams of a front end at an engine whose device takes no time.

    Its methods are for the engine's thread, that is for `driver.call`.

    Args:
        logprobs: what each stream asks for.
        steps: to make room for.

    Attributes:
        driver: runs the engine.
        device: its `on_fetched` is called where a step's hand-over begins.
    """

    def __init__(self, logprobs: int | None, steps: int) -> None:
        self._logprobs = logprobs
        self._max_tokens = steps + 16
        max_model_len = PROMPT_TOKENS + self._max_tokens
        num_blocks = 1 + STREAMS * (-(-max_model_len // BLOCK_SIZE) + 1)
        scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE),
            max_num_seqs=STREAMS,
            max_num_batched_tokens=STREAMS * PROMPT_TOKENS,
            max_model_len=max_model_len,
        )
        self.device: Any = _Device(logprobs)
        self._engine = Engine(self.device, scheduler)
        self.driver = Driver(self._engine)
        self._near, self._far = socket.socketpair(socket.AF_UNIX)
        self._far.setblocking(False)
        self._received = bytearray(1 << 20)
        self._front_end = FrontEndRequests(self.driver, self._send, lambda count: True)

    def run(self, steps: int) -> list[float]:
        """Seconds of each step's hand-over."""
        for number in range(STREAMS):
            self._front_end.add(Add(number, engine_message(self._request(number))))
        for _ in range(4):
            self.step()
            self.receive()
        gc.collect()
        begins: list[float] = []
        self.device.on_fetched = lambda: begins.append(time.perf_counter())
        ends: list[float] = []
        for _ in range(steps):
            self.step()
            ends.append(time.perf_counter())
            self.receive()
        return [end - begin for begin, end in zip(begins, ends, strict=True)]

    def step(self) -> None:
        """Run a step of the engine, to the socket."""
        self._engine.step()
        self._front_end.flush()

    def receive(self) -> None:
        """Empty the socket, for the front end."""
        with contextlib.suppress(BlockingIOError):
            self._far.recv_into(self._received)

    def close(self) -> None:
        """End the engine's thread."""
        self.driver.close()
        self._near.close()
        self._far.close()

    def _request(self, number: int) -> NewRequest:
        params = SamplingParams(
            temperature=0.0,
            ignore_eos=True,
            max_tokens=self._max_tokens,
            logprobs=self._logprobs,
        )
        return NewRequest(prompt=Prompt([number + 1] * PROMPT_TOKENS), params=params)

    def _send(self, message: ToFrontEnd) -> None:
        self._near.sendall(encode(message))


class _Device:
    """Samples the same token everywhere, at once."""

    def __init__(self, logprobs: int | None) -> None:
        self._logprobs = logprobs
        self.on_fetched: Callable[[], None] = lambda: None

    def launch(self, schedule: Schedule) -> StepResult:
        shape = (len(schedule.rows), 1)
        scores = TokenScores(np.full(shape, 7, np.int32), np.ones(shape, np.bool_))
        if self._logprobs is not None:
            tops = (*shape, _NUM_TOP)
            scores = dataclasses.replace(
                scores,
                logprobs=np.zeros(shape, np.float32),
                ranks=np.ones(shape, np.int32),
                top_ids=np.zeros(tops, np.int32),
                top_logprobs=np.zeros(tops, np.float32),
            )
        return StepResult(scores)

    def fetch(self, step: StepResult) -> StepResult:
        self.on_fetched()
        return step

    def close(self) -> None:
        pass
