"""The Mosaic kernels on CPU, in Pallas's interpreter, as far as it goes.

It knows neither accumulators that outlive a product (prefill), nor stores into another block's
memory (split small projections): those run in the GPU tests and are compiled in
test_mosaic_lowering.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.attention.mosaic import decode, decode_tile
from jaxinfer.kernels.attention.mosaic.combine import combine_splits
from jaxinfer.kernels.attention.mosaic.decode import DecodeConfig, paged_decode_attention
from jaxinfer.kernels.attention.mosaic.page_tiles import in_memory
from jaxinfer.kernels.attention.mosaic.partial_decode import (
    combine_partly,
    partial_decode_attention,
)
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.partial import merged
from jaxinfer.kernels.norms.mosaic.norm_rope_write import norm_rope_write
from tests.kernels.attention import attention_cases

_slots_are_reused = pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason="jax 0.11's interpreter wants every phase of a barrier awaited, the last one too",
)


@pytest.fixture(autouse=True)
def _interpret(monkeypatch):
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    # Nor does it know operands in registers.
    monkeypatch.setattr(decode_tile, "keys_of", _keys_in_memory)
    # What is lowered for a GPU can't be interpreted.
    monkeypatch.setattr(decode, "call_built_for", _call)


def _keys_in_memory(memory, slot):
    return in_memory(memory.k.at[slot], memory.wide)


def _call(launch, problem, shapes, args, out, *, name):
    return launch(problem, shapes)(*args)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(("H", "K", "D"), [(4, 2, 128), (3, 1, 64)])
def test_norm_rope_write_matches_fp64_and_touches_only_its_slots(H, K, D, merged, norms):
    T, S, P, eps = 3, 8, 4, 1e-6
    rng = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape).astype(jnp.bfloat16))

    q, k, v, q_norm, k_norm = draw(T, H, D), draw(T, K, D), draw(T, K, D), draw(D), draw(D)
    cos, sin, k_pages, v_pages = draw(T, D), draw(T, D), draw(P, S, K, D), draw(P, S, K, D)
    slots = np.array([9, 31, 14], np.int32)

    def exact(x, weight):
        x, weight, c, s = (np.asarray(a, np.float64) for a in (x, weight, cos, sin))
        if norms:
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
        turned = np.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return x * c[:, None] + turned * s[:, None]

    heads = (jnp.concatenate([q, k, v], axis=1),) if merged else (q, k, v)
    weights = (q_norm, k_norm) if norms else (None, None)
    out, (new_k, new_v, *_) = norm_rope_write(
        heads, *weights, cos, sin, Pages(k_pages, v_pages), jnp.asarray(slots), eps=eps
    )
    expected_k, expected_v = np.asarray(k_pages, np.float64), np.asarray(v_pages, np.float64)
    expected_k[slots // S, slots % S] = exact(k, k_norm)
    expected_v[slots // S, slots % S] = np.asarray(v, np.float64)
    for got, expected in ((out, exact(q, q_norm)), (new_k, expected_k), (new_v, expected_v)):
        np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=1e-2, atol=1e-2)


@_slots_are_reused
def test_parts_of_decode_make_the_whole():
    case = attention_cases.Case(
        "parts",
        (1,) * 3,
        (0, 64, 130),
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=64,
        decode=True,
    )

    def attention(q, pages, _, lens, tables, *, scale, window, max_query_len):
        parts = []
        for rank in range(2):
            rows = PagedRows((lens + 1 - rank) // 2, tables)
            own = Pages(*(pool[:, rank::2] for pool in pages if pool is not None))
            parts.append(partial_decode_attention(q, own, rows, Scoring(scale)))
        return merged(*map(jnp.stack, zip(*parts, strict=True))).astype(q.dtype)

    attention_cases.check(attention, case, jnp.bfloat16)


def test_combine_weighs_splits_by_their_sums_and_ignores_unwritten_ones():
    B, H, K, D, N, slots, splits = 2, 4, 2, 64, 8, 16, 3
    rng = np.random.default_rng(0)
    partial = np.full((B * K, slots, D, N), np.nan, np.float32)
    log_sums = np.full((B * K, slots, N), np.nan, np.float32)
    partial[:, :splits] = rng.standard_normal((B * K, splits, D, N))
    log_sums[:, :splits] = rng.standard_normal((B * K, splits, N)) * 4
    log_sums[:, 1] = -np.inf  # A split without keys...
    log_sums[:K, :splits] = -np.inf  # ...and a sequence without keys.
    out = combine_splits(
        jnp.asarray(partial), jnp.asarray(log_sums), splits, B=B, H=H, dtype=jnp.float32
    )
    partly, together = combine_partly(jnp.asarray(partial), jnp.asarray(log_sums), splits, B=B, H=H)
    np.testing.assert_allclose(partly, out, rtol=1e-6)
    assert (np.asarray(together)[0] <= -1e30).all()
    assert not np.asarray(out)[0].any()
    for head in range(H):
        query = H + head
        column = query - query // 2 * 2 // 8 * 8
        weights = np.exp2(log_sums[K + head // 2, :splits, column].astype(np.float64))
        expected = weights @ partial[K + head // 2, :splits, :, column] / weights.sum()
        np.testing.assert_allclose(np.asarray(out)[1, head], expected, rtol=1e-5, atol=1e-5)
        assert together[1, head] == pytest.approx(np.log2(weights.sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("group", "head_dim", "page_size", "config", "window"),
    [
        pytest.param(2, 128, 64, DecodeConfig(64, 2, 1), None, marks=_slots_are_reused),
        pytest.param(2, 128, 16, DecodeConfig(64, 2, 1), None, marks=_slots_are_reused),
        (3, 64, 32, DecodeConfig(128, 2, 1), None),
        (1, 64, 256, DecodeConfig(128, 2, 1), None),
        (5, 64, 64, DecodeConfig(64, 3, 3), None),
        (4, 64, 128, DecodeConfig(64, 2, 2), 40),
    ],
)
@pytest.mark.parametrize("page_dtype", [None, jnp.float8_e4m3fn])
def test_decode_matches_fp64_with_poisoned_pages(
    group, head_dim, page_size, config, window, page_dtype
):
    case = attention_cases.Case(
        "interpreted",
        (1,) * 3,
        (0, 64, 130),
        num_heads=2 * group,
        num_kv_heads=2,
        head_dim=head_dim,
        block_size=page_size,
        window=window,
        decode=True,
    )

    def attention(q, pages, _, lens, tables, *, scale, window, max_query_len):
        assert max_query_len == 1
        rows, scoring = PagedRows(lens, tables), Scoring(scale, window)
        return paged_decode_attention(q, pages, rows, scoring, config=config)

    attention_cases.check(attention, case, jnp.bfloat16, page_dtype=page_dtype)
