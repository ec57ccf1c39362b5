"""How the all-reduces of a step run on several GPUs.

A decode step reduces a few KB twice a layer, so what counts is the launch. "peer_buffers" is our
own kernel (`kernels/collectives/mosaic/all_reduce.py`), the fastest, for two or four GPUs of a
process. "kernel" is XLA's one- or two-shot kernel, its default; it reads the other GPUs' memory,
but stays out of CUDA graphs (seen on jax 0.11.2), so a step falls apart into a graph between each
two reductions.
`scripts/all_reduce_bench.py` measures both.

A prefill step reduces up to 134 MB at a time, and what counts is what runs beside it:
`token_parts.py` and `two_batch_overlap.py` see to that. NCCL's kernels take multiprocessors from
the products beside them. Where there are two GPUs with peer buffers, each sends its shares with
its copy engine to the other and adds the shares that it receives (`TensorAxis.swap`).
"""

from typing import Any

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
