"""The results of a step as NumPy arrays: views of the one array copied from the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TOKEN, _STATUS, _LOGPROB, _RANK, _TOP = range(5)

NOT_FINITE, OK, LEFT_VOCAB, NO_TOKEN, REJECTED, NOT_DRAFTED = range(6)
"""Statuses of a chosen token: logits with NaN or plus infinity; chosen; a custom sampler's choice
outside the vocabulary; every token masked, or minus infinity in the logits. Two are of none: behind
a draft that was not accepted, and where nothing was drafted."""


PROMPT_LOGPROBS, POOLED = "prompt_logprobs", "pooled"
"""Names of readouts: `TokenScores` ``[num_fed]`` of a row's tokens as predictors of the next, and
float32 ``[E]``, the final hidden state of a prompt's last token."""


@dataclass(frozen=True)
class TokenScores:
    """Chosen tokens and their scores; all arrays share the leading dimensions ``...``.

    Attributes:
        tokens: int32 ``[...]``, each in [0, V).
        ok: bool ``[...]``; whether the token is valid (`OK`).
        logprobs: float32 ``[...]``, or None in mode "greedy".
        ranks: int32 ``[...]``, 1 for the likeliest, 0 in rows whose rank was not computed; only in
            modes "full" and "mixed", else None.
        top_ids: int32 ``[..., k]``, likeliest first; in the same rows and modes.
        top_logprobs: float32 ``[..., k]``; likewise.
        status: int32 ``[...]``: `NOT_FINITE`, `OK`, `LEFT_VOCAB` or `NO_TOKEN`; None if only `ok`
            is known.
    """

    tokens: np.ndarray
    ok: np.ndarray
    logprobs: np.ndarray | None = None
    ranks: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    status: np.ndarray | None = None


NO_SCORES = TokenScores(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.bool_))
"""The scores of a step in which no token was sampled."""


@dataclass(frozen=True)
class StepResult:
    """The results of a finished step.

    Attributes:
        sampled: scores ``[rows, positions]`` in the order of the schedule's rows; entries of rows
            that did not sample, and entries past a row's `num_reserved`, are undefined.
        readouts: values beside tokens, by name: one for each row, None for rows that want none.
        drafts: of a step with drafts, for each row how many were verified, and how many leading
            tokens were accepted; None of other steps, of which all are accepted.
    """

    sampled: TokenScores
    readouts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    drafts: Sequence[tuple[int, int]] | None = None

    @property
    def num_ok(self) -> list[int]:
        """For each row, the number of tokens before its first bad one."""
        return np.cumprod(self.sampled.ok, axis=1, dtype=np.int64).sum(axis=1).tolist()


def unpack_step(
    sampled: np.ndarray,
    readouts: Mapping[str, Sequence[Any]],
    *,
    num_rows: int,
    has_drafts: bool = False,
) -> StepResult:
    """What a step gave the host.

    Args:
        sampled: int32 ``[B, columns]``, or ``[positions, B, columns]``.
        readouts: as in the result.
        num_rows: rows of the schedule, at most B.
        has_drafts: whether the step had drafts.
    """
    by_row = sampled[:, None] if sampled.ndim == 2 else sampled.swapaxes(0, 1)
    scores = unpack_scores(by_row[:num_rows])
    return StepResult(scores, readouts, _count_drafts(scores) if has_drafts else None)


def _count_drafts(scores: TokenScores) -> list[tuple[int, int]]:
    """`StepResult.drafts`, by the statuses of a step with drafts."""
    status = scores.status
    assert status is not None
    num_fed = (status != NOT_DRAFTED).sum(axis=1)
    num_accepted = num_fed - (status == REJECTED).sum(axis=1)
    return list(zip((num_fed - 1).tolist(), num_accepted.tolist(), strict=True))


def unpack_scores(packed: np.ndarray) -> TokenScores:
    """Split a step's packed int32 ``[..., columns]`` into views, without copies."""
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
