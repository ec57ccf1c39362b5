"""Experts on Hopper GPUs: routing, and products that read only experts that were chosen."""

from jaxinfer.kernels.experts.mosaic import (
    choose,
    few_rows,
    few_rows_codes,
    fused,
    grouped,
    grouped_codes,
    lists,
    places,
    spread,
    spread_codes,
)

__all__ = [
    "choose",
    "few_rows",
    "few_rows_codes",
    "fused",
    "grouped",
    "grouped_codes",
    "lists",
    "places",
    "spread",
    "spread_codes",
]
