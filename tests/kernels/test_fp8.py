"""Rounding to float8_e4m3fn that XLA can't drop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import fp8
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_VALUES = np.arange(128, dtype=np.uint8).view(jnp.float8_e4m3fn).astype(np.float32)[:127]


def test_values_are_rounded_as_a_conversion_rounds_them():
    """Every value, every tie, both neighbours of each tie, and all that is too small."""
    ties = (_VALUES[1:] + _VALUES[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(end)) for end in (0, 448)]
    tiny = np.float32(2.0**-9) * np.linspace(0, 8, 1001, dtype=np.float32)
    values = np.concatenate([_VALUES, ties, *beside, tiny])
    values = jnp.asarray(np.concatenate([values, -values]))
    for rounded in (fp8.rounded, jax.jit(fp8.rounded)):
        got = rounded(values)
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, values.astype(fp8.FP8).astype(jnp.float32))
    assert np.isnan(fp8.rounded(jnp.float32(np.nan)))


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize("inputs", ["token", "group", "tensor"])
def test_compiled_for_a_gpu_inputs_are_still_rounded(inputs):
    """Where a conversion and the one back, which stand for the rounding, are both gone."""

    def shape(*sizes, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(sizes, dtype)

    scale = shape(2, 2) if inputs == "group" else shape(256)
    linear = QuantizedLinear(
        shape(256, 256, dtype=fp8.FP8), scale, input_scale=shape(), inputs=inputs
    )
    x = shape(24, 256, dtype=jnp.bfloat16)
    text = compile_for_h200(lambda linear, x: linear.rounded_inputs(x), linear, x).as_text()
    assert "mantissa_bits=3" in text
