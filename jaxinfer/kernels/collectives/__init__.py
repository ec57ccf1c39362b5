"""Sums over the GPUs that share a model."""
