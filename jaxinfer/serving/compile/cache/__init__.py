"""Compiled programs on disk: in the engine's own store, or in JAX's compilation cache."""
