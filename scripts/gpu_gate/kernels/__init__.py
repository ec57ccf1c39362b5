"""Mosaic's kernels one by one: what each is tried with, and what is said where one never ends."""
