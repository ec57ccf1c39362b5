"""The attention op refuses what an implementation can't do."""

import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.policy import Kernels


def test_kernels_refuse_to_drop_the_causal_mask():
    q, pages = jnp.zeros((2, 2, 64)), jnp.zeros((2, 8, 1, 64))
    ints = jnp.zeros(2, jnp.int32)
    with pytest.raises(ValueError, match="causal only"):
        paged_attention(
            q,
            Pages(pages, pages),
            ints,
            ints[:1],
            ints[None],
            scale=1.0,
            causal=False,
            kernels=Kernels("mosaic"),
        )
