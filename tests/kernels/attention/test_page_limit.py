"""What kernels can address: no engine's pages, rows or tokens are more than a launch can name."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.config import EngineConfig
from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.shared_prefixes import most_items
from tests.kernels.h200_target import lower_for_h200
from tests.kernels.launches import launches_of_what_is_lowered

_MOST_ROWS = 65_536  # of `EngineConfig.max_num_seqs`
_TABLE_TOKENS = 4096

# (page size, kv heads, head_dim, dtype): both ends of each, and what the bundled model and
# Qwen3-0.6B are.
_POOLS = [
    pytest.param(pool, id=str(pool), marks=marks)
    for pool, marks in [
        ((8, 1, 64, jnp.float16), ()),
        ((16, 2, 128, jnp.bfloat16), pytest.mark.exhaustive),
        ((16, 8, 128, jnp.float16), pytest.mark.exhaustive),
        ((256, 16, 64, jnp.float16), pytest.mark.exhaustive),
        ((256, 16, 128, jnp.bfloat16), ()),
    ]
]


def _shape(*shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(shape, dtype)


def _lower(tokens, rows, pool, *, pages=None, items=0, **options):
    """Attention of `tokens` in `rows` over as many pages as there may be, lowered for an H200."""
    S, K, D, dtype = pool
    pages = _shape(pages or most_pages(S, K), S, K, D, dtype=dtype)
    shared = SharedPrefixes(_shape(1), _shape(items, 4), _shape(rows, 4)) if items else None
    arguments = (_shape(tokens, 2 * K, D, dtype=dtype), Pages(pages, pages), _shape(rows + 1))

    def op(*arguments):
        *arguments, shared = arguments
        return attention.paged_attention(
            *arguments, scale=D**-0.5, kernels=Kernels("mosaic"), shared=shared, **options
        )

    lower_for_h200(op, *arguments, _shape(rows), _shape(rows, _TABLE_TOKENS // S), shared)


_decode = functools.partial(_lower, max_query_len=1)


@given(st.sampled_from([8, 16, 32, 64, 128, 256]), st.integers(1, 128))
def test_every_slot_and_every_row_of_a_pool_has_a_number(page_size, kv_heads):
    pages = most_pages(page_size, kv_heads)
    assert pages * page_size * kv_heads < 2**31
    # A pool that is refused takes more memory than a GPU has.
    assert (pages + 1) * page_size * kv_heads * 64 * 2 >= 256 * 2**30


@pytest.mark.slow
@pytest.mark.parametrize("pool", _POOLS)
def test_a_launch_over_the_largest_pool_is_possible(pool, monkeypatch):
    with launches_of_what_is_lowered(monkeypatch) as launches:
        _decode(256, 256, pool)
        _decode(2, 2, pool)  # whose contexts are split
        _decode(256, 256, pool, items=most_items(256))
        _lower(1024, 64, pool)
        _lower(32, 8, pool)
    launches.check()
    assert len(launches.grids) >= 6


@pytest.mark.slow
def test_a_launch_with_as_many_rows_and_tokens_as_a_configuration_allows_is_possible(monkeypatch):
    config = EngineConfig(max_num_seqs=_MOST_ROWS, max_num_batched_tokens=2**24)
    rows = config.max_num_seqs
    with pytest.raises(ValueError, match="max_num_seqs"):
        EngineConfig(max_num_seqs=rows + 1)
    pool = (16, 2, 128, jnp.bfloat16)
    with launches_of_what_is_lowered(monkeypatch) as launches:
        _decode(rows, rows, pool, items=most_items(rows))
        _lower(config.token_budget("gpu"), rows, pool)
    launches.check()
    assert len(launches.grids) == 3


@pytest.mark.parametrize(
    "lower", [functools.partial(_decode, 8, 8), functools.partial(_lower, 64, 8)]
)
def test_kernels_refuse_a_pool_that_they_cannot_address(lower):
    pool = (16, 8, 128, jnp.bfloat16)
    with pytest.raises(ValueError, match=f"address at most {most_pages(16, 8)} pages"):
        lower(pool, pages=most_pages(16, 8) + 1)
