"""Compiled programs on disk, in JAX's own compilation cache."""
