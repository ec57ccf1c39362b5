"""Rows of the head: those of the whole matrix, wherever they lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.matmul.op import linear_of
from jaxinfer.model.head_rows import head_rows
from jaxinfer.model.layers.decoder import head_params
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny

IDS = [63, 0, 17, 17, 40]  # of several devices, in no order, one twice
UNTIED = tiny.config(tie_word_embeddings=False)
_RNG = np.random.default_rng(0)
INTEGERS = {
    "weight": jnp.asarray(_RNG.integers(-127, 128, (64, 32), np.int8)),
    "scale": jnp.asarray(_RNG.uniform(0.01, 0.1, 64).astype(np.float32)),
}


def split(head, devices):
    """The head with its vocabulary split; the norm lies on all devices."""
    mesh = make_mesh(devices)
    (axis,) = (name for name in mesh.axis_names if mesh.shape[name] == devices)

    def place(leaf):
        spec = jax.P(axis) if leaf.shape[0] == tiny.CONFIG.vocab_size else jax.P()
        return jax.device_put(leaf, jax.NamedSharding(mesh, spec))

    return jax.tree.map(place, head)


@pytest.mark.parametrize("devices", [None, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["untied", "tied", "int8"])
def test_rows_are_those_of_the_whole_head(kind, dtype, devices):
    params = tiny.params(tiny.CONFIG if kind == "tied" else UNTIED, jnp.dtype(dtype))
    if kind == "int8":
        params["lm_head"] = INTEGERS
    head = head_params(params)
    linear = (
        linear_of(head["model"], "embed_tokens") if kind == "tied" else linear_of(head, "lm_head")
    )
    whole = np.asarray(linear.matrix(jnp.dtype(dtype)), np.float32)
    rows = head_rows(head if devices is None else split(head, devices), IDS)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, whole[IDS])
