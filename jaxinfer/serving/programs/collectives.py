"""Chooses how the all-reduces of a step run on several GPUs.

A decode step reduces a few KB twice a layer, so what counts is the launch. "peer_buffers" is our
own kernel (`kernels/collectives/mosaic/all_reduce.py`), the fastest, for two or four GPUs of a
process. "kernel" is XLA's one- or two-shot kernel, its default; it reads the other GPUs' memory,
but stays out of CUDA graphs (seen on jax 0.11.2), so a step falls apart into a graph between each
two reductions.
"nccl" lets NCCL reduce, inside one graph for the whole program; the graph is recorded anew at each
call, which costs the host more than the graph saves unless the program holds several steps.
`scripts/all_reduce_bench.py` measures all three.

A prefill step reduces up to 134 MB at a time, and what counts is what runs beside it:
`token_parts.py` and `two_batch_overlap.py` see to that. NCCL's kernels take multiprocessors from
the products beside them. Where there are two GPUs with peer buffers, each sends its shares with
its copy engine to the other and adds the shares that it receives (`TensorAxis.swap`).
"""

from typing import Any, Literal

CollectiveChoice = Literal["peer_buffers", "kernel", "nccl"]

# XLA's default, and COLLECTIVES.
_GRAPH_COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,COLLECTIVES"

OVERLAP_OPTIONS: dict[str, Any] = {
    # XLA's default, and what starts an all-reduce early and waits for it late: without it every one
    # is waited for where it starts.
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # The embeddings' sums are independent of each other, and XLA would make one of them.
    "xla_gpu_all_reduce_combine_threshold_bytes": 0,
    "xla_gpu_collective_permute_combine_threshold_bytes": 0,
    # What two GPUs swap is copied from memory to memory; without it NCCL's kernels would do that.
    "xla_gpu_collective_permute_mode": "COLLECTIVES_PEER_MEMORY",
}
"""For programs whose tokens go through the layers in parts."""


def choose_collectives(num_steps: int, *, peer_buffers: bool) -> CollectiveChoice:
    """The fastest choice for a program of a given number of decode steps; a prefill counts as one.

    On two H200s a decode step of Qwen3-8B's shape takes 4.4, 6.5 and 11.0 ms at 2, 64 and 256 rows
    with the kernel and 6.3, 7.3 and 12.2 ms with NCCL; in multi-step decodes of 8, 2 rows take 3.9
    ms a step with NCCL (benchmarks/results).
    """
    if peer_buffers:
        return "peer_buffers"
    return "nccl" if num_steps > 1 else "kernel"


def collective_options(choice: CollectiveChoice) -> dict[str, Any]:
    """XLA's options for it, for one program."""
    if (
        choice != "nccl"
    ):  # What peer buffers do not take, and samplers exchange, XLA does its own way.
        return {}
    return {
        "xla_gpu_experimental_use_collective_kernels": "",
        "xla_gpu_enable_command_buffer": _GRAPH_COMMANDS,
        "xla_gpu_graph_min_graph_size": 1,
    }
