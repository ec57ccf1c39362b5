"""What a recorded trace means: steps, parts and kernels beside what the device can do. No JAX."""
