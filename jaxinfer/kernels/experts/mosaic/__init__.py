"""Experts on Hopper GPUs: routing, and products that read only experts that were chosen."""

from jaxinfer.kernels.experts.mosaic import choose, few_rows, grouped, sorting, spread

__all__ = ["choose", "few_rows", "grouped", "sorting", "spread"]
