"""Measures of a row's distributions beside log-probabilities: entropy, support, labels.

All are reductions over the vocabulary; nothing of vocabulary size is stored.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxinfer.config import LogprobsMode
from jaxinfer.serving.sampling.logprobs import top_tokens
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.vocab_axis import VocabAxis
from jaxinfer.serving.sampling.weights import (
    RowDistribution,
    log_weights,
    scaled_logits,
    with_temperature,
)


class Measures(NamedTuple):
    """The measures of B rows; `scores/token_measures.py` is what the host makes of them.

    Attributes:
        entropy: float32 `[B]`, nats, of the model's own distribution: at temperature 1 where raw
            log-probabilities are reported, else at the row's temperature.
        size: int32 `[B]`, the number of tokens that could have been drawn.
        log_mass: float32 `[B]`, the logarithm of their share of the probability before `min_p`,
            `top_k` and `top_p`.
        drawn_entropy: float32 `[B]`, nats, of the distribution that was drawn from.
        least: float32 `[B]`, the smallest log-probability in the distribution that was drawn from.
        top_ids: int32 `[B, k]`, the likeliest tokens after all edits; those that could have been
            drawn come first.
        labels: float32 `[B, L]`, log-probabilities of given tokens, of the distribution that is
            reported.
    """

    entropy: Float[Array, "B"]
    size: Int[Array, "B"]
    log_mass: Float[Array, "B"]
    drawn_entropy: Float[Array, "B"]
    least: Float[Array, "B"]
    top_ids: Int[Array, "B k"]
    labels: Float[Array, "B L"]

    def pack(self) -> Int[Array, "B columns"]:
        """All of it as int32 columns in this order, floats by their bits."""
        parts = [part if part.ndim == 2 else part[:, None] for part in self]
        bits = [
            part if part.dtype == jnp.int32 else lax.bitcast_convert_type(part, jnp.int32)
            for part in parts
        ]
        return jnp.concatenate(bits, axis=1)


class Drawn(NamedTuple):
    """What rows are drawn from.

    Attributes:
        raw: float32 `[B, V]`, the model's logits, this device's shard of them.
        logits: the same after all edits.
        rows: the rows' parameters.
        best: int32 `[B]`, the likeliest tokens, which greedy rows take.
        distribution: after temperature and truncation, of `logits`.
    """

    raw: Float[Array, "B V"]
    logits: Float[Array, "B V"]
    rows: RowParameters
    best: Int[Array, "B"]
    distribution: RowDistribution

    def weights(self, axis: VocabAxis) -> Float[Array, "B V"]:
        """Unnormalised probabilities of the draw; of greedy rows those at temperature 1."""
        ids = axis.ids(self.logits.shape[1])[None]
        return jnp.exp(log_weights(self.logits, ids, self.distribution))


def measure(
    drawn: Drawn,
    *,
    labels: Int[Array, "B L"],
    count: int,
    logprobs_mode: LogprobsMode,
    axis: VocabAxis,
) -> Measures:
    """Measure the distributions of B rows.

    Args:
        drawn: what the rows are drawn from.
        labels: ids in [0, V) whose log-probabilities are wanted; anything valid for padding.
        count: k, the number of likeliest tokens.
        logprobs_mode: of the reported log-probabilities.
        axis: splits the vocabulary.
    """
    raw, logits, rows, best, distribution = drawn
    own = with_temperature(axis.stack(raw.max(-1)).max(-1), rows)
    if logprobs_mode == "raw_logprobs":
        own = own._replace(inverse_temperature=jnp.ones_like(own.largest))
    own_scaled = scaled_logits(raw, own)
    own_total = axis.sum(jnp.exp(own_scaled).sum(1))

    ids = axis.ids(logits.shape[1])[None]
    scaled = scaled_logits(logits, distribution)
    kept_log = log_weights(logits, ids, distribution)
    # Greedy rows have one token, whatever their temperature of 1 leaves.
    kept_log = jnp.where(rows.greedy[:, None] & (ids != best[:, None]), -jnp.inf, kept_log)
    total = axis.sum(jnp.exp(scaled).sum(1))
    kept_total = axis.sum(jnp.exp(kept_log).sum(1))
    is_kept = kept_log > -jnp.inf
    least = axis.stack(jnp.where(is_kept, kept_log, jnp.inf).min(1)).min(1)
    is_processed = logprobs_mode == "processed_logprobs"
    taken = axis.take(logits if is_processed else raw, labels)
    if is_processed:
        drawn_total = axis.sum(drawn.weights(axis).sum(1))
        label_logprobs = log_weights(taken, labels, distribution) - jnp.log(drawn_total)[:, None]
    else:
        label_logprobs = scaled_logits(taken, own) - jnp.log(own_total)[:, None]
    return Measures(
        entropy=_entropy(own_scaled, own_total, axis),
        size=axis.sum(is_kept.astype(jnp.int32).sum(1)),
        log_mass=jnp.log(kept_total) - jnp.log(total),
        drawn_entropy=_entropy(kept_log, kept_total, axis),
        least=least - jnp.log(kept_total),
        top_ids=top_tokens(logits, count, axis)[0],
        labels=label_logprobs,
    )


def _entropy(
    log_weight: Float[Array, "B V"], total: Float[Array, "B"], axis: VocabAxis
) -> Float[Array, "B"]:
    """The entropy of weights that add up to `total`; tokens of weight 0 add nothing."""
    weight = jnp.exp(log_weight)
    terms = jnp.where(weight > 0, weight * log_weight, 0.0)
    return jnp.log(total) - axis.sum(terms.sum(1)) / total
