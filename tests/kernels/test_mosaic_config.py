"""Host-side choices of the Mosaic kernels: splits, tiles, refusals."""

import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.mosaic.decode import (
    DecodeConfig,
    choose_config,
    paged_decode_attention,
)
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.kernels.mosaic.pages import Tiling


def test_many_sequences_are_not_split_and_few_long_ones_are():
    assert choose_config(256, 8, 4096).num_splits == 1
    assert choose_config(1, 8, 32768).num_splits >= 16


def test_a_cluster_combines_a_few_splits_where_the_chip_has_room_for_it():
    for rows, heads, splits in [(2, 8, 4), (2, 4, 8), (1, 2, 8)]:
        config = choose_config(rows, heads, 1024)
        assert config.in_cluster
        assert config.num_splits == splits
    # More sequences, longer contexts, and outputs that do not fit.
    assert not choose_config(4, 8, 1024).in_cluster
    assert not choose_config(2, 8, 4096).in_cluster
    assert choose_config(1, 2, 1024, head_bytes=4 * 128 * 24).num_splits == 5


def test_a_cluster_of_longer_contexts_has_one_more_stage_where_that_fits():
    assert choose_config(2, 8, 1024).stages == 3
    assert choose_config(2, 8, 2048) == DecodeConfig(64, 4, 4, in_cluster=True)
    assert choose_config(1, 2, 2048, head_bytes=4 * 128 * 24) == DecodeConfig(
        64, 4, 4, in_cluster=True
    )


def test_short_contexts_are_not_split_into_slivers():
    for longest in (16, 256, 511):
        assert choose_config(1, 1, longest).num_splits == 1


@pytest.mark.parametrize(("page_size", "copies"), [(8, 8), (16, 4), (64, 1), (256, 1)])
def test_a_tile_takes_one_copy_per_page(page_size, copies):
    assert Tiling(64, page_size, 4).copies == copies


@pytest.mark.parametrize("page_size", [4, 24])
def test_page_sizes_that_do_not_fill_a_tile_are_refused(page_size):
    with pytest.raises(ValueError, match=f"page size {page_size}"):
        Tiling(64, page_size, 4)


def test_unsupported_head_dim_is_refused_by_name():
    pages = jnp.zeros((2, 16, 1, 96), jnp.bfloat16)
    one = jnp.zeros((1,), jnp.int32)
    with pytest.raises(ValueError, match="head_dim must be 64 or 128, not 96"):
        paged_decode_attention(
            jnp.zeros((1, 1, 96), jnp.bfloat16),
            Pages(pages, pages),
            PagedRows(one, one[None]),
            Scoring(1.0),
        )


@pytest.mark.parametrize(
    ("rows", "heads", "options", "message"),
    [
        (64, 2, {"window": 5}, "window or shared, not both"),
        (64, 2, {"config": DecodeConfig(64, 3, 2)}, "config or shared, not both"),
        (16, 2, {}, "16 rows"),
        (64, 16, {}, "16 heads"),
    ],
)
def test_units_of_shared_keys_that_can_not_be_computed_are_refused(rows, heads, options, message):
    q, pages = jnp.zeros((rows, heads, 64), jnp.bfloat16), jnp.zeros((3, 16, 1, 64), jnp.bfloat16)
    ints = jnp.zeros((rows, 4), jnp.int32)
    shared = SharedPrefixes(ints[0, :1], ints, ints)
    with pytest.raises(ValueError, match=message):
        paged_decode_attention(
            q,
            Pages(pages, pages),
            PagedRows(ints[:, 0], ints),
            Scoring(1.0, options.pop("window", None)),
            shared=shared,
            **options,
        )


def test_tiles_that_are_widened_are_small_and_have_two_blocks_a_multiprocessor():
    assert choose_config(256, 8, 4096, is_narrow=True) == DecodeConfig(64, 4)
    assert choose_config(8, 8, 8192, is_narrow=True).num_splits == 4
    assert choose_config(8, 8, 8192).num_splits == 2
