"""The norm's codes are those of `quantize_groups` of what `add_norm` returns, bit for bit."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels import fp8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantize_groups
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.norms.mosaic.add_norm import add_norm
from jaxinfer.kernels.norms.mosaic.add_norm_codes import add_norm_codes, supports
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.rounding import rounded_add
from tests import hlo
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_EPS = 1e-6


@pytest.fixture
def _interpret(monkeypatch):
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    add_norm_codes.clear_cache()
    yield
    add_norm_codes.clear_cache()


def _draw(T, E, count, *, whole=False):
    """Terms of a stream and a weight whose groups have magnitudes of their own."""
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((count, T, E))
    if whole:  # whose squares add up to the same in any order
        terms = np.round(2 * terms)
    weight = rng.standard_normal(E) * np.repeat(np.exp(rng.normal(size=E // GROUP)), GROUP)
    return [jnp.asarray(each, jnp.bfloat16) for each in (*terms, weight)]


def _equal(got, expected):
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(expected, np.float32))


@pytest.mark.usefixtures("_interpret")
@pytest.mark.parametrize(
    ("T", "E", "count"),
    [
        (5, 768, 2),
        (3, 2560, 1),
        (2, 3072, 3),
        pytest.param(16, 1024, 3, marks=pytest.mark.slow("alone")),
        pytest.param(72, 512, 1, marks=pytest.mark.slow("alone")),
    ],
)
def test_codes_equal_the_quantized_norm_in_the_interpreter(T, E, count):
    x, *new, weight = _draw(T, E, count, whole=True)
    x, *new = (each.at[1].set(0) for each in (x, *new))
    total, codes, scale = add_norm_codes(x, weight, *new, eps=_EPS)
    expected = rounded_add(x, functools.reduce(rounded_add, new)) if new else x
    _equal(total, expected)
    normal = rms_norm(expected, weight, _EPS).reshape(T, -1, GROUP)
    expected, of_groups = fp8.quantize(normal)
    M = -(-T // 8) * 8
    assert codes.shape == (M, E)
    assert scale.shape == (E // GROUP, -(-M // 64) * 64)
    _equal(codes[:T], expected.reshape(T, E))
    _equal(scale[:, :T], of_groups.T)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("T", "E"), [(24, 1024), (100, 2048), (64, 4096), (257, 2560), (4096, 5120), (16384, 4096)]
)
def test_codes_equal_the_quantized_norm(T, E, count):
    x, *new, weight = _draw(T, E, count)
    x = x.at[0, 3].set(jnp.inf)
    total, codes, scale = add_norm_codes(x, weight, *new, eps=_EPS)
    delta = new[0] if new else jnp.zeros_like(x)
    expected, normal = add_norm(x, delta, weight, *new[1:], eps=_EPS)
    padded = jnp.pad(normal, ((0, -T % 8), (0, 0)))
    quantized, of_groups = quantize_groups(padded)
    assert (codes.shape, scale.shape) == (quantized.shape, of_groups.shape)
    _equal(total, expected)
    _equal(codes[:T], quantized[:T])
    _equal(scale[:, :T], of_groups[:, :T])


@needs_plugin
@pytest.mark.parametrize("E", [1024, 2048, 2560, 4096, 5120, 8192])
def test_each_is_one_kernel_of_registers(E, monkeypatch, capfd):
    """Numbers of rows that no other test has: what is compiled already says nothing."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_PTXAS", "1")

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16)

    run = functools.partial(add_norm_codes, eps=_EPS)
    for T, count in ((104, 1), (40, 2), (16392, 2), (4104, 3)):
        stream = shape(T, E)
        text = compile_for_h200(run, stream, shape(E), *[stream] * (count - 1)).as_text()
        assert hlo.mosaic_kernels(text) == {"add_norm_codes": 1}
        assert "fusion(" not in text
    spilled = re.findall(r"(\d+) bytes spill stores", "".join(capfd.readouterr()))
    assert spilled
    assert set(spilled) == {"0"}


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(256, "bfloat16"), (1000, "bfloat16"), (2304, "bfloat16"), (1024, "float32")],
)
def test_other_rows_are_refused(size, dtype):
    assert not supports(size, dtype)
    x = jnp.zeros((8, size), dtype)
    with pytest.raises(ValueError, match="multiple of 256"):
        add_norm_codes(x, x[0], eps=_EPS)
