"""Interprets recorded traces: steps, parts and kernels beside the device's speeds. No JAX."""
