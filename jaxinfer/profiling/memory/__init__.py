"""The memory report of an engine's devices, by owner and phase, as data and text; no JAX."""
