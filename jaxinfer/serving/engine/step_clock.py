"""Times an engine's steps and counts their tokens, as they are launched and read."""

import bisect
from collections.abc import Callable, Sequence

from jaxinfer.serving.engine.fed_tokens import tokens_fed
from jaxinfer.serving.engine.step_counts import STEP_TOKEN_BOUNDS, StepCounts
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.schedule import Schedule


class StepClock:
    """Times steps and counts their tokens, at a constant cost a step.

    The device runs steps in order, so a step lasts from its launch, or from the end of the previous
    step if that is later, until it is read.
    """

    def __init__(self, pool: BlockPool, clock: Callable[[], float]) -> None:
        self.counts = StepCounts()
        self._pool = pool
        self.now = clock
        self._last_end = 0.0

    def launched(self, schedule: Schedule) -> None:
        """Record a step's launch time and context size."""
        pool, num_rows = self._pool, len(schedule.rows)
        used = pool.num_usable_blocks - pool.num_free_blocks
        schedule.num_context_tokens = max(
            used * pool.block_size - num_rows * (pool.block_size // 2), num_rows
        )
        schedule.launch_time = self.now()

    def read(
        self, schedule: Schedule, drafts: Sequence[Sequence[tuple[int, int]]] | None = None
    ) -> None:
        """Count a finished step, whose `fed` is known now; `drafts` as of `StepResult`."""
        now = self.now()
        seconds = now - max(schedule.launch_time, self._last_end)
        self._last_end = now
        is_one = schedule.num_steps == 1 and drafts is None
        fed = schedule.fed = (schedule.num_tokens,) if is_one else tokens_fed(schedule, drafts)
        counts = self.counts
        for num_tokens in fed:
            counts.step_tokens[bisect.bisect_left(STEP_TOKEN_BOUNDS, num_tokens)] += 1
        counts.step_tokens_sum += sum(fed)
        if schedule.num_prefill_tokens:
            counts.prefill_steps += 1
            counts.prefill_seconds += seconds
            counts.prefill_tokens += schedule.num_prefill_tokens
            counts.prefill_pairs += schedule.num_prefill_pairs
        else:
            counts.decode_steps += len(fed)
            counts.decode_seconds += seconds
            counts.decode_tokens += sum(fed)
            counts.decode_context_tokens += len(fed) * schedule.num_context_tokens
