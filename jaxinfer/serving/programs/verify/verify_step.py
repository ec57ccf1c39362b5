"""Samples at several positions of each row, and keeps the last accepted token for the next step.

Pure functions for one device's shards, as in `sample_steps.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.serving.programs.layout import SampledRows
from jaxinfer.serving.programs.sample_steps import sample_step
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.requests.result import TOKEN
from jaxinfer.serving.sampling.layout import Column, SamplerMode, SamplingArrays


class VerifyArrays(NamedTuple):
    """The positions to sample, up to N in each row; NumPy on the host, JAX arrays in a step.

    Attributes:
        ends: int32 ``[B]``, index of each row's last token in the packed ones.
        fed: int32 ``[B, N]``, for a row with k proposals: the token before them, the proposals, and
            then -1; all -1 for rows without.
    """

    ends: Any
    fed: Any


def verify_step(
    head: Mapping[str, Any],
    residual: Float[Array, "T E"],
    rows: SampledRows,
    ends: Int32[Array, " B"],
    fed: Int32[Array, "B N"],
    last_tokens: Int32[Array, " slots"],
    *,
    context: StepContext,
    mode: SamplerMode,
) -> tuple[Int32[Array, " slots"], Int32[Array, "N B columns"]]:
    """Choose a token after each of a row's proposals, and after the token before them.

    Randomness is keyed by seed and position, so that each is the token that a separate step would
    have sampled, if all proposals before it are accepted.

    Args:
        head: from `Architecture.head_params`.
        residual: the residual stream of all tokens, from `prefill_step`.
        rows: from `prefill_step`, with each row's sampling parameters after its last token.
        ends: see `VerifyArrays`, also for `fed`.
        last_tokens: newest token of each slot; donated.
        context: static.
        mode: one that suffices for every row, but not "full" or "mixed"; static.

    Returns:
        The newest tokens, each row's last one that `count_accepted` counts; and the results for the
        host. A row's entries past its k + 1 are meaningless.
    """
    slots, last_fed, arrays = rows
    B, N = fed.shape
    proposed = fed[:, 1:].T
    num_proposed = jnp.sum(proposed >= 0, axis=0, dtype=jnp.int32)
    steps = jnp.arange(N, dtype=jnp.int32)[:, None]
    behind = jnp.maximum(num_proposed[None] - steps, 0).reshape(-1)
    hidden = residual.at[jnp.tile(ends, N) - behind].get(mode="clip")
    last_ids = jnp.where(fed < 0, last_fed[:, None], fed).T.reshape(-1)
    scalars = jnp.tile(arrays.scalars, (N, 1)).at[:, Column.POSITION].add(-behind)
    nowhere = jnp.full_like(last_ids, last_tokens.shape[0])
    last_tokens, packed = sample_step(
        head,
        context.architecture.final_hidden(head, hidden, context.config),
        SampledRows(nowhere, last_ids, SamplingArrays(scalars)),
        last_tokens,
        context=context,
        mode=mode,
    )
    packed = packed.reshape(N, B, -1)
    tokens = packed[:, :, TOKEN]
    agrees = (tokens[:-1] == proposed).astype(jnp.int32)
    last_kept = jnp.cumprod(agrees, axis=0).sum(0, dtype=jnp.int32)
    newest = jnp.take_along_axis(tokens, last_kept[None], axis=0)[0]
    return last_tokens.at[slots].set(newest, mode="drop"), packed
