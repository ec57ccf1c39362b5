import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.pages import PagedRows, Scoring
from jaxinfer.kernels.attention.xla import paged_prefill_attention
from tests.kernels.attention import attention_cases as cases
from tests.kernels.attention import covering_cases as covering


@functools.cache
def _op(window, scale):
    def op(q, pages, cu_seqlens_q, context_lens, block_tables):
        rows = PagedRows(context_lens, block_tables, cu_seqlens_q)
        return paged_prefill_attention(q, pages, rows, Scoring(scale, window))

    return jax.jit(op, compiler_options=cases.QUICK_TO_COMPILE)


def _attention(*arrays, scale, window, max_query_len):
    assert max_query_len is None
    return _op(window, scale)(*arrays)


@pytest.mark.parametrize("case", covering.params(covering.prefill_cases(), cases.prefill_cases()))
def test_prefill_equals_fp64(case):
    cases.check(_attention, case, jnp.float32)


def test_padding_alone_gives_zeros():
    problem = cases.build(covering.prefill_cases()[1], jnp.float32, 0)
    *arrays, offsets, contexts, tables = problem.arguments
    none = 0 * offsets, 0 * contexts, 0 * tables
    out = _attention(*arrays, *none, scale=problem.scale, window=None, max_query_len=None)
    assert not np.asarray(out).any()
