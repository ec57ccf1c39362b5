"""Mosaic's kernels of experts in Pallas's interpreter, on a CPU."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def interpret(monkeypatch) -> None:
    """Kernels that are traced from now on run in the interpreter."""
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    # It knows no accumulator that outlives a product.
    monkeypatch.setattr(plgpu, "wgmma", _wgmma)
    monkeypatch.setattr(plgpu, "wgmma_wait", lambda _: None)
    monkeypatch.setattr(pl, "run_scoped", lambda run, *kinds: run(*map(_Sums, kinds)))
    jax.clear_caches()


class _Sums:
    """An accumulator: the interpreter's takes nothing but its own products."""

    def __init__(self, kind):
        self.value = jnp.zeros(kind.shape, jnp.float32)

    def __getitem__(self, _):
        return self.value


def _wgmma(accumulator, first, second):
    wide = (each[...].astype(jnp.float32) for each in (first, second))
    accumulator.value += jnp.dot(*wide)
