"""Decode attention on CPUs, compiled by numba; prefills there are XLA's."""
