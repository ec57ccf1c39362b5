"""Programs that score some of a prefill step's tokens with its hidden states, and measure them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.sample_steps import pack_output
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.sampling.given_tokens import report_given
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.vocab_axis import VocabAxis

_ROWS = 128  # tokens whose logits are in memory at once


class GivenColumn(IntEnum):
    """Columns of the tokens to score, before their labels; floats are stored by their bits."""

    PLACE = 0
    """Index of the token before it among the step's; -1 for padding, which comes last."""
    TOKEN = 1
    TEMPERATURE = 2
    TOP_K = 3
    TOP_P = 4
    MIN_P = 5


NUM_GIVEN_COLUMNS = len(GivenColumn) + MAX_LABELS


@dataclass(frozen=True)
class ScoredTokensKey:
    """The key of a program that scores some of a prefill step's tokens."""

    tokens: int


class ScoredTokensKind(ProgramKind[ScoredTokensKey]):
    """Programs that score tokens, keyed by the number of tokens in a step.

    None is compiled before the first request: few engines ever need one.
    """

    key_type = ScoredTokensKey
    uses_pages = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[ScoredTokensKey]:
        """No keys: the programs are compiled at their first use."""
        return []

    def program(self, programs: Programs, key: ScoredTokensKey) -> Program:
        """The program of `scored_tokens_step`."""
        run = functools.partial(scored_tokens_step, context=programs.context)
        residual = programs.whole((key.tokens, programs.context.config.hidden_size), programs.dtype)
        arguments = (
            programs.context.architecture.head_params(programs.params),
            residual,
            programs.whole((key.tokens, NUM_GIVEN_COLUMNS)),
        )
        return programs.sharded("scored_tokens_step", run, arguments, WHOLE, donate=())

    def options(self, key: ScoredTokensKey, *, num_devices: int) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)


def scored_tokens_step(
    head: Mapping[str, Any],
    residual: Float[Array, "T E"],
    given: Int32[Array, "T columns"],
    *,
    context: StepContext,
) -> Int32[Array, "T columns"]:
    """Log-probabilities and measures of given tokens, a few rows of logits at a time.

    Args:
        head: from `Architecture.head_params`.
        residual: the residual stream from `prefill_step`.
        given: the tokens to score, by `GivenColumn`, then labels; ids in [0, V).
        context: static.

    Returns:
        The columns of `sample_full_step` in mode "measured"; zeros for padding.
    """
    axis, model = VocabAxis(context.axis), context.architecture
    T = len(given)
    chunk = min(_ROWS, T)
    given = jnp.pad(given, ((0, -T % chunk), (0, 0)), constant_values=-1)
    num_wanted = (given[:, GivenColumn.PLACE] >= 0).sum(dtype=jnp.int32)

    def score(block: Int32[Array, "chunk columns"]) -> Int32[Array, "chunk columns"]:
        x = residual.at[block[:, GivenColumn.PLACE]].get(mode="clip")
        logits = model.lm_head(head, model.final_hidden(head, x, context.config))
        block = jnp.maximum(block, 0)  # padding
        output = report_given(
            logits,
            block[:, GivenColumn.TOKEN],
            _parameters(block),
            block[:, len(GivenColumn) :],
            count=context.num_logprobs,
            logprobs_mode=context.logprobs_mode,
            axis=axis,
        )
        return pack_output(output)

    def score_next(i: jax.Array, scores: jax.Array) -> jax.Array:
        block = lax.dynamic_slice_in_dim(given, i * chunk, chunk)
        return lax.dynamic_update_slice_in_dim(scores, score(block), i * chunk, 0)

    columns = jax.eval_shape(score, given[:chunk]).shape[1]
    scores = jnp.zeros((len(given), columns), jnp.int32)
    num_blocks = (num_wanted + chunk - 1) // chunk
    return lax.fori_loop(0, num_blocks, score_next, scores)[:T]


def _parameters(given: Int32[Array, "B columns"]) -> RowParameters:
    """What the reports of given tokens read of their requests' parameters."""
    nothing = jnp.zeros(len(given), jnp.int32)

    def floats(column: GivenColumn) -> jax.Array:
        return lax.bitcast_convert_type(given[:, column], jnp.float32)

    return RowParameters(
        temperature=floats(GivenColumn.TEMPERATURE),
        top_k=given[:, GivenColumn.TOP_K],
        top_p=floats(GivenColumn.TOP_P),
        min_p=floats(GivenColumn.MIN_P),
        seed_low=nothing,
        seed_high=nothing,
        position=nothing,
        repetition_penalty=nothing.astype(jnp.float32),
        presence_penalty=nothing.astype(jnp.float32),
        frequency_penalty=nothing.astype(jnp.float32),
        prompt_length=nothing,
        needs=nothing,
    )
