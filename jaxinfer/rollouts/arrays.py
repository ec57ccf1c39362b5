"""Rollouts as arrays: of fixed widths with masks, or packed into rows."""

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Array = np.ndarray | jax.Array


class FinishCode(enum.IntEnum):
    """The reason why a completion ended: `CompletionOutput.finish_reason` as a number."""

    STOP = 0
    """Ended by an end-of-sequence or stop token, which is in the completion."""
    LENGTH = 1
    """Ended by `max_tokens` or the model's length."""
    ABORT = 2
    """Aborted, as `update_params` may."""
    ERROR = 3
    """Its request failed. It may have any number of tokens, none included."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Completions of prompts, a pytree of arrays; R rows, the n of a prompt are neighbours.

    P is the width of prompts, C that of completions; ids are `pad_token_id` where a mask is False.

    Attributes:
        prompt_ids: int32 ``[R, P]``, padded on the left.
        prompt_mask: bool ``[R, P]``.
        completion_ids: int32 ``[R, C]``, padded on the right; the end token is included.
        completion_mask: bool ``[R, C]``.
        logprobs: float32 ``[R, C]``, of each completion's token, the end token's included; 0 where
            the mask is False. `EngineConfig.logprobs_mode` chooses the distribution.
        prompt_lengths: int32 ``[R]``.
        lengths: int32 ``[R]``, of completions.
        finish_reasons: int32 ``[R]``, `FinishCode`.
        weight_versions: int32 ``[R]``, `LLM.weight_version` at the row's last token.
        pad_token_id: not an array: part of the tree's structure.
        entropies: float32 ``[R, C]`` with ``SamplingParams(entropy=True)``, else None; as
            `CompletionOutput.entropies`, 0 where the mask is False. So are the next three.
        log_masses: float32 ``[R, C]`` with ``SamplingParams(support=N)``: `Support.log_mass`.
        support_sizes: int32 ``[R, C]`` with it: `Support.num_tokens`.
        support_ids: int32 ``[R, C, N]`` if N is not 0: `Support.token_ids`, then -1.
    """

    prompt_ids: Array
    prompt_mask: Array
    completion_ids: Array
    completion_mask: Array
    logprobs: Array
    prompt_lengths: Array
    lengths: Array
    finish_reasons: Array
    weight_versions: Array
    pad_token_id: int = dataclasses.field(metadata={"static": True})
    entropies: Array | None = None
    log_masses: Array | None = None
    support_sizes: Array | None = None
    support_ids: Array | None = None

    def packed(self, length: int, num_rows: int | None = None) -> "PackedRollouts":
        """Prompts with their completions one after the other, in as few rows as first fit makes.

        Args:
            length: L, tokens of a row.
            num_rows: B, with empty rows at the end; None for as many as needed.

        Returns:
            NumPy arrays.

        Raises:
            ValueError: a prompt with its completion is longer than a row, or `num_rows` is too
                small.
        """
        host = jax.device_get(self)
        totals = (host.prompt_lengths + host.lengths).tolist()
        places, needed = _first_fit(totals, length)
        if num_rows is not None and needed > num_rows:
            raise ValueError(f"num_rows is {num_rows}, but rows of {length} have to be {needed}")
        return _pack(host, places, (needed if num_rows is None else num_rows, length))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class PackedRollouts:
    """Rollouts packed into B rows of L tokens, for attention that knows segments.

    Attributes:
        token_ids: int32 ``[B, L]``; `Rollouts.pad_token_id` after the last segment.
        segment_ids: int32 ``[B, L]``: 1, 2, ... in each row, 0 for padding.
        positions: int32 ``[B, L]``, from 0 in each segment.
        loss_mask: bool ``[B, L]``, True at tokens of completions.
        logprobs: float32 ``[B, L]``, of the token at the same place; 0 where the mask is False.
        rows: int32 ``[B, L]``, each token's row in the `Rollouts`; -1 for padding.
    """

    token_ids: Array
    segment_ids: Array
    positions: Array
    loss_mask: Array
    logprobs: Array
    rows: Array


def _first_fit(totals: list[int], length: int) -> tuple[list[tuple[int, int, int]], int]:
    """Row, first column and segment of each sequence, and the number of rows."""
    filled: list[int] = []
    segments: list[int] = []
    places = []
    for i, total in enumerate(totals):
        if total > length:
            raise ValueError(f"row {i} has {total} tokens, more than length={length}")
        row = next((r for r, used in enumerate(filled) if used + total <= length), len(filled))
        if row == len(filled):
            filled.append(0)
            segments.append(0)
        segments[row] += 1
        places.append((row, filled[row], segments[row]))
        filled[row] += total
    return places, len(filled)


def _pack(
    host: Rollouts, places: list[tuple[int, int, int]], shape: tuple[int, int]
) -> PackedRollouts:
    packed: dict[str, Any] = {
        "token_ids": np.full(shape, host.pad_token_id, np.int32),
        "segment_ids": np.zeros(shape, np.int32),
        "positions": np.zeros(shape, np.int32),
        "loss_mask": np.zeros(shape, bool),
        "logprobs": np.zeros(shape, np.float32),
        "rows": np.full(shape, -1, np.int32),
    }
    for i, (row, start, segment) in enumerate(places):
        prompt, length = int(host.prompt_lengths[i]), int(host.lengths[i])
        middle, stop = start + prompt, start + prompt + length
        packed["token_ids"][row, start:middle] = host.prompt_ids[i][host.prompt_mask[i]]
        packed["token_ids"][row, middle:stop] = host.completion_ids[i, :length]
        packed["segment_ids"][row, start:stop] = segment
        packed["positions"][row, start:stop] = np.arange(stop - start)
        packed["loss_mask"][row, middle:stop] = True
        packed["logprobs"][row, middle:stop] = host.logprobs[i, :length]
        packed["rows"][row, start:stop] = i
    return PackedRollouts(**packed)
