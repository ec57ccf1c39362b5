"""The Mosaic kernels still lower for an H200, without copies of a pool and in few kernels."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.kernels import attention
from tests.kernels.h200_target import compile_for_h200, needs_plugin

pytestmark = needs_plugin

B, H, K, D, S, W, P = 16, 16, 8, 128, 16, 64, 500
_BF16, _INT32 = jnp.bfloat16, jnp.int32


def _shape(*shape, dtype=_BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


def _kernels(compiled):
    return compiled.as_text().count('custom_call_target="mosaic_gpu')


@pytest.mark.parametrize(("batch", "kernels"), [(256, 1), (1, 2)])
def test_decode_is_one_kernel_and_a_combine_pass_at_small_batch(batch, kernels):
    op = functools.partial(
        attention.paged_attention, scale=D**-0.5, max_query_len=1, backend="mosaic"
    )
    compiled = compile_for_h200(
        op,
        _shape(batch, H, D),
        _shape(P, S, K, D),
        _shape(P, S, K, D),
        _shape(batch + 1, dtype=_INT32),
        _shape(batch, dtype=_INT32),
        _shape(batch, 4 * W, dtype=_INT32),
    )
    assert _kernels(compiled) == kernels


def test_prefill_is_one_kernel_beside_its_work_list():
    op = functools.partial(attention.paged_attention, scale=D**-0.5, backend="mosaic")
    compiled = compile_for_h200(
        op,
        _shape(256, H, D),
        _shape(P, S, K, D),
        _shape(P, S, K, D),
        _shape(B + 1, dtype=_INT32),
        _shape(B, dtype=_INT32),
        _shape(B, W, dtype=_INT32),
    )
    assert _kernels(compiled) == 1


def test_page_write_aliases_the_donated_pools():
    op = functools.partial(attention.norm_rope_write, eps=1e-6, backend="mosaic")
    heads, pool, vector, row = _shape(B, K, D), _shape(P, S, K, D), _shape(D), _shape(B, D)
    compiled = compile_for_h200(
        op,
        _shape(B, H, D),
        *(heads, heads, vector, vector, row, row, pool, pool, _shape(B, dtype=_INT32)),
        donate=(7, 8),
    )
    pool_bytes = 2 * P * S * K * D * 2
    assert compiled.memory_analysis().alias_size_in_bytes >= pool_bytes
    assert compiled.memory_analysis().temp_size_in_bytes < pool_bytes / 100
    assert "copy" not in compiled.as_text()
