"""Decode attention over a part of each row's keys: splits of the decode kernel, and their sums."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.mosaic.combine import combine_partly
from jaxinfer.kernels.attention.mosaic.decode import DecodeConfig, attend_splits, choose_config
from jaxinfer.kernels.attention.mosaic.page_tiles import PageFormat
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.mosaic.pages import check_pool

_FEWEST_SPLITS = 2  # with one the kernel leaves no sums
_SPLIT_KEYS, _MOST_SPLITS = 256, 64


def partial_decode_attention(
    q: Float[Array, "B H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> tuple[Float[Array, "B H D"], Float[Array, "B H"]]:
    """Attention of one query a row over a part of its keys; see `PartialAttend`.

    Raises:
        ValueError: pages that the kernel cannot address; an engine never makes them.
    """
    B, H, _ = q.shape
    S, K = pages.k.shape[1:3]
    check_pool(pages.k)
    is_narrow = PageFormat(jnp.dtype(pages.k.dtype), jnp.dtype(q.dtype)).is_narrow
    config = _in_splits(B * K, rows.block_tables.shape[1] * S, is_narrow=is_narrow)
    partial, log_sums = attend_splits(q, pages, rows, scoring, config)
    return combine_partly(partial, log_sums, config.num_splits, B=B, H=H)


def _in_splits(blocks: int, longest: int, *, is_narrow: bool) -> DecodeConfig:
    """As `choose_config`, but always in splits that another launch combines."""
    chosen = choose_config(1, blocks, longest, is_narrow=is_narrow)
    if chosen.num_splits >= _FEWEST_SPLITS and not chosen.in_cluster:
        return chosen
    wanted = min(round(MULTIPROCESSORS / blocks), longest // _SPLIT_KEYS, _MOST_SPLITS)
    splits = max(_FEWEST_SPLITS, wanted)
    return dataclasses.replace(chosen, num_splits=splits, in_cluster=False)
