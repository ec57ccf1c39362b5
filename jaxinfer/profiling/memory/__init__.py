"""What holds the memory of an engine's devices: as data and text; no JAX."""
