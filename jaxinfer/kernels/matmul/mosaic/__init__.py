"""Matmul kernels for Hopper GPUs: small ones of few rows, medium ones of up to 256."""
