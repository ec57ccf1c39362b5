"""Chooses the all-reduce of each kind of step on several GPUs, and XLA's options for it.

A decode step reduces a few KB twice a layer, so the launch dominates. "peer_buffers" is our
own kernel (`kernels/collectives/mosaic/all_reduce.py`), the fastest, for two or four GPUs of a
process. "kernel" is XLA's one- or two-shot kernel, its default; it reads the other GPUs' memory,
but stays out of CUDA graphs (seen on jax 0.11.2), so a step is split into one graph between each
two reductions. `scripts/all_reduce_bench.py` measures both.

A prefill step reduces up to 134 MB at a time, so it should overlap other work: `token_parts.py` and
    `two_batch_overlap.py` see to that. NCCL's kernels take multiprocessors from the products beside
    them. Where there are two GPUs with peer buffers, each sends its shares with its copy engine to
    the other and adds the shares that it receives (`TensorAxis.swap`).
"""

from typing import Any

OVERLAP_OPTIONS: dict[str, Any] = {
    # XLA's default, and the pass that starts an all-reduce early and waits for it late: without it
    # each one is waited for at its start.
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # The embeddings' sums are independent of each other, and XLA would make one of them.
    "xla_gpu_all_reduce_combine_threshold_bytes": 0,
    "xla_gpu_collective_permute_combine_threshold_bytes": 0,
    # Two GPUs swap by copies from memory to memory; without this option NCCL's kernels would do it.
    "xla_gpu_collective_permute_mode": "COLLECTIVES_PEER_MEMORY",
}
"""XLA's options for programs whose tokens go through the layers in parts."""
