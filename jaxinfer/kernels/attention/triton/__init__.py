"""Paged attention for GPUs other than Hopper, in Triton."""
