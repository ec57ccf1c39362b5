"""Mosaic attention on a Hopper GPU: the shared test body, and keys that rows share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention import shared_prefix
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.shared_prefixes import find_groups, most_items, write_items
from tests.kernels.attention import attention_cases

pytestmark = pytest.mark.gpu

_CASES = [*attention_cases.decode_cases(), *attention_cases.prefill_cases()]
_STATIC = ("scale", "window", "max_query_len")
# Compiled as a whole, as in serving: one operation at a time takes many times as long to compile.
_OP = jax.jit(
    functools.partial(attention.paged_attention, kernels=Kernels("mosaic")), static_argnames=_STATIC
)


_page_dtypes = pytest.mark.parametrize("page_dtype", [None, FP8], ids=["as queries", "fp8"])


@_page_dtypes
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_attention_matches_fp64(case, page_dtype):
    attention_cases.check(_OP, case, jnp.bfloat16, page_dtype=page_dtype)


def _shared(q, pages, lens, tables):
    """Which rows begin with the same pages; some do."""
    rows, H, _ = q.shape
    S, K = pages.k.shape[1:3]
    size = shared_prefix.rows_in_item(H // K)
    groups = find_groups(
        np.asarray(tables), np.asarray(lens), block_size=S, batch_rows=rows, rows_in_item=size
    )
    units = np.zeros((most_items(rows), 4), np.int32)
    shared = SharedPrefixes(np.zeros(1, np.int32), units, np.zeros((rows, 4), np.int32))
    write_items(shared, groups)
    assert shared.num_items[0]
    return shared


@_page_dtypes
@pytest.mark.parametrize("case", attention_cases.shared_cases(), ids=lambda case: case.name)
def test_keys_that_rows_share_can_be_read_once(case, page_dtype):
    def attention(q, pages, cu, lens, tables, **options):
        shared = _shared(q, pages, lens, tables)
        return _OP(q, pages, cu, lens, tables, shared=shared, **options)

    attention_cases.check(attention, case, jnp.bfloat16, page_dtype=page_dtype)


def test_rows_without_a_context_give_zeros_whatever_they_shared():
    problem = attention_cases.build(attention_cases.shared_cases()[1], jnp.bfloat16, seed=0)
    q, pages, cu, lens, tables = problem.arguments
    shared = _shared(q, pages, lens, tables)
    run = functools.partial(_OP, q, pages, cu, scale=problem.scale, max_query_len=1, shared=shared)
    before, after = run(lens, tables), run(lens.at[::3].set(0), tables)
    assert not np.asarray(after[::3], np.float32).any()
    for rest in (slice(1, None, 3), slice(2, None, 3)):
        np.testing.assert_array_equal(np.asarray(after[rest]), np.asarray(before[rest]))
