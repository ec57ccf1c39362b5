"""Measures the host's time per decode step: scheduler and batch building, without a device."""

import dataclasses
import gc
import statistics
import time
from operator import itemgetter
from typing import Any

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.batch_builder import BatchBuilder
from jaxinfer.serving.runner.draft_texts import DraftTexts
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.schedule import Schedule
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.slots.row_sampling import RowSampling, prepare_row

ROWS, CONTEXT, BLOCK_SIZE, VOCAB_SIZE = 64, 4096, 16, 151_936
_LIMIT_US = 100.0
_ROUNDS = 7


@dataclasses.dataclass(frozen=True)
class Queue:
    """How many requests stand beside the running ones."""

    waiting: int
    finished: int


def host_cost_report(steps: int = 400) -> dict[str, Any]:
    """Microseconds per decode step of 64 sequences at 4,096 tokens, for growing queues.

    The median over steps, the best of seven such medians (other work on the machine can only add);
    "growth" is the costliest queue's divided by the empty one's.
    """
    queues = [Queue(0, 0), Queue(1000, 0), Queue(10_000, 0), Queue(0, 1000), Queue(0, 10_000)]
    rounds = [[measure_host_cost(queue, steps) for queue in queues] for _ in range(_ROUNDS)]
    rows = [
        min(same, key=itemgetter("schedule_and_batch_us")) for same in zip(*rounds, strict=True)
    ]
    totals = [row["schedule_and_batch_us"] for row in rows]
    return {
        "rows": ROWS,
        "context": CONTEXT,
        "steps": steps,
        "queues": rows,
        "growth": max(totals) / totals[0],
        "limit_us": _LIMIT_US,
    }


def measure_host_cost(queue: Queue, steps: int, context: int = CONTEXT) -> dict[str, float]:
    """Medians over `steps` decode steps of 64 sequences at `context` tokens beside `queue`."""
    bench = DecodeBench(queue, steps, context)
    bench.prefill()
    parts = [bench.decode_step() for _ in range(steps)]
    schedule_us, batch_us, update_us = (
        statistics.median(part[i] for part in parts) * 1e6 for i in range(3)
    )
    return {
        "waiting": queue.waiting,
        "finished": queue.finished,
        "schedule_us": schedule_us,
        "batch_us": batch_us,
        "update_us": update_us,
        "schedule_and_batch_us": schedule_us + batch_us,
    }


class DecodeBench:
    """A scheduler and a batch builder with 64 long sequences that are about to decode."""

    def __init__(self, queue: Queue, steps: int, context: int) -> None:
        max_model_len = context + steps + 64
        num_blocks = 1 + ROWS * -(-max_model_len // BLOCK_SIZE)
        self.scheduler = Scheduler(
            BlockPool(num_blocks, BLOCK_SIZE),
            max_num_seqs=ROWS,
            max_num_batched_tokens=8192,
            max_model_len=max_model_len,
        )
        buckets = choose_buckets(
            max_num_seqs=ROWS,
            max_num_batched_tokens=8192,
            max_model_len=max_model_len,
            block_size=BLOCK_SIZE,
            platform="gpu",
        )
        self.builder = BatchBuilder(
            buckets,
            max_num_seqs=ROWS,
            block_size=BLOCK_SIZE,
            vocab_size=VOCAB_SIZE,
            prepare=_prepare,
            draft_texts=DraftTexts(),
        )
        self.in_flight: Schedule | None = None
        for i in range(queue.finished):
            request = self._add(f"finished {i}", [i % 1000 + 1] * 8, max_tokens=1)
            self.scheduler.abort(request.request_id)
        for i in range(ROWS):
            prompt = [(i * 7919 + j) % VOCAB_SIZE for j in range(context - 1)]
            self._add(f"running {i}", prompt, max_tokens=steps + 32)
        for i in range(queue.waiting):
            self._add(f"waiting {i}", [i % 1000 + 1] * 8, max_tokens=8)

    def _add(self, name: str, prompt: list[int], *, max_tokens: int) -> Request:
        params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=max_tokens)
        new = NewRequest(prompt=Prompt(prompt), params=params)
        request = Request(name, new, params)
        self.scheduler.add(request)
        return request

    def prefill(self) -> None:
        """Run steps until all 64 decode."""
        while True:
            schedule = self.scheduler.schedule()
            if schedule is None:
                raise RuntimeError("the scheduler has nothing to run")
            self.builder.build(schedule)
            self.scheduler.update(schedule, [[7]] * len(schedule.rows))
            if schedule.is_decode and len(schedule.rows) == ROWS:
                gc.collect()
                return

    def decode_step(self) -> tuple[float, float, float]:
        """Seconds to schedule, to build the batch, and to settle the step before, as in serving."""
        start = time.perf_counter()
        schedule = self.scheduler.schedule()
        scheduled = time.perf_counter()
        if schedule is None:
            raise RuntimeError("the scheduler has nothing to run")
        self.builder.build(schedule)
        built = time.perf_counter()
        self.scheduler.settle()
        if self.in_flight is not None:
            self.scheduler.update(self.in_flight, [[7]] * ROWS)
        end = time.perf_counter()
        self.in_flight = schedule
        return scheduled - start, built - scheduled, end - built


def _prepare(request: Request) -> RowSampling:
    return prepare_row(
        request.params,
        seed=request.seed,
        vocab_size=VOCAB_SIZE,
        prompt_token_ids=request.prompt_token_ids,
    )


def host_cost_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    header = f"{'waiting':>10}{'finished':>10}{'schedule':>10}{'batch':>10}{'update':>10}  us/step"
    lines = [
        f"{row['waiting']:>10}{row['finished']:>10}{row['schedule_us']:>10.1f}"
        f"{row['batch_us']:>10.1f}{row['update_us']:>10.1f}"
        for row in report["queues"]
    ]
    worst = max(row["schedule_and_batch_us"] for row in report["queues"])
    return [
        f"host cost of a decode step, {report['rows']} sequences at {report['context']} tokens",
        header,
        *lines,
        f"schedule and batch at most {worst:.1f} us (limit {report['limit_us']:.0f}), "
        f"growth with the queues {report['growth']:.2f}x",
    ]
