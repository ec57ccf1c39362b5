"""A few rows of the head, for the logits of a few tokens."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.matmul.op import linear_of


@jax.jit
def head_rows(head: dict[str, Any], token_ids: Int32[Array, " N"]) -> Float[Array, "N E"]:
    """The rows that a final hidden state is multiplied by for the logits of given tokens.

    Args:
        head: from `Architecture.head_params`, its vocabulary perhaps split over devices; a tree
            without ``lm_head`` is tied. Integers are multiplied by their scales.
        token_ids: ids in [0, V); others are clamped silently.

    Returns:
        Float32; each value is one of the dtype in which the head multiplies.
    """
    model = head["model"]
    linear = (
        linear_of(model, "embed_tokens") if "lm_head" not in head else linear_of(head, "lm_head")
    )
    own = linear.of_outputs(lambda leaf: leaf.at[token_ids].get(mode="clip"))
    return own.matrix(model["norm"].dtype).astype(jnp.float32)
