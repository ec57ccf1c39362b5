"""Memory and speed of a model on a device, from sizes alone: no GPU, no weights, no JAX."""
