"""Time small all-reduces on the GPUs of one host, alone and inside decode steps.

    python scripts/all_reduce_bench.py --model-shape 8b

At decode an all-reduce moves a few KB, so what counts is how it is launched: "peer_buffers" is the
engine's own kernel, inside the step's CUDA graph, and "kernel" is XLA's. The first table is a chain
of dependent all-reduces of bf16 ``[B, 4096]``, the second whole decode steps of a model (the real
programs, random weights). Every repeat goes to benchmarks/results/ as JSON.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.policy import Kernels
from jaxinfer.measure.random_weights import random_params
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.sharding import ShardingRules, make_mesh
from jaxinfer.planning.named_shapes import SERVED_SHAPES, shape_config
from jaxinfer.serving.programs import peer_buffers as peer_buffers
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.program_set import options_of, program_of
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import StepContext
from jaxinfer.serving.runner import kv_cache
from scripts.measurements.results import RESULTS, save_result

_LAUNCHES, _WIDTH = 56, 4096
_BLOCK_SIZE, _CONTEXT = 16, 1024
_Choice = Literal["peer_buffers", "kernel"]
_CHOICES: tuple[_Choice, ...] = ("peer_buffers", "kernel")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print both tables, keep the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 8, 64, 256])
    parser.add_argument("--model-shape", choices=SERVED_SHAPES, help="time decode steps of it too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output-directory", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    if len(jax.devices()) < 2:
        print("all_reduce_bench: error: needs two devices or more", file=sys.stderr)
        return 1
    mesh = make_mesh(len(jax.devices()))
    rows = list(chains(mesh, arguments.rows, arguments.repeats))
    if arguments.model_shape:
        rows += steps(mesh, arguments.model_shape, arguments.rows, arguments.repeats)
    for row in rows:
        print(f"{row['what']:<24} {row['rows']:>4} rows  {row['us']:>9.1f} us", flush=True)
    figures = {
        "num_devices": len(jax.devices()),
        "model_shape": arguments.model_shape,
        "rows": rows,
    }
    print("kept in", save_result("all-reduce", figures, arguments.output_directory))
    return 0


def chains(mesh: Mesh, sizes: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Microseconds of one all-reduce among many dependent ones."""
    (name,), whole = mesh.axis_names, NamedSharding(mesh, PartitionSpec())
    boxes = peer_buffers.allocate(peer_buffers.describe_peers(mesh, name))

    def chain(x: jax.Array, *peers: jax.Array) -> jax.Array:
        axis = TensorAxis(name, peers[0][0] if peers else None)
        for _ in range(_LAUNCHES):
            x = axis.sum(x) * jnp.asarray(0.5, x.dtype)
        return x

    for rows in sizes:
        x = jax.device_put(jnp.ones((rows, _WIDTH), jnp.bfloat16), whole)
        for choice in _CHOICES:
            inputs, specs = (x,), (PartitionSpec(),)
            if choice == "peer_buffers":
                inputs, specs = (x, boxes.peers), (PartitionSpec(), PartitionSpec(name))
            split = jax.shard_map(
                chain, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
            )
            run = jax.jit(split).lower(*inputs).compile()
            taken = seconds_of(lambda run=run, inputs=inputs: run(*inputs), repeats)
            yield _row(f"all-reduce, {choice}", rows, [t / _LAUNCHES for t in taken])


def steps(mesh: Mesh, shape: str, sizes: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Microseconds of a decode step at 1,024 tokens of context."""
    width = _CONTEXT // _BLOCK_SIZE
    programs = _programs(mesh, shape, num_blocks=1 + max(sizes) * width)
    shapes = [DecodeShape(rows, width) for rows in sizes]
    cases: list[tuple[DecodeShape, _Choice]] = [
        (shape, choice) for shape in shapes for choice in _CHOICES
    ]
    with ThreadPoolExecutor() as pool:
        compiled = list(pool.map(lambda case: _compile(programs, *case), cases))
    params = random_params(programs.context.config, "bfloat16", mesh)
    peers = _with(programs, "peer_buffers").peers
    boxes = [peer_buffers.allocate(described) for described in peers]
    state = _State(params, *kv_cache.allocate(programs)[:2], [each.peers for each in boxes])
    for (key, choice), run in zip(cases, compiled, strict=True):
        taken = seconds_of(state.caller(_with(programs, choice), key, run), repeats)
        yield _row(f"decode step, {choice}", key.rows, taken)


class _State:
    """What steps read and replace on the devices."""

    def __init__(
        self, params: Any, kv: Any, last_tokens: jax.Array, peers: list[jax.Array]
    ) -> None:
        self.params, self.kv, self.last_tokens, self.peers = params, kv, last_tokens, peers

    def caller(self, programs: Programs, shape: DecodeShape, run: Any) -> Callable[[], Any]:
        """A function that runs a program once."""
        packed = jax.device_put(
            _batch(shape, _CONTEXT), program_of(programs, shape).arguments[2].sharding
        )
        peers = self.peers if programs.context.peer_buffers else []

        def step() -> Any:
            self.kv, hidden, _ = run(self.params, self.kv, packed, self.last_tokens, *peers)
            return hidden

        return step


def _compile(programs: Programs, shape: DecodeShape, choice: _Choice) -> Any:
    options = options_of(shape, platform=jax.default_backend(), num_devices=1)
    return program_of(_with(programs, choice), shape).lower().compile(compiler_options=options)


def _with(programs: Programs, choice: _Choice) -> Programs:
    context = replace(programs.context, peer_buffers=choice == "peer_buffers")
    return replace(programs, context=context)


def seconds_of(run: Callable[[], Any], repeats: int, calls: int = 20) -> list[float]:
    """Seconds of a call, back to back; one uncounted round goes first."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        outputs = [run() for _ in range(calls)]
        jax.block_until_ready(outputs)
        taken.append((time.perf_counter() - start) / calls)
    return taken[1:]


def _programs(mesh: Mesh, shape: str, *, num_blocks: int) -> Programs:
    config, rules = shape_config(shape), ShardingRules()
    kernels = Kernels("mosaic" if jax.default_backend() == "gpu" else "xla")
    context = StepContext(config, mesh, rules, kernels, _BLOCK_SIZE, "bfloat16")
    described = abstract_params(config, "bfloat16", mesh, rules)
    return Programs(context, described, num_blocks, 2)


def _batch(shape: DecodeShape, context: int) -> np.ndarray:
    """Rows of a given number of tokens each, in blocks of their own."""
    packed = np.zeros(shape.size, np.int32)
    fields = shape.split(packed)
    fields.context_lens[:] = context
    fields.slots[:] = 1
    blocks = 1 + np.arange(shape.rows * shape.width)
    fields.block_tables[:] = blocks.reshape(shape.rows, shape.width)
    return packed


def _row(what: str, rows: int, seconds: list[float]) -> dict[str, Any]:
    microseconds = [second * 1e6 for second in seconds]
    return {"what": what, "rows": rows, "us": statistics.median(microseconds), "all": microseconds}


if __name__ == "__main__":
    sys.exit(main())
