"""Products of block-scaled codes of many rows: beside float64, of codes and scales as they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic import large
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


def _check(x, linears, config=None):
    got = jax.jit(functools.partial(large.project, config=config))(x, linears)
    for values, linear in zip(got, linears, strict=True):
        exact = _exact(x, linear)
        error = np.linalg.norm(np.asarray(values, np.float64) - exact) / np.linalg.norm(exact)
        assert error < 4e-3


def test_products_match_fp64_in_the_interpreter(monkeypatch):
    """Several outputs and tiles a block, the last of which reaches beyond the last row."""
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(plgpu, "wgmma", _wgmma)
    monkeypatch.setattr(pl, "run_scoped", lambda run, *kinds: run(*(_Sums() for _ in kinds)))
    monkeypatch.setattr(large, "MULTIPROCESSORS", 2)
    linears = [draw(outputs, 3 * GROUP, seed=outputs) for outputs in (128, 256)]
    _check(_rows(136, 3 * GROUP), linears, LargeConfig(2, 1, 1, 2))


class _Sums:
    """An accumulator: the interpreter's takes nothing but its own products."""

    value = 0.0

    def __getitem__(self, _):
        return self.value


def _wgmma(accumulator, first, second):
    wide = (each[...].astype(jnp.float32) for each in (first, second))
    accumulator.value += jnp.dot(*wide)
