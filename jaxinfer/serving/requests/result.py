"""The results of a step as NumPy arrays: views of the one array copied from the device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxinfer.serving.requests.scores.token_measures import TokenMeasures

TOKEN, _STATUS, _LOGPROB, _RANK, TOP = range(5)

NOT_FINITE, OK, LEFT_VOCAB, NO_TOKEN, REJECTED, NOT_DRAFTED = range(6)
"""Statuses of a chosen token: logits with NaN or plus infinity; chosen; a custom sampler's choice
outside the vocabulary; every token masked, or minus infinity in the logits. Two are of none: behind
a draft that was not accepted, and where nothing was drafted."""


PROMPT_LOGPROBS, SCORED, POOLED = "prompt_logprobs", "scored_tokens", "pooled"
"""Names of readouts: `TokenScores` ``[num_fed]`` of a row's tokens as predictors of the next, the
same of some of them, with measures, and float32 ``[E]``, a prompt's last final hidden state."""


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
        top_logprobs: float32 ``[..., k]``, of `top_ids`.
        status: int32 ``[...]``: `NOT_FINITE`, `OK`, `LEFT_VOCAB` or `NO_TOKEN`; None if only `ok`
            is known.
        measures: of steps that measure; else None.
    """

    tokens: np.ndarray
    ok: np.ndarray
    logprobs: np.ndarray | None = None
    ranks: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    status: np.ndarray | None = None
    measures: TokenMeasures | None = None


NO_SCORES = TokenScores(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.bool_))
"""The scores of a step in which no token was sampled."""


@dataclass(frozen=True)
class StepResult:
    """The results of a finished step.

    Attributes:
        sampled: scores ``[rows, positions]`` in the order of the schedule's rows; entries of rows
            that did not sample, and entries past a row's `num_reserved`, are undefined.
        readouts: values beside tokens, by name: one for each row, None for rows that want none.
        drafts: of a launch with drafts, for each row and each step that it had a part in, how many
            were verified, and how many tokens were accepted, which lead; None of other launches,
            of which all are accepted.
    """

    sampled: TokenScores
    readouts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    drafts: Sequence[Sequence[tuple[int, int]]] | None = None

    @property
    def num_ok(self) -> list[int]:
        """For each row, the number of tokens before its first bad one."""
        return np.cumprod(self.sampled.ok, axis=1, dtype=np.int64).sum(axis=1).tolist()


def unpack_step(
    sampled: np.ndarray,
    readouts: Mapping[str, Sequence[Any]],
    *,
    num_rows: int,
    unpack: Callable[[np.ndarray], TokenScores],
) -> StepResult:
    """What a step gave the host.

    Args:
        sampled: int32 ``[B, columns]``, ``[positions, B, columns]``, or of a launch with drafts
            ``[steps, positions, B, columns]``.
        readouts: as in the result.
        num_rows: rows of the schedule, at most B.
        unpack: splits the columns.
    """
    if sampled.ndim == 4:
        return _unpack_drafts(sampled.transpose(2, 0, 1, 3)[:num_rows], readouts)
    by_row = sampled[:, None] if sampled.ndim == 2 else sampled.swapaxes(0, 1)
    return StepResult(unpack(by_row[:num_rows]), readouts)


def _unpack_drafts(sampled: np.ndarray, readouts: Mapping[str, Sequence[Any]]) -> StepResult:
    """The result of steps with drafts, int32 ``[B, steps, positions, columns]``."""
    status = sampled[..., _STATUS]
    num_fed = (status != NOT_DRAFTED).sum(axis=2)
    num_accepted = num_fed - (status == REJECTED).sum(axis=2)
    drafts = [
        [(fed - 1, accepted) for fed, accepted in zip(*row, strict=True) if fed]
        for row in zip(num_fed.tolist(), num_accepted.tolist(), strict=True)
    ]
    by_row = sampled.reshape(len(sampled), -1, sampled.shape[-1])
    if sampled.shape[1] > 1:  # what was accepted leads
        status = by_row[..., _STATUS]
        is_behind = (status == REJECTED) | (status == NOT_DRAFTED)
        order = np.argsort(is_behind, axis=1, kind="stable")
        by_row = np.take_along_axis(by_row, order[..., None], axis=1)
    return StepResult(unpack_scores(by_row), readouts, drafts)


def unpack_scores(packed: np.ndarray) -> TokenScores:
    """Split a step's packed int32 ``[..., columns]`` into views, without copies."""
    columns = packed.shape[-1]
    status = packed[..., _STATUS]
    scores = {"tokens": packed[..., TOKEN], "ok": status == OK, "status": status}
    if columns > _LOGPROB:
        scores["logprobs"] = packed[..., _LOGPROB].view(np.float32)
    if columns > _RANK:
        k = (columns - TOP) // 2
        scores["ranks"] = packed[..., _RANK]
        scores["top_ids"] = packed[..., TOP : TOP + k]
        scores["top_logprobs"] = packed[..., TOP + k :].view(np.float32)
    return TokenScores(**scores)
