"""What the host reads of a step: NumPy arrays, taken out of the one array that was copied."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TOKEN, _STATUS, _LOGPROB, _RANK, _TOP = range(5)

OK = 1
LEFT_VOCAB = 2
"""Statuses of a chosen token; any other: the logits were not finite, or nothing was allowed."""


@dataclass(frozen=True)
class TokenScores:
    """Chosen tokens and what is known of them; leading dimensions ``...`` are the same in all.

    Attributes:
        tokens: int32 ``[...]``, each in [0, V).
        ok: bool ``[...]``; False where the logits were not finite or nothing was allowed.
        logprobs: float32 ``[...]``, or None in mode "greedy".
        ranks: int32 ``[...]``, 1 for the likeliest, 0 in rows whose rank was not computed; only in
            modes "full" and "mixed", else None.
        top_ids: int32 ``[..., k]``, likeliest first; in the same rows and modes.
        top_logprobs: float32 ``[..., k]``; likewise.
        status: int32 ``[...]``, `OK` where `ok`, `LEFT_VOCAB` where a custom sampler's choice is
            no token; None where nobody knows more than `ok`.
    """

    tokens: np.ndarray
    ok: np.ndarray
    logprobs: np.ndarray | None = None
    ranks: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    status: np.ndarray | None = None


NO_SCORES = TokenScores(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.bool_))
"""Of tokens that were not sampled."""


@dataclass(frozen=True)
class StepResult:
    """A finished step.

    Attributes:
        sampled: scores ``[rows, positions]`` in the order of the schedule's rows; entries of rows
            that did not sample, and those past a row's `num_reserved`, mean nothing.
        prompt: scores ``[num_tokens]`` of the step's packed tokens as predictors of their
            successors, if some row asked for prompt log-probabilities. Rows follow each other as
            in the schedule; a row's entry i belongs to the token at position ``start + i + 1``.
        num_accepted: leading tokens of each row that count (`count_accepted`), if some row had
            proposals; else None, and all do.
    """

    sampled: TokenScores
    prompt: TokenScores | None = None
    num_accepted: Sequence[int] | None = None

    @property
    def num_ok(self) -> list[int]:
        """For each row, how many of its tokens come before the first bad one."""
        return np.cumprod(self.sampled.ok, axis=1, dtype=np.int64).sum(axis=1).tolist()


def count_accepted(proposed: Sequence[int], sampled: Sequence[int]) -> int:
    """How many of a row's sampled tokens count: up to the first that was proposed otherwise.

    Args:
        proposed: k tokens that were fed.
        sampled: k + 1 tokens: those sampled in the places of these, and the one after them.
    """
    for i, token_id in enumerate(proposed):
        if sampled[i] != token_id:
            return i + 1
    return len(proposed) + 1


def unpack_scores(packed: np.ndarray) -> TokenScores:
    """Split int32 ``[..., columns]`` as a step packs it; views, nothing is copied."""
    columns = packed.shape[-1]
    status = packed[..., _STATUS]
    scores = {"tokens": packed[..., TOKEN], "ok": status == OK, "status": status}
    if columns > _LOGPROB:
        scores["logprobs"] = packed[..., _LOGPROB].view(np.float32)
    if columns > _RANK:
        k = (columns - _TOP) // 2
        scores["ranks"] = packed[..., _RANK]
        scores["top_ids"] = packed[..., _TOP : _TOP + k]
        scores["top_logprobs"] = packed[..., _TOP + k :].view(np.float32)
    return TokenScores(**scores)
