"""The sampler: from logits to tokens on the device, in one of three static modes for a batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxinfer.config import MAX_LOGPROBS, LogprobsMode
from jaxinfer.kernels.collectives.tensor_axis import MeshAxes
from jaxinfer.sampling_params import FULL
from jaxinfer.serving.requests.result import LEFT_VOCAB, NO_TOKEN, NOT_FINITE, OK
from jaxinfer.serving.sampling.custom import (
    CustomSampler,
    LogitsProcessor,
    SamplerState,
    check_logits_processor,
    check_sampler,
    sampler_state,
)
from jaxinfer.serving.sampling.draw import draw_tokens
from jaxinfer.serving.sampling.edits import edit_logits
from jaxinfer.serving.sampling.layout import (
    SamplerMode,
    SamplingArrays,
)
from jaxinfer.serving.sampling.logprobs import largest_logit, ranks, report_log_softmax, top_tokens
from jaxinfer.serving.sampling.masks import mask_logits
from jaxinfer.serving.sampling.measures import Drawn, Measures
from jaxinfer.serving.sampling.rows import RowParameters, row_keys, unpack_rows
from jaxinfer.serving.sampling.truncation import truncate
from jaxinfer.serving.sampling.vocab_axis import VocabAxis
from jaxinfer.serving.sampling.weights import (
    RowDistribution,
    log_weights,
    weights,
    with_temperature,
)

__all__ = [
    "CustomSampler",
    "LogitsProcessor",
    "SamplerState",
    "StepOutput",
    "check_logits_processor",
    "check_sampler",
    "merge",
    "sample",
]


class StepOutput(NamedTuple):
    """The sampler's output for the B rows of a step.

    Attributes:
        tokens: int32 `[B]`, always in [0, V).
        status: int32 `[B]`: `NOT_FINITE` if the logits hold NaN or plus infinity, even at a token
            that is not allowed; `NO_TOKEN` if no token is allowed; `LEFT_VOCAB` if a custom sampler
            returned an id outside the vocabulary; else `OK`. Other values of a row are meaningful
            only with `OK`.
        logprobs: float32 `[B]`, the chosen token's log-probability in the distribution that was
            sampled, for greedy rows at temperature 1; raw ones, if mode "full" reports these, in
            the model's own.
        top_ids: int32 `[B, k]`, the likeliest tokens of the same distribution in descending order;
            only in mode "full".
        top_logprobs: float32 `[B, k]`, their log-probabilities. Truncated and banned tokens have
            minus infinity; raw ones of an `OK` row are finite, unless the model's logits are minus
            infinity themselves. Only in mode "full".
        ranks: int32 `[B]`, 1 for the likeliest token; only in mode "full".
        measures: only where they are asked for.
    """

    tokens: jax.Array
    status: jax.Array
    logprobs: jax.Array
    top_ids: jax.Array | None = None
    top_logprobs: jax.Array | None = None
    ranks: jax.Array | None = None
    measures: Measures | None = None


def sample(
    logits: Float[Array, "B V"],
    arrays: SamplingArrays,
    *,
    mode: SamplerMode,
    truncates: bool = True,
    axis: MeshAxes | None = None,
    max_logprobs: int = MAX_LOGPROBS,
    logprobs_mode: LogprobsMode = "processed_logprobs",
    last_token_ids: jax.Array | None = None,
    logits_processor: LogitsProcessor | None = None,
    sampler: CustomSampler | None = None,
    measure: Callable[[Drawn], Measures] | None = None,
) -> StepOutput:
    """Choose one token a row.

    The order is vLLM's: masks, biases, penalties, then the `logits_processor`, then temperature,
    `min_p`, `top_k`, `top_p`, and a draw. A row's token depends on its own logits, parameters, seed
    and position; not on its batch mates, nor on the mode, as long as the mode suffices, nor, except
    for rounding, on the mesh.

    Args:
        logits: float32 logits; inside a `shard_map` this device's shard of the vocabulary.
        arrays: Each row's sampling parameters, packed for this mode or a more expensive one.
        mode: One that suffices for every row, not "mixed"; static.
        truncates: Whether mode "full" applies `top_k` and `top_p`; static.
        axis: Name of the mesh axis that splits the vocabulary, or None.
        max_logprobs: Number of likeliest tokens that mode "full" reports; static.
        logprobs_mode: Whether mode "full" reports log-probabilities of `logits` as they come
            ("raw_logprobs"), of these at the row's temperature ("temperature_logprobs"), or of the
            distribution that is drawn from; static.
        last_token_ids: int32 `[B]` for custom callables; zeros if None.
        logits_processor: Replaces the logits after all edits, in every mode. With a split
            vocabulary it gets gathered, full logits.
        sampler: Replaces temperature, truncation and draw, in every mode; also gets full logits.
            The log-probabilities are then taken before truncation, at the row's temperature.
        measure: Measures the rows beside, in mode "measured"; static.
    """
    vocab_axis = VocabAxis(axis)
    rows = unpack_rows(arrays.scalars)
    raw, raw_largest, raw_sane = logits, None, None
    edits = arrays.edits if mode in FULL else None
    if edits is not None:
        # A logits processor may hide a NaN of these, which are reported.
        _, raw_largest, sane = largest_logit(logits, vocab_axis)
        raw_sane = sane & (raw_largest > -jnp.inf)
        logits = edit_logits(logits, edits, arrays.token_counts, rows, vocab_axis)
    elif arrays.masks is not None:
        logits = mask_logits(logits, arrays.masks, rows, vocab_axis)

    if last_token_ids is None:
        last_token_ids = jnp.zeros_like(rows.position)
    state: Any = None  # only for callables that a user supplies
    if logits_processor is not None or sampler is not None:
        state = sampler_state(rows, arrays, last_token_ids, vocab_axis)
    if logits_processor is not None:
        whole = logits_processor(vocab_axis.whole(logits), state)
        logits = vocab_axis.local(whole, logits.shape[1])

    best, largest, sane = largest_logit(logits, vocab_axis)
    sane = sane if raw_sane is None else sane & raw_sane
    status = jnp.where(sane, jnp.where(largest > -jnp.inf, OK, NO_TOKEN), NOT_FINITE)
    distribution = with_temperature(largest, rows)
    if sampler is not None:
        tokens = sampler(vocab_axis.whole(logits), state, row_keys(rows))
        vocab_size = vocab_axis.sum(jnp.full_like(tokens, logits.shape[1]))
        in_vocab = (tokens >= 0) & (tokens < vocab_size)
        status = jnp.where((status == OK) & ~in_vocab, LEFT_VOCAB, status)
        tokens = jnp.where(status == OK, tokens, best)
        total = vocab_axis.sum(_weigh(logits, distribution, vocab_axis).sum(1))
    else:
        if mode == "truncate" or (mode in FULL and truncates):
            distribution = truncate(logits, rows, distribution, vocab_axis)
        tokens, total = _draw(logits, rows, best, distribution, vocab_axis)
    measures = None
    if measure is not None:
        measures = measure(Drawn(raw, logits, rows, best, distribution))
    if raw_largest is not None and logprobs_mode != "processed_logprobs":
        settings = logprobs_mode, max_logprobs, vocab_axis
        output = report_raw(raw, raw_largest, tokens, status, distribution, *settings)
    else:
        output = report_drawn(
            logits, tokens, total, status, distribution, mode, max_logprobs, vocab_axis
        )
    return output._replace(measures=measures)


def merge(plain: StepOutput, full: StepOutput, special: Int[Array, "K"]) -> StepOutput:
    """Merge the outputs of B rows, K of them sampled in full.

    Args:
        plain: output of all rows, in mode "temperature".
        full: output of the K special rows, in mode "full".
        special: int32 `[K]`, their indices among all rows; B for none.

    Returns:
        All fields of mode "full"; those that `plain` lacks are zero in rows that are not special.
    """
    rows, count = len(plain.tokens), len(special)
    # One scatter for all fields, because each is a kernel; gathers can be fused.
    place = jnp.full(rows, count, jnp.int32).at[special].set(jnp.arange(count), mode="drop")

    def put(new: jax.Array, old: jax.Array | None) -> jax.Array:
        old = jnp.zeros((rows, *new.shape[1:]), new.dtype) if old is None else old
        is_special = jnp.expand_dims(place < count, range(1, new.ndim))
        return jnp.where(is_special, jnp.take(new, place, axis=0, mode="clip"), old)

    reports = [
        (full.top_ids, plain.top_ids),
        (full.top_logprobs, plain.top_logprobs),
        (full.ranks, plain.ranks),
    ]
    top_ids, top_logprobs, ranks = [None if new is None else put(new, old) for new, old in reports]
    return StepOutput(
        put(full.tokens, plain.tokens),
        put(full.status, plain.status),
        put(full.logprobs, plain.logprobs),
        top_ids,
        top_logprobs,
        ranks,
    )


def _weigh(logits: jax.Array, distribution: RowDistribution, axis: VocabAxis) -> jax.Array:
    return weights(logits, axis.ids(logits.shape[1])[None], distribution)


def _draw(
    logits: jax.Array,
    rows: RowParameters,
    best: jax.Array,
    distribution: RowDistribution,
    axis: VocabAxis,
) -> tuple[jax.Array, jax.Array]:
    """Draw from the distributions, `best` for greedy rows; also return the total weights."""

    def weigh(columns: jax.Array, ids: jax.Array) -> jax.Array:
        return weights(columns, ids, distribution)

    drawn, total = draw_tokens(logits, weigh, row_keys(rows), axis)
    chosen = weigh(axis.take(logits, drawn[:, None]), drawn[:, None])[:, 0]
    # The second condition is for rows without any weight (NaN), whose draw means nothing.
    return jnp.where(rows.greedy | ~(chosen > 0), best, drawn), total


def report_drawn(
    logits: jax.Array,
    tokens: jax.Array,
    total: jax.Array,
    status: jax.Array,
    distribution: RowDistribution,
    mode: SamplerMode,
    max_logprobs: int,
    axis: VocabAxis,
) -> StepOutput:
    """Report tokens in the distribution that is drawn from, of weights that add up to `total`."""
    if mode not in FULL:
        chosen = axis.take(logits, tokens[:, None])
        logprobs = log_weights(chosen, tokens[:, None], distribution) - jnp.log(total)[:, None]
        return StepOutput(tokens, status, logprobs[:, 0])
    top_ids, _ = top_tokens(logits, max_logprobs, axis)
    # One expression for all, so that a token has the same value as chosen and as likeliest.
    ids = jnp.concatenate([tokens[:, None], top_ids], axis=1)
    values = axis.take(logits, ids)
    logprobs = log_weights(values, ids, distribution) - jnp.log(total)[:, None]
    rank = ranks(logits, values[:, 0], axis)
    return StepOutput(tokens, status, logprobs[:, 0], top_ids, logprobs[:, 1:], rank)


def report_raw(
    raw: jax.Array,
    largest: jax.Array,
    tokens: jax.Array,
    status: jax.Array,
    distribution: RowDistribution,
    logprobs_mode: LogprobsMode,
    max_logprobs: int,
    axis: VocabAxis,
) -> StepOutput:
    """Report tokens in the model's own distribution, or in that at the rows' temperature."""
    if logprobs_mode == "temperature_logprobs":
        scale = distribution.inverse_temperature
        raw, largest = raw * scale[:, None], largest * scale
    total = axis.sum(jnp.exp(raw - largest[:, None]).sum(1))
    report = report_log_softmax(raw, tokens, largest, total, max_logprobs, axis)
    return StepOutput(tokens, status, *report)
