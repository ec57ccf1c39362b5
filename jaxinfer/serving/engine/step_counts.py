"""Tokens and seconds of an engine's steps, from which its device utilization is computed."""

import bisect
import dataclasses
from collections.abc import Callable

from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.schedule import Schedule

STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets of `StepCounts.step_tokens`; a last bucket is unbounded."""


@dataclasses.dataclass(slots=True)
class StepCounts:
    """Sums over the steps that were read; a multi-step decode of k steps counts as k.

    A step with any prompt tokens (or recomputed tokens of preempted requests) is a prefill step; in
    every other step all rows decode.

    Attributes:
        prefill_steps: the number of prefill steps.
        prefill_seconds: from the launch, or the end of the previous step, to the end.
        prefill_tokens: tokens fed in rows of more than one token.
        prefill_pairs: pairs of a prefill token and a token that it attends to.
        decode_steps: the number of decode steps.
        decode_seconds: as `prefill_seconds`.
        decode_tokens: tokens fed in decode steps.
        decode_context_tokens: tokens whose keys and values the steps read, shared tokens counted
            once; an estimate from the allocated blocks, to half a block a row.
        step_tokens: steps by tokens fed: a count for each bucket of `STEP_TOKEN_BOUNDS`.
        step_tokens_sum: tokens fed in all steps.
    """

    prefill_steps: int = 0
    prefill_seconds: float = 0.0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    decode_context_tokens: int = 0
    step_tokens: list[int] = dataclasses.field(
        default_factory=lambda: [0] * (len(STEP_TOKEN_BOUNDS) + 1)
    )
    step_tokens_sum: int = 0

    def plus(self, other: "StepCounts") -> "StepCounts":
        """The sums of two engines."""
        total = StepCounts()
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, list):
                setattr(total, field.name, [a + b for a, b in zip(mine, theirs, strict=True)])
            else:
                setattr(total, field.name, mine + theirs)
        return total


class StepClock:
    """Times steps and counts their tokens, at a constant cost a step.

    The device runs steps in order, so a step lasts from its launch, or from the end of the previous
    step if that is later, until it is read.

    Args:
        pool: the block pool of the requests.
        clock: seconds.
    """

    def __init__(self, pool: BlockPool, clock: Callable[[], float]) -> None:
        self.counts = StepCounts()
        self._pool = pool
        self._clock = clock
        self._last_end = 0.0

    def launched(self, schedule: Schedule) -> None:
        """Record a step's launch time and context size."""
        pool, num_rows = self._pool, len(schedule.rows)
        used = pool.num_usable_blocks - pool.num_free_blocks
        schedule.num_context_tokens = max(
            used * pool.block_size - num_rows * (pool.block_size // 2), num_rows
        )
        schedule.launch_time = self._clock()

    def read(self, schedule: Schedule) -> None:
        """Count a finished step."""
        now = self._clock()
        seconds = now - max(schedule.launch_time, self._last_end)
        self._last_end = now
        counts, num_steps, num_tokens = self.counts, schedule.num_steps, schedule.num_tokens
        counts.step_tokens[bisect.bisect_left(STEP_TOKEN_BOUNDS, num_tokens)] += num_steps
        counts.step_tokens_sum += num_steps * num_tokens
        if schedule.num_prefill_tokens:
            counts.prefill_steps += 1
            counts.prefill_seconds += seconds
            counts.prefill_tokens += schedule.num_prefill_tokens
            counts.prefill_pairs += schedule.num_prefill_pairs
        else:
            counts.decode_steps += num_steps
            counts.decode_seconds += seconds
            counts.decode_tokens += _num_decoded(schedule)
            counts.decode_context_tokens += num_steps * schedule.num_context_tokens


def _num_decoded(schedule: Schedule) -> int:
    """Tokens of a decode; rows may have fewer of a multi-step decode than it has steps."""
    if schedule.num_steps == 1:
        return schedule.num_tokens
    return sum([row.num_reserved for row in schedule.rows])  # a generator is a call a row
