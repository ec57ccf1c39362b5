"""Mosaic kernels on a Hopper GPU, whatever their configuration, dtype and sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention import op as attention
from jaxinfer.kernels.attention.mosaic.decode import DecodeConfig, paged_decode_attention
from jaxinfer.kernels.attention.mosaic.prefill import PrefillConfig, paged_prefill_attention
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.norms import xla as page_write
from jaxinfer.kernels.policy import Kernels
from tests.kernels.attention import attention_cases

pytestmark = pytest.mark.gpu

_STATIC = ("scale", "window", "max_query_len")
_OP = jax.jit(
    functools.partial(attention.paged_attention, kernels=Kernels("mosaic")), static_argnames=_STATIC
)


@functools.partial(jax.jit, static_argnames=(*_STATIC, "config"))
def _configured(q, pages, cu, lens, tables, *, scale, window, max_query_len, config):
    attend = paged_decode_attention if max_query_len == 1 else paged_prefill_attention
    rows, scoring = PagedRows(lens, tables, cu), Scoring(scale, window)
    return attend(q, pages, rows, scoring, config=config)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_random_problems_match_fp64_in_float16(seed, decode):
    case = attention_cases.random_case(np.random.default_rng(seed), decode=decode)
    attention_cases.check(_OP, case, jnp.float16, seed=seed)


@pytest.mark.parametrize(
    "config",
    [
        DecodeConfig(64, 3, 2),
        DecodeConfig(64, 2, 20),
        DecodeConfig(128, 2, 5),
        DecodeConfig(64, 3, 2, in_cluster=True),
        DecodeConfig(64, 4, 4, in_cluster=True),
        DecodeConfig(64, 2, 5, in_cluster=True),
        DecodeConfig(64, 2, 8, in_cluster=True),
    ],
    ids=str,
)
def test_any_number_of_splits_gives_the_same_attention(config):
    for case in attention_cases.decode_cases()[-3:]:
        attention_cases.check(functools.partial(_configured, config=config), case, jnp.bfloat16)


@pytest.mark.parametrize("config", [PrefillConfig(64, 3), PrefillConfig(128, 2)], ids=str)
def test_any_prefill_configuration_gives_the_same_attention(config):
    for case in attention_cases.prefill_cases()[-3:]:
        attention_cases.check(functools.partial(_configured, config=config), case, jnp.bfloat16)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    ("T", "H", "K", "D", "S"), [(5, 16, 8, 128, 16), (256, 40, 8, 128, 64), (33, 3, 1, 64, 8)]
)
def test_norm_rope_write_matches_the_reference_in_place(T, H, K, D, S, merged):
    keys = iter(jax.random.split(jax.random.key(0), 16))
    P = T // S + 5

    def draw(*shape):
        return jax.random.normal(next(keys), shape, jnp.bfloat16)

    q, k, v, q_norm, k_norm = draw(T, H, D), draw(T, K, D), draw(T, K, D), draw(D), draw(D)
    angles = jax.random.normal(next(keys), (T, D // 2)) * 10
    angles = jnp.concatenate([angles, angles], axis=1)
    cos, sin = jnp.cos(angles).astype(q.dtype), jnp.sin(angles).astype(q.dtype)
    pages = Pages(draw(P, S, K, D), draw(P, S, K, D))
    slots = jax.random.permutation(next(keys), P * S)[:T].astype(jnp.int32)

    args = (q_norm, k_norm, cos, sin)
    heads, *others = jax.tree.map(lambda x: x.astype(jnp.float32), ((q, k, v), *args, pages))
    expected = page_write.norm_rope_write(heads, *others, slots, eps=1e-6)
    heads = (jnp.concatenate([q, k, v], axis=1),) if merged else (q, k, v)
    op = functools.partial(attention.norm_rope_write, eps=1e-6, kernels=Kernels("mosaic"))
    before = pages.k.unsafe_buffer_pointer()
    got = jax.jit(op, donate_argnums=(5,))(heads, *args, pages, slots)
    assert got[1].k.unsafe_buffer_pointer() == before, "the pool was copied"
    for mine, theirs in zip(*map(jax.tree.leaves, (got, expected)), strict=True):
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), np.asarray(theirs), rtol=1.6e-2, atol=1.6e-2
        )
