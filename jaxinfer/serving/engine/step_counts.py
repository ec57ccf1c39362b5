"""What an engine's steps computed and how long they took; its use of a device follows from it."""

import bisect
import dataclasses
from collections.abc import Callable

from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.schedule import Schedule

STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets of `StepCounts.step_tokens`; one more bucket has no bound."""


@dataclasses.dataclass(slots=True)
class StepCounts:
    """Sums over the steps that were read; a multi-step decode of k steps counts as k.

    A step with any tokens of prompts (or of preempted requests, computed again) is a prefill step;
    in all others every row decodes.

    Attributes:
        prefill_steps: how many there were.
        prefill_seconds: from the launch, or the end of the step before, to the end.
        prefill_tokens: tokens that were fed in rows of more than one.
        prefill_pairs: pairs of such a token and a token that it attends to.
        decode_steps: how many there were.
        decode_seconds: as `prefill_seconds`.
        decode_tokens: tokens that were fed.
        decode_context_tokens: tokens whose keys and values the steps read, those that sequences
            share counted once; an estimate from the blocks held, to half a block a row.
        step_tokens: steps by tokens fed: a count for each bucket of `STEP_TOKEN_BOUNDS`.
        step_tokens_sum: tokens fed by all of them.
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
    """Times steps and counts what they computed; a few additions a step, whatever its rows.

    The device runs steps in order, so that one takes from its launch, or from the end of the step
    before if that came later, until it is read.

    Args:
        pool: the blocks that requests hold.
        clock: seconds.
    """

    def __init__(self, pool: BlockPool, clock: Callable[[], float]) -> None:
        self.counts = StepCounts()
        self._pool = pool
        self._clock = clock
        self._last_end = 0.0

    def launched(self, schedule: Schedule) -> None:
        """Note that a step begins, and what it reads."""
        pool, num_rows = self._pool, len(schedule.rows)
        used = pool.num_usable_blocks - pool.num_free_blocks
        schedule.num_context_tokens = max(
            used * pool.block_size - num_rows * (pool.block_size // 2), num_rows
        )
        schedule.launch_time = self._clock()

    def read(self, schedule: Schedule) -> None:
        """Count a step that has ended."""
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
            counts.decode_tokens += num_steps * num_tokens
            counts.decode_context_tokens += num_steps * schedule.num_context_tokens
