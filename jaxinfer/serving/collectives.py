"""How XLA runs the all-reduces of a step on several GPUs.

A decode step reduces a few KB twice a layer, so what counts is the launch. "kernel" is XLA's own
one- or two-shot kernel, the default; it reads the other GPUs' memory, but stays out of CUDA graphs
(seen on jax 0.11.2), so a step falls apart into one graph between each two reductions. "nccl" lets
NCCL reduce, inside one graph for the whole step. `scripts/all_reduce_bench.py` measures both.
"""

from typing import Any, Literal

CollectiveChoice = Literal["kernel", "nccl"]

# On two H200s, microseconds a reduction of bf16 [B, 4096]: nccl 8.1, 8.7, 12.8 and 30.4 at 1, 8, 64
# and 256 rows, the kernel 9.8, 10.1, 16.3 and 22.8.
_MOST_NCCL_ROWS = 128

# XLA's default, and COLLECTIVES.
_GRAPH_COMMANDS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,COLLECTIVES"


def choose_collectives(rows: int) -> CollectiveChoice:
    """What reduces fastest in a step of so many rows."""
    return "nccl" if rows <= _MOST_NCCL_ROWS else "kernel"


def collective_options(choice: CollectiveChoice) -> dict[str, Any]:
    """XLA's options for it, for one program."""
    if choice == "kernel":
        return {}
    return {
        "xla_gpu_experimental_use_collective_kernels": "",
        "xla_gpu_enable_command_buffer": _GRAPH_COMMANDS,
        "xla_gpu_graph_min_graph_size": 1,
    }
