"""Checks a scheduler's settings."""

from jaxinfer.config import PreemptionMode


def check_settings(
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    preemption_mode: PreemptionMode,
    num_host_blocks: int,
) -> None:
    """Raise ValueError for settings of a `Scheduler` out of range or in contradiction."""
    if max_num_seqs < 1 or max_model_len < 1:
        raise ValueError(
            f"max_num_seqs and max_model_len must be at least 1: {max_num_seqs}, {max_model_len}"
        )
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs "
            f"({max_num_seqs}), or running requests would starve"
        )
    if preemption_mode not in ("recompute", "swap"):
        raise ValueError(f"preemption_mode must be recompute or swap: {preemption_mode!r}")
    if (preemption_mode == "swap") != (num_host_blocks > 0):
        raise ValueError(
            "preemption_mode='swap' needs host blocks (raise swap_space), and only it does: "
            f"{preemption_mode!r} with {num_host_blocks} host blocks"
        )
