"""The ranks of adapters: exact on a GPU, and cut into blocks that fit one elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.kernels.matmul.mosaic.shrink import ROWS, ShrinkConfig, choose, shrink

_BLOCK_BYTES = 227 * 1024  # of shared memory, at most


@given(
    B=st.integers(1, 32).map(lambda n: 8 * n),
    features=st.integers(1, 24).map(lambda n: 64 * n),
    size=st.integers(1, 200).map(lambda n: 64 * n),
)
def test_every_product_is_cut_into_whole_blocks_that_fit(B, features, size):
    c = choose(B, features, size)
    assert features % c.features == 0
    chunks = size // c.splits // 64
    assert chunks * c.splits * 64 == size
    assert chunks % c.depth == 0
    assert 1 <= c.stages <= chunks // c.depth
    others = (c.splits - 1) * ROWS * c.features * 4
    stages = c.stages * c.depth * (ROWS + c.features) * 64 * 2
    assert others + stages + ROWS * c.features * 2 <= _BLOCK_BYTES
    assert c.splits <= 8, "no portable cluster has more blocks"


def _operands(B, features, size, slots=None):
    rng = np.random.default_rng(0)
    x, a = (
        jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((B, size), (features, size))
    )
    owners = jnp.arange(features, dtype=jnp.int32) // 16
    given = np.arange(-(-B // ROWS) * ROWS) % 5 - 1 if slots is None else slots
    return x, a, jnp.asarray(given, jnp.int32), owners


@pytest.mark.parametrize(
    ("operands", "config"),
    [
        (_operands(12, 64, 128), None),
        (_operands(16, 64, 128, slots=[0] * 16), None),
        (_operands(16, 64, 128), ShrinkConfig(64, 1, 3, 1)),
        (_operands(16, 64, 128), ShrinkConfig(48, 1, 2, 1)),
        (_operands(16, 64, 192), ShrinkConfig(64, 2, 1, 1)),
    ],
    ids=["rows", "slots", "stages", "features", "splits"],
)
def test_what_does_not_fit_is_refused(operands, config):
    with pytest.raises(ValueError, match="does not fit"):
        shrink(*operands, config=config)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("B", "features", "size"), [(8, 64, 1024), (72, 192, 3072), (256, 768, 1024)]
)
def test_ranks_match_fp64_and_a_row_keeps_its_own(B, features, size):
    x, a, slots, owners = _operands(B, features, size)
    found = np.asarray(jax.jit(shrink)(x, a, slots, owners), np.float64)
    own = np.asarray(slots)[:B, None] == np.asarray(owners)
    exact = np.where(own, np.asarray(x, np.float64) @ np.asarray(a, np.float64).T, 0.0)
    assert np.linalg.norm(found - exact) / np.linalg.norm(exact) < 4e-3
    assert not found[~own].any()
