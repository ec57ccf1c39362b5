import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.op import norm_rope_write
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.model.layers.decoder import rotate_heads
from jaxinfer.model.rope import cos_sin
from tests.model.tiny import CONFIG

# Compiled as a whole, as in serving: one operation at a time takes many times as long to compile.
_op = jax.jit(norm_rope_write, static_argnames="eps")


def test_norm_rope_write_stores_keys_and_values_in_their_slots():
    rng = np.random.default_rng(0)
    T, H, K, D, P, S = 5, 4, 2, 64, 4, 8

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    q, k, v = draw(T, H, D), draw(T, K, D), draw(T, K, D)
    q_norm, k_norm, angles = draw(D), draw(D), draw(T, D // 2)
    cos, sin = (jnp.tile(f(angles), (1, 2)) for f in (jnp.cos, jnp.sin))
    pages = jnp.full((P, S, K, D), 7.0)
    slots = jnp.array([17, 9, 31, 0, 0], jnp.int32)
    pages = Pages(pages, pages)
    out, pages = _op((q, k, v), q_norm, k_norm, cos, sin, pages, slots, eps=1e-6)

    def expected(x, weight):
        x = np.asarray(x, np.float64)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * np.asarray(weight, np.float64)
        pairs = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * np.exp(1j * np.asarray(angles))[
            :, None
        ]
        return np.concatenate([pairs.real, pairs.imag], -1)

    np.testing.assert_allclose(out, expected(q, q_norm), rtol=1e-5, atol=1e-5)
    flat_k, flat_v = (np.asarray(p).reshape(P * S, K, D) for p in (pages.k, pages.v))
    np.testing.assert_allclose(flat_k[[17, 9, 31]], expected(k, k_norm)[:3], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(flat_v[[17, 9, 31]], v[:3])
    untouched = np.setdiff1d(np.arange(P * S), [0, 9, 17, 31])
    assert (flat_k[untouched] == 7).all()
    assert (flat_v[untouched] == 7).all()


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norm_and_rotation_round_exactly_as_the_models_forward(dtype, norms):
    rng = np.random.default_rng(1)
    T, H, K, D = 9, 4, 2, 64

    def draw(*shape):
        return jnp.asarray((3 * rng.standard_normal(shape)).astype(dtype))

    q, k, v = draw(T, H, D), draw(T, K, D), draw(T, K, D)
    weights = {"q_norm": draw(D), "k_norm": draw(D)} if norms else {}
    config = dataclasses.replace(CONFIG, head_dim=D)
    cos, sin = cos_sin(jnp.arange(T) * 37, config, dtype)
    pages = jnp.zeros((3, 8, K, D), dtype)
    slots = jnp.arange(8, 8 + T, dtype=jnp.int32)
    heads, empty = (q, k, v), Pages(pages, pages)
    norms = weights.get("q_norm"), weights.get("k_norm")
    got_q, written = _op(heads, *norms, cos, sin, empty, slots, eps=1e-6)
    want_q, want_k = jax.jit(rotate_heads, static_argnums=4)(weights, q, k, (cos, sin), 1e-6)
    np.testing.assert_array_equal(got_q, want_q)
    np.testing.assert_array_equal(written.k.reshape(-1, K, D)[8 : 8 + T], want_k)


def test_heads_in_one_array_are_the_same_as_in_three():
    rng = np.random.default_rng(2)
    T, H, K, D, S = 4, 6, 2, 64, 8

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    heads, cos, sin, norm = draw(T, H + 2 * K, D), draw(T, D), draw(T, D), draw(D)
    parts = heads[:, :H], heads[:, H : H + K], heads[:, H + K :]
    rest = (
        norm,
        norm + 1,
        cos,
        sin,
        Pages(*[jnp.zeros((2, S, K, D))] * 2),
        jnp.arange(T, dtype="int32"),
    )
    expected = _op(parts, *rest, eps=1e-6)
    jax.tree.map(np.testing.assert_array_equal, _op((heads,), *rest, eps=1e-6), expected)
