"""The elementwise kernels round exactly as the model does; lowered for a GPU, run on one or not."""

import functools
import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.norms.mosaic import add_norm as fused
from jaxinfer.kernels.norms.mosaic.silu_mul import silu_mul
from jaxinfer.kernels.norms.mosaic.silu_mul import supports as supports_silu_mul
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import Kernels
from jaxinfer.kernels.rounding import narrow, rounded, rounded_add
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerContext
from jaxinfer.model.layers.decoder import decoder_layer
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_DTYPES = [jnp.bfloat16, jnp.float16]


@pytest.fixture
def _interpret(monkeypatch):
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)


def _draw(seed, dtype, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def _same(got, expected, allowed=0.0):
    """Equal but for the last bit of at most a share `allowed` of the values."""
    bit = float(jnp.finfo(got.dtype).smallest_subnormal)  # float16 has them near 1e-6
    got, expected = np.asarray(got, np.float32), np.asarray(expected, np.float32)
    np.testing.assert_allclose(got, expected, rtol=2**-7, atol=1.01 * bit)
    assert (got != expected).mean() <= allowed


def _check_add_norm(T, E, dtype, allowed):
    x, delta, weight = _draw(0, dtype, T, E), _draw(1, dtype, T, E), _draw(2, dtype, E)
    total, normal = fused.add_norm(x, delta, weight, eps=1e-6)
    _same(total, rounded_add(x, delta))
    _same(normal, rms_norm(total, weight, 1e-6), allowed)
    other = _draw(3, dtype, T, E)
    total, normal = fused.add_norm(x, delta, weight, other, eps=1e-6)
    _same(total, rounded_add(x, rounded_add(delta, other)))
    _same(normal, rms_norm(total, weight, 1e-6), allowed)


def _check_silu_mul(T, F, dtype, allowed):
    gate, up = _draw(0, dtype, T, F) * 3, _draw(1, dtype, T, F)
    opened = rounded(jax.nn.silu(gate.astype(jnp.float32)), dtype)
    expected = narrow(opened * up.astype(jnp.float32), dtype)
    _same(jax.jit(silu_mul)(gate, up), expected, allowed)


@pytest.mark.usefixtures("_interpret")
@pytest.mark.parametrize(
    ("T", "E", "dtype"),
    [
        (5, 768, _DTYPES[0]),
        (2, 2560, _DTYPES[1]),
        pytest.param(5, 768, _DTYPES[1], marks=pytest.mark.slow("alone")),
        pytest.param(2, 2560, _DTYPES[0], marks=pytest.mark.slow("alone")),
    ],
)
def test_add_norm_equals_the_model_in_the_interpreter(T, E, dtype):
    _check_add_norm(T, E, dtype, allowed=1e-3)


@pytest.mark.usefixtures("_interpret")
@pytest.mark.parametrize("dtype", _DTYPES)
def test_silu_mul_equals_the_model_in_the_interpreter(dtype):
    _check_silu_mul(6, 512, dtype, allowed=1e-3)


# The GPU's root and exponential are approximate in their last bits.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("T", "E"), [(1, 1024), (255, 2560), (4097, 1024), (64, 4096)])
def test_add_norm_equals_the_model(T, E, dtype):
    _check_add_norm(T, E, dtype, allowed=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("T", "F"), [(1, 3072), (3, 9728 * 2), (8192, 3072)])
def test_silu_mul_equals_the_model(T, F, dtype):
    _check_silu_mul(T, F, dtype, allowed=1e-2)


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@needs_plugin
@pytest.mark.parametrize(("T", "E", "F"), [(4, 1024, 3072), (8192, 4096, 12288)])
def test_each_is_one_kernel(T, E, F):
    def half_layer(x, delta, weight, gate, up):
        return fused.add_norm(x, delta, weight, eps=1e-6), silu_mul(gate, up)

    residual, inner = _shape(T, E), _shape(T, F)
    compiled = compile_for_h200(half_layer, residual, residual, _shape(E), inner, inner)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') == 2
    assert "fusion(" not in compiled.as_text()


@needs_plugin
def test_between_a_long_prefills_products_every_kernel_is_one_of_these():
    """The stream is written once per addition; XLA alone would add up several layers' outputs."""
    E, F, T = 256, 512, 1024
    heads = {name: _shape(E, E) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    mlp = {"gate_proj": _shape(F, E), "up_proj": _shape(F, E), "down_proj": _shape(E, F)}
    norms = {"input_layernorm": _shape(E), "post_attention_layernorm": _shape(E)}
    layer = {"self_attn": heads, "mlp": mlp, **norms}
    config = ModelConfig(
        vocab_size=64,
        hidden_size=E,
        intermediate_size=F,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        rope_theta=10_000.0,
        max_position_embeddings=T,
        tie_word_embeddings=True,
    )

    kernels = Kernels("mosaic")
    context = LayerContext(config, LayerKind(), lambda _, heads: sum(heads), kernels=kernels)

    def two_layers(x, first, second):
        residual = begin(x, kernels=kernels)
        for layer in (first, second):
            residual = decoder_layer(layer, residual, context)
        return residual.summed()

    text = compile_for_h200(two_layers, _shape(T, E), layer, layer).as_text()
    lines = [line for line in text.splitlines() if 'custom_call_target="mosaic_gpu' in line]
    names = re.findall(r'op_name="[^"]*/(\w+)/\w+"', "\n".join(lines))
    assert Counter(names) == {"add_norm": 4, "silu_mul": 2}


@pytest.mark.parametrize(
    ("size", "dtype"), [(1000, "bfloat16"), (1024, "float32"), (16384, "bfloat16")]
)
def test_rows_that_cannot_be_normalised_are_refused(size, dtype):
    assert not fused.supports(size, dtype)
    x = jnp.zeros((2, size), dtype)
    with pytest.raises(ValueError, match="multiple of 256"):
        fused.add_norm(x, x, x[0], eps=1e-6)


@pytest.mark.parametrize(("shape", "dtype"), [((3, 1000), "bfloat16"), ((2, 1024), "float32")])
def test_arrays_that_cannot_be_multiplied_are_refused(shape, dtype):
    assert not supports_silu_mul(math.prod(shape), dtype)
    with pytest.raises(ValueError, match="multiple of 1024"):
        silu_mul(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
