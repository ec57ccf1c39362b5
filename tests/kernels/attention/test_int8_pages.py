"""An int8 cache holds what was written to half a step, and is attended to exactly as read."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.op import norm_rope_write, paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.int8 import dequantize, quantize
from jaxinfer.kernels.policy import Kernels
from tests.kernels.attention import attention_cases as cases

_quantize = jax.jit(quantize)


def _draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def test_no_value_changes_by_more_than_half_a_step():
    heads = _draw(np.random.default_rng(0), 40, 3, 64) * np.logspace(-20, 20, 40)[:, None, None]
    heads = heads.astype(np.float32)
    values, scale = _quantize(heads)
    assert (values.dtype, scale.dtype) == (jnp.int8, jnp.float32)
    np.testing.assert_allclose(scale, np.abs(heads).max(-1) / 127, rtol=1e-6)
    assert (np.abs(values).max(-1) == 127).all()
    read = np.asarray(dequantize(values, scale))
    assert (np.abs(read - heads) <= 0.5001 * np.asarray(scale)[..., None]).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_halves_are_rounded_to_even(dtype):
    heads = jnp.asarray([[[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127]]], dtype)
    values, scale = _quantize(heads)
    assert values.tolist() == [[[127, 0, 2, 2, 0, -2, -2, -127]]]
    assert scale.tolist() == [[1.0]]


def test_zeros_stay_zeros_and_what_is_not_finite_is_read_as_nan():
    heads = np.zeros((4, 1, 8), np.float32)
    heads[1, 0, 3], heads[2, 0, 3], heads[3, 0, 3] = np.nan, np.inf, 1e-44
    values, scale = _quantize(heads)
    read = np.asarray(dequantize(values, scale))
    assert not read[0].any()
    assert np.isnan(read[1:3]).all()
    assert np.abs(read[3]).max() < 1e-37


def test_the_write_stores_integers_and_scales_in_their_slots_alone():
    rng = np.random.default_rng(0)
    T, H, K, D, P, S = 5, 4, 2, 64, 4, 8
    q, k, v = _draw(rng, T, H, D), _draw(rng, T, K, D), _draw(rng, T, K, D)
    rest = _draw(rng, D), _draw(rng, D), _draw(rng, T, D), _draw(rng, T, D)
    slots = np.array([17, 9, 31, 8, 16], np.int32)
    write = jax.jit(functools.partial(norm_rope_write, eps=1e-6))
    full = Pages(*[jnp.zeros((P, S, K, D))] * 2)
    scales = jnp.full((P, S, K), jnp.nan)
    integers = Pages(*[jnp.full((P, S, K, D), 7, jnp.int8)] * 2, scales, scales)
    expected_q, expected = write((q, k, v), *rest, full, slots)
    got_q, got = write((q, k, v), *rest, integers, slots)
    np.testing.assert_array_equal(got_q, expected_q)
    for name in ("k", "v"):
        heads = np.asarray(getattr(expected, name)).reshape(-1, K, D)[slots]
        held = np.asarray(getattr(got, name)).reshape(-1, K, D)
        scale = np.asarray(getattr(got, f"{name}_scale")).reshape(-1, K)
        values, wanted = _quantize(heads)
        np.testing.assert_array_equal(held[slots], values)
        np.testing.assert_allclose(scale[slots], wanted, rtol=1e-6)
        others = np.setdiff1d(np.arange(P * S), slots)
        assert (held[others] == 7).all()
        assert np.isnan(scale[others]).all()


def _in_integers(pages):
    """The pages as an int8 cache holds them, with garbage where nothing was written."""

    def held(pool):
        values, scale = map(np.array, _quantize(pool.reshape(-1, *pool.shape[2:])))
        values[np.isnan(scale)] = -128
        return values.reshape(pool.shape), scale.reshape(pool.shape[:3])

    (k, k_scale), (v, v_scale) = held(pages.k), held(pages.v)
    return Pages(*map(jnp.asarray, (k, v, k_scale, v_scale)))


_CASES = [
    cases.Case("decode", (1,) * 5, (1, 17, 0, 128, 300), num_heads=8, decode=True),
    cases.Case("decode_small_pages", (1,) * 3, (7, 8, 90), block_size=8, decode=True),
    cases.Case("decode_window", (1,) * 4, (5, 40, 129, 700), window=33, decode=True),
    cases.Case("prefill", (7, 0, 70, 1), (7, 0, 200, 33), pad_tokens=5),
    cases.Case("prefill_window", (1, 90), (300, 150), block_size=64, window=50),
]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("backend", ["xla", "numba"])
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_attention_is_that_over_what_is_read(case, backend, dtype):
    if backend == "numba" and dtype != jnp.float32:
        pytest.skip("numba's attention is in float32")
    q, pages, *rest = cases.build(case, jnp.float32, 0).arguments
    pages = _in_integers(pages)
    read = Pages(dequantize(pages.k, pages.k_scale), dequantize(pages.v, pages.v_scale))
    longest = 1 if case.decode else None
    options = {"scale": case.head_dim**-0.5, "window": case.window, "max_query_len": longest}

    def attend(q, pages, backend):
        op = functools.partial(paged_attention, kernels=Kernels(backend), **options)
        return jax.jit(op, compiler_options=cases.QUICK_TO_COMPILE)(q, pages, *rest)

    q = q.astype(dtype)
    got = attend(q, pages, backend)
    assert got.dtype == dtype
    expected = attend(q.astype(jnp.float32), read, "xla")
    np.testing.assert_allclose(got, expected.astype(dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["xla", "numba"])
def test_neither_batch_mates_nor_the_size_of_pages_change_a_bit(backend):
    contexts = (31, 64, 77)
    case = cases.Case("decode", (1,) * 3, contexts, block_size=32, decode=True)
    problem = cases.build(case, jnp.float32, 0)
    q, pages, offsets, lens, tables = problem.arguments
    pages = _in_integers(pages)
    op = jax.jit(
        functools.partial(paged_attention, scale=0.1, max_query_len=1, kernels=Kernels(backend))
    )
    together = op(q, pages, offsets, lens, tables)
    alone = op(q[1:2], pages, offsets[:2], lens[1:2], tables[1:2])
    np.testing.assert_array_equal(alone[0], together[1])
    smaller = jax.tree.map(lambda pool: pool.reshape(-1, 8, *pool.shape[2:]), pages)
    cut = (tables[..., None] * 4 + jnp.arange(4)).reshape(3, -1)
    np.testing.assert_array_equal(op(q, smaller, offsets, lens, cut), together)


def test_a_scale_that_is_not_a_number_spoils_its_own_row_alone():
    case = cases.Case("decode", (1,) * 3, (31, 64, 77), decode=True)
    q, pages, *rest = cases.build(case, jnp.float32, 0).arguments
    pages = _in_integers(pages)
    page = rest[-1][1, 0]
    for backend in ("xla", "numba"):
        op = functools.partial(
            paged_attention, scale=0.1, max_query_len=1, kernels=Kernels(backend)
        )
        for name in ("k_scale", "v_scale"):
            spoilt = getattr(pages, name).at[page].set(jnp.nan)
            got = jax.jit(op)(q, pages._replace(**{name: spoilt}), *rest)
            assert np.isnan(got).any(axis=(1, 2)).tolist() == [False, True, False]


def test_cases_are_checked_against_fp64_within_what_rounding_costs():
    case = dataclasses.replace(_CASES[0], name="exact")
    problem = cases.build(case, jnp.float32, 0)
    q, pages, *rest = problem.arguments
    op = functools.partial(paged_attention, scale=problem.scale, max_query_len=1)
    got = jax.jit(op)(q, _in_integers(pages), *rest)
    np.testing.assert_allclose(got, problem.expected, atol=0.03)
