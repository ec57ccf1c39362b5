"""What holds the memory of an engine's devices: as data, text and pictures; no JAX."""
