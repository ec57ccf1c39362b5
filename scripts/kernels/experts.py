"""Time the kernels of experts as codes beside those in bfloat16, on a Hopper GPU.

    python -m scripts.kernels.experts          # a table
    python -m scripts.kernels.experts --check  # first beside float64, which compiles for each shape

A line is a layer of Qwen3-30B-A3B's experts with its norm and router, of so many rows: a chain of
eight such layers with weights of their own is one program, so that nothing is read twice, nothing
is left out, and gaps between launches count as they do in a step. Times are the median of runs;
bytes a second are those of the experts that rows chose. Nothing is checked without `--check`.
"""

import argparse
import collections
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.op import mix_add, route
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.policy import Kernels
from jaxinfer.profiling.trace.xplane import find_trace, read_gpu_kernels

_X, _E, _F, _K, _EPS = 128, 2048, 768, 8, 1e-6
_EXPERT = 3 * _E * _F  # weights
_LAYERS = 8
_FEW = (1, 8, 16, 64, 256)
_MANY = (4096, 8192)


def main(argv: Sequence[str] | None = None) -> int:
    """Check, measure and print; status 1 if a check failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="beside float64 first, some minutes")
    parser.add_argument("--repeats", type=int, default=7, help="runs of a line")
    arguments = parser.parse_args(argv)
    failed = sum(not _passes(*each) for each in _checks()) if arguments.check else 0
    print(
        f"{'rows':>6} {'weights':8} {'us a layer':>10} {'experts':>8} {'TB/s':>6} {'TFLOP/s':>8}"
        "  microseconds of kernels"
    )
    for form, make in (("fp8", _codes), ("bfloat16", _plain)):
        layers = [_layer(seed, make) for seed in range(_LAYERS)]
        for rows in (*_FEW, *_MANY):
            print(_line(rows, form, layers, arguments.repeats), flush=True)
        del layers
    return int(failed > 0)


def _checks() -> Iterator[tuple[str, Callable[[], None]]]:
    from tests.kernels.experts.test_mosaic_codes import check_few_rows, check_grouped
    from tests.kernels.experts.test_mosaic_fused import check_fused

    for X, E, F in ((64, 1024, 384), (32, 2048, 768)):
        for B in (1, 8):
            yield f"{B} rows of {X, E, F}", lambda a=(B, X, E, F): check_few_rows(*a, 4)
        for T in (16, 200):
            yield f"{T} rows of {X, E, F}", lambda a=(T, X, E, F): check_fused(*a, 4, of_codes=True)
        yield f"1024 rows of {X, E, F}", lambda a=(1024, X, E, F): check_grouped(*a, 4)


def _passes(name: str, check: Callable[[], None]) -> bool:
    started = time.perf_counter()
    try:
        check()
    except Exception as error:  # One failure must not end the others.
        print(f"{name}: FAILED {' '.join(str(error).split())[:300]}", flush=True)
        return False
    print(f"{name}: as float64 has it ({time.perf_counter() - started:.1f} s)", flush=True)
    return True


def _layer(seed: int, make: Callable[[jax.Array, tuple[int, ...]], Any]) -> Any:
    keys = jax.random.split(jax.random.key(seed), 4)
    router = jax.random.normal(keys[0], (_X, _E), jnp.bfloat16) * _E**-0.5
    shapes = ((_X, _F, _E), (_X, _F, _E), (_X, _E, _F))
    matrices = [make(key, shape) for key, shape in zip(keys[1:], shapes, strict=True)]
    return jnp.ones(_E, jnp.bfloat16), router, matrices


def _plain(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.jit(lambda key: jax.random.normal(key, shape, jnp.bfloat16) * shape[-1] ** -0.5)(key)


def _codes(key: jax.Array, shape: tuple[int, ...]) -> QuantizedExperts:
    X, outputs, inputs = shape
    scale = jnp.full((X, outputs // 128, inputs // 128), inputs**-0.5 / 60, jnp.float32)
    draw = jax.jit(lambda key: (jax.random.normal(key, shape, jnp.bfloat16) * 60).astype(FP8))
    return QuantizedExperts(draw(key), scale)


@jax.jit
def _one(x: jax.Array, norm: jax.Array, router: jax.Array, matrices: Any) -> Any:
    kernels, stream = Kernels("mosaic"), ResidualStream(x)
    routed = route(stream, norm, router, _K, normalize=True, eps=_EPS, kernels=kernels)
    mixed = mix_add(routed, norm, matrices, eps=_EPS, kernels=kernels)
    return mixed.summed(), routed.chosen


@jax.jit
def _many(x: jax.Array, layers: Any) -> Any:
    chosen = []
    for layer in layers:
        x, own = _one(x, *layer)
        chosen.append(own)
    return x, chosen


def _line(rows: int, form: str, layers: Any, repeats: int) -> str:
    x = jax.random.normal(jax.random.key(rows), (rows, _E), jnp.bfloat16)
    compiled, times = _many.lower(x, layers).compile(), []
    distinct = [len(np.unique(np.asarray(each))) for each in compiled(x, layers)[1]]
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(compiled(x, layers))
        times.append((time.perf_counter() - started) / len(layers) * 1e6)
    kernels = _kernel_times(lambda: compiled(x, layers), len(layers))
    taken, experts = statistics.median(times), statistics.mean(distinct)
    size = 1 if form == "fp8" else 2
    rate = experts * _EXPERT * size / taken / 1e6
    operations = 2 * rows * _K * _EXPERT / taken / 1e6
    figures = f"{rows:6} {form:8} {taken:10.1f} {experts:8.1f} {rate:6.2f} {operations:8.0f}"
    return f"{figures}  {kernels}"


def _kernel_times(run: Callable[[], Any], launches: int) -> str:
    """Microseconds a layer of each kernel in one traced run, the longest first."""
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            jax.block_until_ready(run())
        events = read_gpu_kernels(find_trace(Path(directory)))
    sums: dict[str, float] = collections.defaultdict(float)
    for event in events:
        sums[event.name.removesuffix("_mosaic_gpu_kernel")[:24]] += event.duration_ns
    longest = sorted(sums.items(), key=lambda each: -each[1])[:7]
    return ", ".join(f"{name} {ns / 1e3 / launches:.1f}" for name, ns in longest)


if __name__ == "__main__":
    sys.exit(main())
