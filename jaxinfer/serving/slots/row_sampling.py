"""A request's sampling on the host: its packed columns, its logit edits, and its sampler mode."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.sampling_params import FreeLogprobs, SamplingMode, SamplingParams
from jaxinfer.serving.sampling.layout import ALWAYS, EDIT_WIDTH, Column, Need
from jaxinfer.serving.slots.row_edits import RowEdits

_FLOATS = {
    Column.TEMPERATURE: 0.0,
    Column.TOP_P: 1.0,
    Column.MIN_P: 0.0,
    Column.REPETITION_PENALTY: 1.0,
    Column.PRESENCE_PENALTY: 0.0,
    Column.FREQUENCY_PENALTY: 0.0,
}


@dataclass(frozen=True, eq=False)
class RowSampling:
    """What stays the same about one sequence's sampling; made once by `prepare_row`.

    Attributes:
        first_mode: The sampler's mode until `min_tokens` are out.
        later_mode: The mode from then on.
        scalars: int32 `[len(Column)]`, all but the position.
        edits: What changes logits beside penalties; None if nothing does.
    """

    params: SamplingParams
    first_mode: SamplingMode
    later_mode: SamplingMode
    scalars: np.ndarray
    edits: RowEdits | None

    def mode(self, num_output_tokens: int) -> SamplingMode:
        """Return the least mode that serves the token that follows a given number of output tokens.

        A request that is "full" for its `min_tokens` alone gets cheaper once they are out.
        """
        reached = num_output_tokens >= self.params.min_tokens
        return self.later_mode if reached else self.first_mode


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
    """Turn a request's parameters into what steps copy and slots are filled with.

    Args:
        params: Checked parameters; `validate_for_vocab` is called here again, because unchecked
            ids must never reach an index on the device.
        seed: The resolved seed, any 64-bit integer.
        eos_token_ids: Tokens that `min_tokens` bans beside `stop_token_ids`.
        bad_words_token_ids: The token ids of each of `params.bad_words`, each at least one token;
            a word may appear several times, tokenized with and without a space before it.
        free_logprobs: Requests whose log-probabilities need no mode "full".

    Raises:
        ValueError: A token id is outside the vocabulary, or there are more edits than a row has
            room for (`layout.EDIT_WIDTH`).
    """
    params.validate_for_vocab(vocab_size)
    unfinished = sorted({*eos_token_ids, *(params.stop_token_ids or ())})
    bad_words = tuple(dict.fromkeys(tuple(word) for word in bad_words_token_ids if len(word)))
    _check_ids("eos_token_ids", unfinished, vocab_size)
    prompt = np.asarray(prompt_token_ids)
    _check_ids("prompt_token_ids", [prompt.min(initial=0), prompt.max(initial=0)], vocab_size)
    for word in bad_words:
        _check_ids("bad_words_token_ids", word, vocab_size)
    edits = _row_edits(params, unfinished, bad_words, len(prompt), vocab_size)
    has_mask_alone = params.structured_outputs is not None and params.logprobs is None
    # A mask alone is applied in every mode.
    moded = params.clone(structured_outputs=None) if has_mask_alone else params
    first_mode = later_mode = moded.sampling_mode(free_logprobs)
    if params.min_tokens:
        later_mode = moded.clone(min_tokens=0).sampling_mode(free_logprobs)
    scalars = _scalars(params, seed, len(prompt))
    scalars[Column.NEEDS] = (Need.EDITS if edits else 0) | (
        Need.HISTORY if params.has_penalties else 0
    )
    return RowSampling(params, first_mode, later_mode, scalars, edits)


def _row_edits(
    params: SamplingParams,
    unfinished: Sequence[int],
    bad_words: Sequence[tuple[int, ...]],
    prompt_length: int,
    vocab_size: int,
) -> RowEdits | None:
    """Biases, bans and allowed tokens; None if the row has none."""
    biases = [(token, value, ALWAYS) for token, value in (params.logit_bias or {}).items()]
    bans = [(word[0], -np.inf, ALWAYS) for word in bad_words if len(word) == 1]
    if params.min_tokens:
        reached = prompt_length + params.min_tokens
        bans += [(token, -np.inf, reached) for token in unfinished]
    num_phrases = sum(len(word) > 1 for word in bad_words)
    count = len(biases) + len(bans) + num_phrases + (params.thinking_token_budget is not None)
    if count > EDIT_WIDTH:
        raise ValueError(
            f"logit_bias, bad_words and stop_token_ids need {count} logit edits together; "
            f"a request may have {EDIT_WIDTH}"
        )
    allowed = _bitmask(params.allowed_token_ids, vocab_size)
    if not (count or allowed is not None or params.structured_outputs is not None):
        return None
    return RowEdits(tuple(biases + bans), allowed)


def _scalars(params: SamplingParams, seed: int, prompt_length: int) -> np.ndarray:
    """The row's entries of `SamplingArrays.scalars`, without its position."""
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


def _bitmask(ids: Sequence[int] | None, vocab_size: int) -> np.ndarray | None:
    """A bit for each token of the vocabulary, set where it is allowed."""
    if ids is None:
        return None
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4")


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ValueError unless all ids are in the vocabulary."""
    for token in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"{name} has token id {token}, outside the vocabulary 0 to {vocab_size - 1}"
            )
