"""Custom samplers and logits processors: their arguments, and checks before an engine starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, no_type_check

import jax
import jax.numpy as jnp

from jaxinfer.serving.sampling.layout import IN_OUTPUT, IN_PROMPT, Column, SamplingArrays
from jaxinfer.serving.sampling.rows import RowParameters, row_keys, unpack_rows
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


@no_type_check  # as a pytree it is also rebuilt with tracers, shapes and sentinels
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplerState:
    """The state of a batch's B rows for a custom callable, beside their logits.

    Padding rows hold zeros. Each row must be treated on its own: which rows
    share a batch changes from step to step.

    Attributes:
        positions: int32 `[B]`, the absolute position, in prompt and output, of the token that is
            about to be chosen; the first token of a prompt has position 0.
        temperature: float32 `[B]`; 0 is greedy.
        seeds: uint32 `[B, 2]`, low and high word of the request's seed.
        last_token_ids: int32 `[B]`, the token at `positions - 1`.
        prompt_lengths: int32 `[B]`, tokens of the prompt.
        output_counts: int32 `[B, V]`, the number of times each token was generated so far, in rows
            that use penalties, else 0; None in batches that edit no logits.
        in_prompt: bool `[B, V]`, whether the prompt has the token, in rows that use penalties, else
            False; None in batches that edit no logits.
    """

    positions: jax.Array
    temperature: jax.Array
    seeds: jax.Array
    last_token_ids: jax.Array
    prompt_lengths: jax.Array
    output_counts: jax.Array | None = None
    in_prompt: jax.Array | None = None


LogitsProcessor = Callable[[jax.Array, SamplerState], jax.Array]
"""`(logits, state) -> logits`, float32 `[B, V]`; see `check_logits_processor`."""

CustomSampler = Callable[[jax.Array, SamplerState, jax.Array], jax.Array]
"""`(logits, state, keys) -> tokens`, int32 `[B]`; see `check_sampler`."""


def sampler_state(
    rows: RowParameters,
    arrays: SamplingArrays,
    last_token_ids: jax.Array,
    axis: VocabAxis,
) -> SamplerState:
    """Collect the state of a batch; counts of a split vocabulary are gathered."""
    counts = None
    if arrays.token_counts is not None:
        counts = jnp.where(rows.needs_history[:, None], arrays.token_counts, 0)
        counts = axis.whole(counts)
    seeds = jnp.stack([rows.seed_low, rows.seed_high], axis=1)
    return SamplerState(
        positions=rows.position,
        temperature=rows.temperature,
        seeds=jax.lax.bitcast_convert_type(seeds, jnp.uint32),
        last_token_ids=last_token_ids,
        prompt_lengths=rows.prompt_length,
        output_counts=None if counts is None else counts // IN_OUTPUT,
        in_prompt=None if counts is None else counts & IN_PROMPT != 0,
    )


def check_logits_processor(processor: object, *, vocab_size: int, batch: int = 2) -> None:
    """Trace a logits processor on abstract arrays, without computing anything.

    The processor sees float32 logits `[B, V]` after masks, biases and penalties and before
    temperature; banned tokens are minus infinity. It returns logits of the same shape and dtype.

    Raises:
        TypeError: It is not callable, or returns something else than one array, or another dtype.
        ValueError: It returns another shape, or fails while it is traced.
    """
    result = _trace("logits_processor", processor, lambda: _abstract_inputs(batch, vocab_size)[:2])
    _expect("logits_processor", result, (batch, vocab_size), "float32")


def check_sampler(sampler: object, *, vocab_size: int, batch: int = 2) -> None:
    """Trace a custom sampler on abstract arrays, without computing anything.

    The sampler sees what a logits processor returns (no temperature, nothing truncated) and one
    random key a row, `[B]`, made of the row's seed and position. It returns token ids, int32
    `[B]`; a row whose id is outside the vocabulary ends with an error.

    Raises:
        TypeError: It is not callable, or returns something else than one array, or another dtype.
        ValueError: It returns another shape, or fails while it is traced.
    """
    result = _trace("sampler", sampler, lambda: _abstract_inputs(batch, vocab_size))
    _expect("sampler", result, (batch,), "int32")


def _abstract_inputs(batch: int, vocab_size: int) -> tuple[jax.Array, SamplerState, jax.Array]:
    """Return logits, state and keys; called while tracing, so that nothing is allocated."""
    scalars = jnp.zeros((batch, len(Column)), jnp.int32)
    rows = unpack_rows(scalars)
    last_token_ids = jnp.zeros(batch, jnp.int32)
    state = sampler_state(rows, SamplingArrays(scalars), last_token_ids, VocabAxis())
    return jnp.zeros((batch, vocab_size), jnp.float32), state, row_keys(rows)


def _trace(name: str, function: object, inputs: Callable[[], tuple[Any, ...]]) -> Any:
    if not callable(function):
        raise TypeError(f"{name} must be callable, got {type(function).__name__}")
    try:
        return jax.eval_shape(lambda: function(*inputs()))
    except Exception as error:
        raise ValueError(
            f"{name} failed when it was traced: {type(error).__name__}: {error}"
        ) from error


def _expect(name: str, result: Any, shape: tuple[int, ...], dtype: str) -> None:
    expected = f"{dtype} of shape {shape}"
    if not isinstance(result, jax.ShapeDtypeStruct):
        raise TypeError(f"{name} must return one array, {expected}, got {type(result).__name__}")
    if result.dtype != jnp.dtype(dtype):
        raise TypeError(f"{name} must return {expected}, got dtype {result.dtype.name}")
    if result.shape != shape:
        raise ValueError(f"{name} must return {expected}, got shape {result.shape}")
