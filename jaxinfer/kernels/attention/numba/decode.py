"""Paged attention of one query a row on a CPU: calls of a compiled function in XLA's programs."""

import itertools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxinfer.cores import usable_cores
from jaxinfer.kernels.attention.numba.kernels import DECODE, DECODE_INT8
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.constants import LOG2_E


def paged_decode_attention(
    q: Float[Array, "B H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> Float[Array, "B H D"]:
    """Decode attention of one query a row on a CPU, in float32; see `Attend`."""
    B, H, D = q.shape
    K = pages.k.shape[2]
    context_lens, block_tables, _ = rows
    first_keys = jnp.zeros_like(context_lens)
    if scoring.window is not None:
        first_keys = jnp.maximum(context_lens - scoring.window, 0)
    scaled = (q * (scoring.scale * LOG2_E)).reshape(B, K, H // K, D)

    scales = () if pages.k_scale is None else (pages.k_scale, pages.v_scale)

    def attend(first: int, end: int) -> Array:
        """Attention outputs of the (row, KV head) pairs from `first` to `end`."""
        out = jax.ShapeDtypeStruct((end - first, H // K, D), q.dtype)
        pair = jnp.array([first], jnp.int32)
        call = jax.ffi.ffi_call(DECODE if not scales else DECODE_INT8, out)
        return call(scaled, pages.k, pages.v, context_lens, first_keys, block_tables, pair, *scales)

    calls = _num_calls(B * K)
    edges = [B * K * call // calls for call in range(calls + 1)]
    outs = [attend(first, end) for first, end in itertools.pairwise(edges)]
    return jnp.concatenate(outs).reshape(q.shape)


def _num_calls(pairs: int) -> int:
    """The number of calls that a step's attention is split into.

    XLA gives some of the calls that are ready to another thread only where more than eight are.
    """
    cores = usable_cores()
    return min(pairs, 8 + 4 * cores) if cores > 1 and pairs > 8 else 1
