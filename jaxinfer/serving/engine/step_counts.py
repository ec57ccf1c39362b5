"""Tokens and seconds of an engine's steps, from which its device utilization is computed."""

import dataclasses

STEP_TOKEN_BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the buckets of `StepCounts.step_tokens`; a last bucket is unbounded."""


@dataclasses.dataclass(slots=True)
class StepCounts:
    """Sums over the steps that were read; a multi-step decode of k steps counts as k.

    Steps that were launched before a token was read that ends the answer count, too: the device
    computed them. Idle steps don't: where drafts were right more often than was expected, a launch
    has some left when each of its rows has gained what it may. Their time is part of the launch's.

    A step with any prompt tokens (or recomputed tokens of preempted requests) is a prefill step; in
    every other step all rows decode.

    Attributes:
        prefill_seconds: from the launch, or the end of the previous step, to the end.
        prefill_tokens: tokens fed in rows of more than one token.
        prefill_pairs: pairs of a prefill token and a token that it attends to.
        decode_tokens: tokens fed in decode steps, drafts included.
        decode_context_tokens: tokens whose keys and values the steps read, shared tokens counted
            once; an estimate from the allocated blocks, to half a block a row.
        step_tokens: steps by tokens fed: a count for each bucket of `STEP_TOKEN_BOUNDS`.
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
