"""Paged decode attention for CPUs, compiled by numba."""
