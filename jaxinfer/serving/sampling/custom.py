"""Sampling code that a user supplies: what it is given, and how it is checked beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.serving.sampling.layout import SamplingArrays
from jaxinfer.serving.sampling.rows import RowParameters


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplerState:
    """What a custom callable knows of the batch's B rows beside their logits.

    Rows that only fill up the batch hold zeros. Each row must be treated on its own: which rows
    share a batch changes from step to step.

    Attributes:
        positions: int32 `[B]`, the absolute position, in prompt and output, of the token that is
            about to be chosen; the first token of a prompt has position 0.
        temperature: float32 `[B]`; 0 is greedy.
        seeds: uint32 `[B, 2]`, low and high word of the request's seed.
        last_token_ids: int32 `[B]`, the token at `positions - 1`.
        history: int32 `[B, L]`, prompt and output tokens of rows that use penalties, else None in
            batches without any; valid below `history_lengths`.
        prompt_lengths: int32 `[B]`, how many tokens of `history` are the prompt's, or None.
        history_lengths: int32 `[B]`, how many tokens of `history` are valid, or None.
    """

    positions: jax.Array
    temperature: jax.Array
    seeds: jax.Array
    last_token_ids: jax.Array
    history: jax.Array | None = None
    prompt_lengths: jax.Array | None = None
    history_lengths: jax.Array | None = None


LogitsProcessor = Callable[[jax.Array, SamplerState], jax.Array]
"""`(logits, state) -> logits`, float32 `[B, V]`; see `check_logits_processor`."""

CustomSampler = Callable[[jax.Array, SamplerState, jax.Array], jax.Array]
"""`(logits, state, keys) -> tokens`, int32 `[B]`; see `check_sampler`."""


def sampler_state(
    rows: RowParameters, arrays: SamplingArrays, last_token_ids: jax.Array
) -> SamplerState:
    """Collect the state of a batch."""
    full = arrays.history is not None
    seeds = jnp.stack([rows.seed_low, rows.seed_high], axis=1)
    return SamplerState(
        positions=rows.position,
        temperature=rows.temperature,
        seeds=jax.lax.bitcast_convert_type(seeds, jnp.uint32),
        last_token_ids=last_token_ids,
        history=arrays.history,
        prompt_lengths=rows.prompt_length if full else None,
        history_lengths=rows.history_length if full else None,
    )


def check_logits_processor(processor: LogitsProcessor, *, vocab_size: int, batch: int = 2) -> None:
    """Trace a logits processor on abstract arrays, without computing anything.

    The processor sees float32 logits `[B, V]` after masks, biases and penalties and before
    temperature; banned tokens are minus infinity. It returns logits of the same shape and dtype.

    Raises:
        TypeError: It is not callable, or returns something else than one array, or another dtype.
        ValueError: It returns another shape, or fails while it is traced.
    """
    logits = jax.ShapeDtypeStruct((batch, vocab_size), jnp.float32)
    result = _trace("logits_processor", processor, logits, _abstract_state(batch))
    _expect("logits_processor", result, logits)


def check_sampler(sampler: CustomSampler, *, vocab_size: int, batch: int = 2) -> None:
    """Trace a custom sampler on abstract arrays, without computing anything.

    The sampler sees what a logits processor returns (no temperature, nothing truncated) and one
    random key a row, `[B]`, made of the row's seed and position. It returns token ids, int32
    `[B]`; a row whose id is outside the vocabulary ends with an error.

    Raises:
        TypeError: It is not callable, or returns something else than one array, or another dtype.
        ValueError: It returns another shape, or fails while it is traced.
    """
    logits = jax.ShapeDtypeStruct((batch, vocab_size), jnp.float32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl="threefry2x32"), batch))
    result = _trace("sampler", sampler, logits, _abstract_state(batch), keys)
    _expect("sampler", result, jax.ShapeDtypeStruct((batch,), jnp.int32))


def _abstract_state(batch: int) -> SamplerState:
    ints = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return SamplerState(  # pyright: ignore[reportArgumentType]
        positions=ints,  # pyright: ignore[reportArgumentType]
        temperature=jax.ShapeDtypeStruct((batch,), jnp.float32),  # pyright: ignore[reportArgumentType]
        seeds=jax.ShapeDtypeStruct((batch, 2), jnp.uint32),  # pyright: ignore[reportArgumentType]
        last_token_ids=ints,  # pyright: ignore[reportArgumentType]
    )


def _trace(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    if not callable(function):
        raise TypeError(f"{name} must be callable, got {type(function).__name__}")
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        shape = arguments[0].shape
        raise ValueError(
            f"{name} failed when traced on float32 logits of shape {shape}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _expect(name: str, result: Any, wanted: jax.ShapeDtypeStruct) -> None:
    expected = f"{wanted.dtype.name} of shape {wanted.shape}"
    if not isinstance(result, jax.ShapeDtypeStruct):
        raise TypeError(f"{name} must return one array, {expected}, got {type(result).__name__}")
    if result.dtype != wanted.dtype:
        raise TypeError(f"{name} must return {expected}, got dtype {result.dtype.name}")
    if result.shape != wanted.shape:
        raise ValueError(f"{name} must return {expected}, got shape {result.shape}")
