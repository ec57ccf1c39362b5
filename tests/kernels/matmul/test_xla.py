"""Values are rounded to the model's dtype where Hugging Face's models round them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.rounding import rounded_add


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_rms_norm_rounds_before_it_multiplies(dtype):
    """Bit for bit the two-step rounding, also where XLA would rather keep float32 between."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 96)).astype(dtype)
    weight = rng.normal(size=96).astype(dtype)
    wide = x.astype(np.float32)
    scale = np.float32(1) / np.sqrt((wide**2).mean(-1, keepdims=True) + np.float32(1e-6))
    expected = (wide * scale).astype(dtype) * weight
    actual = np.asarray(
        jax.jit(rms_norm, static_argnums=2)(jnp.asarray(x), jnp.asarray(weight), 1e-6)
    )
    # The mean's order of summation may flip the last bit of the scale: allow one value in 1,000.
    assert np.mean(actual != expected) < 1e-3
    once = (wide * scale * weight.astype(np.float32)).astype(dtype)
    assert np.mean(actual != once) > 0.05


def test_residual_is_rounded_before_its_norm():
    """A sum that lies between two bfloat16 values reaches the norm as the nearer one."""
    x = jnp.full((4,), 256.0, jnp.bfloat16)
    y = jnp.array([0.9, 1.1, 0.5, -0.4], jnp.bfloat16)
    widened = jax.jit(lambda a, b: rounded_add(a, b).astype(jnp.float32))(x, y)
    np.testing.assert_array_equal(widened, np.asarray(x + y).astype(np.float32))
