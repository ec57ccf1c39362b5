"""A few rows of the head, for the logits of a few tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.matmul.linear_leaf import OtherLinear
from jaxinfer.kernels.matmul.op import linear_of


def head_rows(head: Mapping[str, Any], token_ids: Sequence[int]) -> np.ndarray:
    """The rows that a final hidden state is multiplied by for the logits of given tokens.

    Each row is taken on a device that holds it, by a program of that device alone: a sum over
    devices could meet those of a step that another thread launches, in another order.

    Args:
        head: from `Architecture.head_params`, its vocabulary perhaps split over devices of this
            process; a tree without ``lm_head`` is tied. Integers are multiplied by their scales.
        token_ids: N ids in [0, V).

    Returns:
        Float32 ``[N, E]``; each value is one of the dtype in which the head multiplies.
    """
    model = head["model"]
    linear = linear_of(head, "lm_head") if "lm_head" in head else linear_of(model, "embed_tokens")
    ids = np.asarray(token_ids, np.int32)
    own = linear.of_outputs(lambda leaf: jnp.asarray(_rows(leaf, ids)))
    assert not isinstance(own, OtherLinear)  # no head has adapters
    return np.asarray(own.matrix(model["norm"].dtype), np.float32)


def _rows(leaf: jax.Array, ids: np.ndarray) -> np.ndarray:
    """Rows of an array ``[V, ...]`` whose first axis may be split over devices."""
    rows = np.empty((len(ids), *leaf.shape[1:]), leaf.dtype)
    missing = np.ones(len(ids), bool)
    for shard in leaf.addressable_shards:
        start, stop, _ = shard.index[0].indices(leaf.shape[0])
        here = missing & (start <= ids) & (ids < stop)
        if here.any():
            rows[here] = np.asarray(_take(shard.data, ids[here] - start))
            missing &= ~here
    return rows


@jax.jit
def _take(data: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.take(data, ids, axis=0, mode="clip")
