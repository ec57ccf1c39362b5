"""Pages of float8_e4m3fn hold what was written rounded and limited, and are attended to as read."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.op import norm_rope_write, paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.fp8 import FP8, saturated
from jaxinfer.kernels.policy import Kernels
from tests.kernels.attention import attention_cases as cases


@pytest.mark.parametrize(
    ("value", "held"),
    [(448, 448), (460, 448), (1e30, 448), (-1e30, -448), (np.inf, 448), (0.1, 0.1015625), (0, 0)],
)
def test_values_are_rounded_to_the_nearest_and_limited(value, held):
    assert float(saturated(jnp.float32(value)).astype(FP8)) == held


def test_nan_stays_nan():
    assert np.isnan(float(saturated(jnp.float32(np.nan)).astype(FP8)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_write_stores_heads_in_their_slots_alone(dtype):
    rng = np.random.default_rng(0)
    T, H, K, D, P, S = 5, 4, 2, 64, 4, 8

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape) * 300, dtype)

    heads, rest = (draw(T, H, D), draw(T, K, D), draw(T, K, D)), (draw(D), draw(D))
    rest += draw(T, D) / 300, draw(T, D) / 300
    slots = np.array([17, 9, 31, 8, 16], np.int32)
    write = jax.jit(functools.partial(norm_rope_write, eps=1e-6))
    full = Pages(*[jnp.zeros((P, S, K, D), dtype)] * 2)
    expected_q, expected = write(heads, *rest, full, slots)
    got_q, got = write(heads, *rest, Pages(*[jnp.full((P, S, K, D), 7, FP8)] * 2), slots)
    np.testing.assert_array_equal(got_q, expected_q)
    others = np.setdiff1d(np.arange(P * S), slots)
    for held, wide in ((got.k, expected.k), (got.v, expected.v)):
        held = np.asarray(held, np.float32).reshape(-1, K, D)
        wide = np.asarray(wide, np.float32).reshape(-1, K, D)[slots]
        assert np.abs(wide).max() > 448
        np.testing.assert_array_equal(held[slots], np.clip(wide, -448, 448).astype(FP8))
        assert (held[others] == 7).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "case",
    [
        cases.Case("decode", (1,) * 5, (1, 17, 0, 128, 300), num_heads=8, decode=True),
        cases.Case("decode_window", (1,) * 4, (5, 40, 129, 700), window=33, decode=True),
        cases.Case("prefill", (7, 0, 70, 1), (7, 0, 200, 33), pad_tokens=5),
    ],
    ids=lambda case: case.name,
)
def test_attention_matches_fp64(case, dtype):
    op = functools.partial(paged_attention, kernels=Kernels("xla"))
    cases.check(op, case, dtype, page_dtype=FP8)
