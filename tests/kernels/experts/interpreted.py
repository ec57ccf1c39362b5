"""Mosaic's kernels of experts in Pallas's interpreter, on a CPU."""

import functools
import types

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.experts.mosaic import fused


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


def interpret_fused(monkeypatch) -> None:
    """`fused.py` in the interpreter, in one block, so that it counts for itself alone."""
    interpret(monkeypatch)
    monkeypatch.setattr(fused, "MULTIPROCESSORS", 1)
    monkeypatch.setattr(fused, "count", _count)
    monkeypatch.setattr(fused, "wait", _wait)
    loops = types.SimpleNamespace(**vars(lax))
    loops.fori_loop = _loop
    monkeypatch.setattr(fused, "lax", loops)


def _loop(first, last, body, carry):
    """Of a number known ahead without a loop, around which accumulators could not be kept."""
    if not (isinstance(first, int) and isinstance(last, int)):
        return lax.fori_loop(first, last, body, carry)
    for index in range(first, last):
        carry = body(jnp.int32(index), carry)
    return carry


def _count(counts, number):
    own = lax.axis_index("warpgroup")  # The interpreter adds nothing up at once.
    counts[number, own] = counts[number, own] + 1


def _wait(counts, number, *, ready):
    def missing(_):
        return counts[number, 0] + counts[number, 1] < ready

    lax.while_loop(missing, lambda _: jnp.int32(0), jnp.int32(0))
