import functools

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.attention.xla import paged_prefill_attention
from tests.kernels.attention import attention_cases as cases


@functools.cache
def _op(window, scale):
    op = functools.partial(paged_prefill_attention, scale=scale, window=window)
    return jax.jit(op, compiler_options=cases.QUICK_TO_COMPILE)


def _attention(*arrays, scale, window, max_query_len):
    assert max_query_len is None
    return _op(window, scale)(*arrays)


@pytest.mark.parametrize("case", cases.prefill_cases(), ids=lambda case: case.name)
def test_prefill_equals_fp64(case):
    cases.check(_attention, case, jnp.float32)
