"""Attention kernels for Hopper GPUs, written in Pallas Mosaic GPU."""
