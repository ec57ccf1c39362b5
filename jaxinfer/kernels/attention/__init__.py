"""Attention over a paged KV cache: one op, its XLA version, and a folder for each other backend."""
