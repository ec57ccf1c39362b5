"""Attention kernels in jax-triton, for NVIDIA GPUs before Hopper (and as a cross-check on it)."""
