"""Packs the sampling parameters of a batch's rows into few arrays: one upload, no device work."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxinfer.sampling_params import FreeLogprobs, SamplingMode, SamplingParams
from jaxinfer.serving.sampling.layout import EDIT_WIDTH, MODES, Column, SamplingArrays

_FLOATS = {
    Column.TEMPERATURE: 0.0,
    Column.TOP_P: 1.0,
    Column.MIN_P: 0.0,
    Column.REPETITION_PENALTY: 1.0,
    Column.PRESENCE_PENALTY: 0.0,
    Column.FREQUENCY_PENALTY: 0.0,
}


@dataclass(eq=False)
class RowSampling:
    """What stays the same about one sequence's sampling; made once by `prepare_row`.

    Attributes:
        params: The request's parameters.
        first_mode: The sampler's mode until `min_tokens` are out.
        settled_mode: The mode from then on.
        scalars: int32 `[len(Column)]`, all but the position and the history's length.
        bias_ids: int32, the tokens of `logit_bias`.
        bias_values: float32, their values.
        unfinished_ids: int32, end-of-sequence and stop tokens, banned while `min_tokens` is not
            reached.
        bad_words: Token ids of each bad word.
        allowed: int32 `[ceil(V / 32)]` bits of the allowed tokens, or None for all.
        history: int32, prompt and output tokens recorded so far; longer than what is valid. Kept
            only for rows with penalties.
        history_length: How many tokens of it are valid.
    """

    params: SamplingParams
    first_mode: SamplingMode
    settled_mode: SamplingMode
    scalars: np.ndarray
    bias_ids: np.ndarray
    bias_values: np.ndarray
    unfinished_ids: np.ndarray
    bad_words: tuple[tuple[int, ...], ...]
    allowed: np.ndarray | None
    history: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    history_length: int = 0

    def mode(self, num_output_tokens: int) -> SamplingMode:
        """Return the least mode that serves the next token after so many output tokens.

        A request that is "full" for its `min_tokens` alone gets cheaper once they are out.
        """
        reached = num_output_tokens >= self.params.min_tokens
        return self.settled_mode if reached else self.first_mode


class BatchRow(NamedTuple):
    """One row of a batch that samples.

    Attributes:
        sampling: What stays the same.
        position: Absolute position of the token to draw: prompt plus output tokens before it.
        output_token_ids: Tokens drawn so far; read only in mode "full", in which the host knows
            them all.
    """

    sampling: RowSampling
    position: int
    output_token_ids: Sequence[int] = ()


def prepare_row(
    params: SamplingParams,
    *,
    seed: int,
    vocab_size: int,
    prompt_token_ids: Sequence[int] | np.ndarray,
    eos_token_ids: Sequence[int] = (),
    bad_words_token_ids: Sequence[Sequence[int]] = (),
    free_logprobs: FreeLogprobs = "all",
) -> RowSampling:
    """Turn a request's parameters into what `pack` copies at each step.

    Args:
        params: Checked parameters; `validate_for_vocab` is called here again, because unchecked
            ids must never reach an index on the device.
        seed: The resolved seed, any 64-bit integer.
        vocab_size: Width V of the logits.
        prompt_token_ids: The prompt, for the repetition penalty.
        eos_token_ids: Tokens that `min_tokens` bans beside `stop_token_ids`.
        bad_words_token_ids: The token ids of each of `params.bad_words`, each at least one token;
            a word may appear several times, tokenized with and without a space before it.
        free_logprobs: Requests whose log-probabilities need no mode "full".

    Raises:
        ValueError: A token id is outside the vocabulary, or there are more edits than a row has
            room for (`layout.EDIT_WIDTH`).
    """
    params.validate_for_vocab(vocab_size)
    bias = params.logit_bias or {}
    unfinished = sorted({*eos_token_ids, *(params.stop_token_ids or ())})
    bad_words = tuple(dict.fromkeys(tuple(word) for word in bad_words_token_ids if len(word)))
    _check_ids("eos_token_ids", unfinished, vocab_size)
    prompt = np.asarray(prompt_token_ids)
    _check_ids("prompt_token_ids", [prompt.min(initial=0), prompt.max(initial=0)], vocab_size)
    for word in bad_words:
        _check_ids("bad_words_token_ids", word, vocab_size)
    edits = len(bias) + len(bad_words) + (len(unfinished) if params.min_tokens else 0)
    if edits > EDIT_WIDTH:
        raise ValueError(
            f"logit_bias, bad_words and stop_token_ids need {edits} logit edits together; "
            f"a request may have {EDIT_WIDTH}"
        )
    first_mode = settled = params.sampling_mode(free_logprobs)
    if params.min_tokens:
        settled = params.clone(min_tokens=0).sampling_mode(free_logprobs)
    row = RowSampling(
        params=params,
        first_mode=first_mode,
        settled_mode=settled,
        scalars=_scalars(params, seed, len(prompt)),
        bias_ids=np.fromiter(bias.keys(), np.int32, len(bias)),
        bias_values=np.fromiter(bias.values(), np.float32, len(bias)),
        unfinished_ids=np.asarray(unfinished, np.int32),
        bad_words=bad_words,
        allowed=_bitmask(params.allowed_token_ids, vocab_size),
    )
    if params.has_penalties:
        row.history = prompt.astype(np.int32)
        row.history_length = len(row.history)
    return row


def batch_mode(rows: Sequence[BatchRow]) -> SamplingMode:
    """Return the least mode that serves every row."""
    levels = [MODES.index(row.sampling.mode(len(row.output_token_ids))) for row in rows]
    return MODES[max(levels, default=0)]


def history_needed(rows: Sequence[BatchRow]) -> int:
    """Return the least `history_width` with which `pack` can serve these rows."""
    lengths = [row.position for row in rows if row.sampling.params.has_penalties]
    return max(lengths, default=0)


def pack(
    rows: Sequence[BatchRow],
    mode: SamplingMode,
    *,
    batch_size: int,
    vocab_size: int,
    history_width: int = 0,
) -> SamplingArrays:
    """Pack a batch for `sampler.sample`; rows beyond `len(rows)` are harmless greedy ones.

    Args:
        rows: At most `batch_size` rows.
        mode: The batch's mode; arrays that it does not read are None.
        batch_size: B of the arrays.
        vocab_size: Width V of the logits.
        history_width: Width of the history in mode "full", at least `history_needed(rows)`.

    Raises:
        ValueError: Too many rows, or a history wider than `history_width`.
    """
    if len(rows) > batch_size:
        raise ValueError(f"{len(rows)} rows do not fit a batch of {batch_size}")
    scalars = np.empty((batch_size, len(Column)), np.int32)
    scalars[len(rows) :] = _PADDING
    if rows:
        np.concatenate([row.sampling.scalars for row in rows], out=scalars[: len(rows)].reshape(-1))
        scalars[: len(rows), Column.POSITION] = [row.position for row in rows]
    if mode != "full":
        return SamplingArrays(scalars)
    if (needed := history_needed(rows)) > history_width:
        raise ValueError(f"history_width {history_width} is below the {needed} tokens of a row")
    history = np.zeros((batch_size, history_width), np.int32)
    edit_ids = np.full((batch_size, EDIT_WIDTH), -1, np.int32)
    edit_values = np.zeros((batch_size, EDIT_WIDTH), np.float32)
    allowed = np.full((batch_size, -(-vocab_size // 32)), -1, np.int32)
    for i, row in enumerate(rows):
        _fill_edits(row, edit_ids[i], edit_values[i])
        if row.sampling.allowed is not None:
            allowed[i] = row.sampling.allowed
        if row.sampling.params.has_penalties:
            length = _record(row)
            history[i, :length] = row.sampling.history[:length]
            scalars[i, Column.HISTORY_LENGTH] = length
    return SamplingArrays(scalars, history, edit_ids, edit_values, allowed)


def _scalars(params: SamplingParams, seed: int, prompt_length: int) -> np.ndarray:
    scalars = _PADDING.copy()
    floats = scalars.view(np.float32)
    if not params.is_greedy:
        floats[Column.TEMPERATURE] = params.temperature
        floats[Column.TOP_P] = params.top_p
        floats[Column.MIN_P] = params.min_p
        scalars[Column.TOP_K] = max(params.top_k, 0)
    floats[Column.REPETITION_PENALTY] = params.repetition_penalty
    floats[Column.PRESENCE_PENALTY] = params.presence_penalty
    floats[Column.FREQUENCY_PENALTY] = params.frequency_penalty
    words = np.array([seed % 2**64], np.uint64).view(np.int32)  # little-endian words
    scalars[Column.SEED_LOW], scalars[Column.SEED_HIGH] = words
    scalars[Column.PROMPT_LENGTH] = prompt_length
    return scalars


def _padding_scalars() -> np.ndarray:
    scalars = np.zeros(len(Column), np.int32)
    for column, value in _FLOATS.items():
        scalars.view(np.float32)[column] = value
    return scalars


_PADDING = _padding_scalars()


def _record(row: BatchRow) -> int:
    """Bring a row's history up to its output, copying only what is new; return its length."""
    sampling = row.sampling
    prompt_length = int(sampling.scalars[Column.PROMPT_LENGTH])
    length = prompt_length + len(row.output_token_ids)
    if length > len(sampling.history):
        grown = np.empty(2 * length, np.int32)
        grown[: sampling.history_length] = sampling.history[: sampling.history_length]
        sampling.history = grown
    if length > sampling.history_length:
        new = row.output_token_ids[sampling.history_length - prompt_length :]
        sampling.history[sampling.history_length : length] = new
        sampling.history_length = length
    return length


def _fill_edits(row: BatchRow, ids: np.ndarray, values: np.ndarray) -> None:
    """Write a row's biases and, after them, its bans."""
    sampling, output = row.sampling, row.output_token_ids
    count = len(sampling.bias_ids)
    ids[:count] = sampling.bias_ids
    values[:count] = sampling.bias_values
    banned = [word[-1] for word in sampling.bad_words if _ends_with(output, word[:-1])]
    if len(output) < sampling.params.min_tokens:
        banned.extend(sampling.unfinished_ids.tolist())
    ids[count : count + len(banned)] = banned
    values[count : count + len(banned)] = -np.inf


def _ends_with(tokens: Sequence[int], suffix: tuple[int, ...]) -> bool:
    return not suffix or tuple(tokens[-len(suffix) :]) == suffix


def _bitmask(ids: Sequence[int] | None, vocab_size: int) -> np.ndarray | None:
    if ids is None:
        return None
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4")


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    for token in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"{name} has token id {token}, outside the vocabulary 0 to {vocab_size - 1}"
            )
