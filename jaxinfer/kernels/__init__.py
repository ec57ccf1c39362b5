"""Attention and fusion kernels: arrays in, arrays out; nothing here knows of requests."""
