"""Scores of given tokens as a sampler would report them, had it drawn them."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxinfer.config import LogprobsMode
from jaxinfer.serving.requests.result import NO_TOKEN, NOT_FINITE, OK
from jaxinfer.serving.sampling.logprobs import largest_logit
from jaxinfer.serving.sampling.measures import Drawn, measure
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.sampler import StepOutput, report_drawn, report_raw
from jaxinfer.serving.sampling.truncation import truncate
from jaxinfer.serving.sampling.vocab_axis import VocabAxis
from jaxinfer.serving.sampling.weights import LARGEST_KEY, RowDistribution, with_temperature


def report_given(
    logits: Float[Array, "B V"],
    tokens: Int[Array, "B"],
    rows: RowParameters,
    labels: Int[Array, "B L"],
    *,
    count: int,
    logprobs_mode: LogprobsMode,
    axis: VocabAxis,
) -> StepOutput:
    """What mode "measured" reports of rows without edits in which these tokens were drawn.

    Args:
        logits: float32 logits, this device's shard of them.
        tokens: ids in [0, V).
        rows: temperature and truncation of each row; nothing else is read.
        labels: ids in [0, V) whose log-probabilities are wanted.
        count: k, the number of likeliest tokens.
        logprobs_mode: the distribution that is reported.
        axis: splits the vocabulary.
    """
    best, largest, sane = largest_logit(logits, axis)
    status = jnp.where(sane, jnp.where(largest > -jnp.inf, OK, NO_TOKEN), NOT_FINITE)
    distribution = _truncated(logits, rows, with_temperature(largest, rows), axis)
    drawn = Drawn(logits, logits, rows, best, distribution)
    measures = measure(drawn, labels=labels, count=count, logprobs_mode=logprobs_mode, axis=axis)
    if logprobs_mode == "processed_logprobs":
        weights = drawn.weights(axis)
        total = axis.sum(weights.sum(1))
        output = report_drawn(logits, tokens, total, status, distribution, "measured", count, axis)
    else:
        output = report_raw(
            logits, largest, tokens, status, distribution, logprobs_mode, count, axis
        )
    return output._replace(measures=measures)


def _truncated(
    logits: Float[Array, "B V"], rows: RowParameters, before: RowDistribution, axis: VocabAxis
) -> RowDistribution:
    """`truncate`, which searches the logits, only where a row asks for it."""
    every = before._replace(last_tie=jnp.full_like(before.threshold, LARGEST_KEY))
    is_narrowed = ((rows.top_k > 0) | (rows.top_p < 1.0)) & ~rows.greedy
    return lax.cond(is_narrowed.any(), lambda: truncate(logits, rows, before, axis), lambda: every)
