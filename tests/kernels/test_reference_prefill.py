import functools

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels.reference import paged_prefill_attention
from tests.kernels import attention_cases as cases


@functools.cache
def _op(window, scale):
    return jax.jit(functools.partial(paged_prefill_attention, scale=scale, window=window))


def _attention(*arrays, scale, window, max_query_len):
    assert max_query_len is None
    return _op(window, scale)(*arrays)


@pytest.mark.parametrize("case", cases.prefill_cases(), ids=lambda case: case.name)
def test_prefill_equals_fp64(case):
    cases.check(_attention, case, jnp.float32)
