"""NaN anywhere in a row is seen by every format, also by XLA on CPUs, whose maximum drops it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import fp8, int4, int8


@pytest.mark.parametrize("module", [fp8, int8, int4])
@pytest.mark.parametrize("shape", [(1, 4096), (64, 128), (3, 5)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_with_nan_has_no_scale_and_changes_no_other(module, shape, dtype):
    rows = np.random.default_rng(0).standard_normal(shape).astype(jnp.dtype(dtype))
    quantize = jax.jit(module.quantize)
    _, sound = quantize(rows)
    for column in range(0, shape[1], max(1, shape[1] // 40)):
        given = rows.copy()
        given[-1, column] = np.nan
        _, scale = quantize(given)
        assert np.isnan(scale[-1])
        np.testing.assert_array_equal(scale[:-1], sound[:-1])
