"""Products of block-scaled codes of many rows: beside float64, of codes and scales as they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels import fp8
from jaxinfer.kernels.matmul.mosaic import large
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantize_groups
from jaxinfer.kernels.matmul.mosaic.large_plan import LargeConfig
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP


def draw(outputs, inputs, seed=0):
    """A weight ``[O, I]`` whose codes take every value, with scales far apart."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 255, (outputs, inputs)).astype(np.uint8)
    codes[codes % 128 == 127] = 0  # which are NaN
    scale = np.exp(rng.normal(size=(outputs // GROUP, inputs // GROUP))).astype(np.float32)
    return QuantizedLinear(
        jnp.asarray(codes.view(jnp.float8_e4m3fn)),
        jnp.asarray(scale / (100 * inputs**0.5)),
        inputs="group",
    )


def _rows(M, size, seed=1):
    """Inputs whose groups have scales of their own."""
    rng = np.random.default_rng(seed)
    groups = rng.standard_normal((M, size // GROUP, GROUP))
    groups *= np.exp(rng.normal(size=(M, size // GROUP, 1)))
    return jnp.asarray(groups.reshape(M, size).astype(jnp.bfloat16))


def _exact(x, linear):
    """In float64, group by group."""
    codes, of_rows = (np.asarray(each, np.float64) for each in linear.quantized_inputs(x))
    weight, of_blocks = (np.asarray(each, np.float64) for each in (linear.weight, linear.scale))
    sums = 0.0
    for group in range(codes.shape[1]):
        of_features = np.repeat(of_blocks[:, group], GROUP)
        product = codes[:, group] @ weight[:, group * GROUP :][:, :GROUP].T
        sums = sums + product * of_rows[:, group, None] * of_features
    return sums


def _check(got, exact):
    error = np.linalg.norm(np.asarray(got, np.float64) - exact) / np.linalg.norm(exact)
    assert error < 4e-3


def _check_all(M, size, config=None):
    """Both products, of several outputs, beside float64."""
    x, linears = _rows(M, size), [draw(outputs, size, seed=outputs) for outputs in (128, 256)]
    project = jax.jit(functools.partial(large.project, config=config))
    for got, linear in zip(project(x, linears), linears, strict=True):
        _check(got, _exact(x, linear))
    gate, up = draw(256, size, seed=5), linears[1]
    opened = _exact(x, gate)
    got = jax.jit(functools.partial(large.gated, config=config))(x, gate, up)
    _check(got, opened / (1 + np.exp(-opened)) * _exact(x, up))


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels in Pallas's interpreter, which knows no accumulator that it did not make itself."""
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(plgpu, "wgmma", _wgmma)
    monkeypatch.setattr(pl, "run_scoped", lambda run, *kinds: run(*(_Sums() for _ in kinds)))
    monkeypatch.setattr(large, "MULTIPROCESSORS", 2)
    quantize_groups.clear_cache()
    yield
    quantize_groups.clear_cache()


@pytest.mark.usefixtures("interpreted")
def test_products_match_fp64_in_the_interpreter():
    """Several tiles a block, some of which reach beyond the last row."""
    _check_all(136, 3 * GROUP, LargeConfig(2, 1, 1, swath=2))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("M", [16, 24])
def test_inputs_are_quantized_as_elsewhere(M):
    x = _rows(M, 2 * GROUP).at[0, :GROUP].set(0)
    codes, scale = quantize_groups(x)
    expected, of_groups = fp8.quantize(x.reshape(M, 2, GROUP))
    np.testing.assert_array_equal(np.asarray(scale), np.asarray(of_groups.T))
    _equal(codes, expected.reshape(x.shape))
    broken, _ = quantize_groups(x.at[1, 3].set(jnp.inf).at[2, 200].set(jnp.nan))
    sound = codes.at[1, :GROUP].set(jnp.nan).at[2, GROUP:].set(jnp.nan)
    _equal(broken, sound)


def _equal(*codes):
    np.testing.assert_array_equal(*(np.asarray(each, np.float32) for each in codes))


class _Sums:
    """An accumulator: the interpreter's takes nothing but its own products."""

    value = 0.0

    def __getitem__(self, _):
        return self.value


def _wgmma(accumulator, first, second):
    wide = (each[...].astype(jnp.float32) for each in (first, second))
    accumulator.value += jnp.dot(*wide)
