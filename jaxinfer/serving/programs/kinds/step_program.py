"""Shared by programs that pass tokens through the model's layers: their form and XLA's options."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jaxinfer.kernels.matmul.op import MERGED_BELOW_ROWS
from jaxinfer.serving.programs.collectives import OVERLAP_OPTIONS
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs

# XLA's options for programs whose only matmul is the head's: autotuning Triton's kernels would be
# most of their compile time.
HEAD_OPTIONS: Mapping[str, Any] = MappingProxyType({"xla_gpu_enable_triton_gemm": False})

# XLA's option for programs whose arguments or temporaries move between launches: a CUDA graph would
# be updated at each launch, which takes longer than launching its kernels one by one.
WITHOUT_GRAPH: Mapping[str, Any] = MappingProxyType({"xla_gpu_graph_min_graph_size": 1 << 20})


def step_program(
    programs: Programs,
    name: str,
    step: Callable[..., Any],
    shape: PrefillShape | DecodeShape,
    *,
    num_outputs: int,
) -> Program:
    """The program of one step without its sampler."""
    run = functools.partial(step, context=programs.context, shape=shape)
    packed = programs.on_host((shape.size,))
    arguments = (programs.params, programs.kv, packed, programs.last_tokens, *programs.peers)
    results = (programs.kv, *[WHOLE] * num_outputs)
    return programs.sharded(name, run, arguments, results, donate=(1,))


def step_options(rows: int, *, num_parts: int = 1) -> dict[str, Any]:
    """XLA's options on a GPU.

    On an H200, XLA's Triton matrix products lose 5% to cuBLAS at 256 rows and win 22% at 2.
    Triton's read weights that XLA merges (q, k and v; gate and up) in place, but for cuBLAS it
    would copy them into one array in every step.

    Args:
        num_parts: parts of the tokens that go through each layer one after the other.
    """
    # Launched through a slice of the batch vector, a kernel is no plain node of a CUDA graph.
    options: dict[str, Any] = {"xla_gpu_enable_dynamic_slice_fusion": False}
    if rows >= MERGED_BELOW_ROWS:
        options |= {"xla_gpu_enable_triton_gemm": False, "xla_gpu_dot_merger_threshold_mb": 0}
    if num_parts > 1:
        options |= OVERLAP_OPTIONS
    return options
