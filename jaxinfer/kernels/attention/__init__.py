"""Attention over a paged KV cache: one op, its XLA form and a room for each other backend."""
