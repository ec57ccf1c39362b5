"""Sums over GPUs that write into memory of each other."""
