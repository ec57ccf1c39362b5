"""Paged attention for GPUs before and beside Hopper, in Triton."""
