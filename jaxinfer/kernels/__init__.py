"""Attention and fusion kernels: arrays in, arrays out; nothing here depends on requests."""
