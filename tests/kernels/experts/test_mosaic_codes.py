"""Kernels of experts in blocks of float8 on Hopper GPUs, beside the plain matrices' float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels import fp8
from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.groups import group
from jaxinfer.kernels.experts.mosaic import few_rows_codes, grouped, grouped_codes, spread_codes
from jaxinfer.kernels.experts.mosaic.few_rows import Listed, list_experts
from jaxinfer.kernels.mosaic import in_flight, registers
from tests.kernels.experts.interpreted import interpret

EPS = 1e-6


def draw(seed, *shape, scale=1.0):
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * scale
    return jnp.asarray(values, jnp.bfloat16)


def codes(seed, experts, outputs, inputs):
    """Blocks whose scales differ, of weights of about one over the root of inputs."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((experts, outputs, inputs), np.float32) * 60
    scale = rng.uniform(0.5, 2, (experts, outputs // 128, inputs // 128)) / (60 * inputs**0.5)
    return QuantizedExperts(jnp.asarray(weight).astype(fp8.FP8), jnp.asarray(scale, jnp.float32))


def plain(experts):
    """The matrices that codes and scales stand for, in float64."""
    scale = np.asarray(experts.scale, np.float64).repeat(128, 1).repeat(128, 2)
    return np.asarray(experts.weight.astype(jnp.float32), np.float64) * scale


def rounded(values):
    """What is left of rows in float64 once each group of 128 was quantized."""
    groups = jnp.asarray(values, jnp.float32).reshape(len(values), -1, 128)
    wide = fp8.dequantize(*fp8.quantize(groups))
    return np.asarray(wide, np.float64).reshape(values.shape)


def choose(T, k, X, seed=0):
    chosen = np.argsort(np.random.default_rng(seed).random((T, X)), axis=1)[:, :k]
    return jnp.asarray(np.sort(chosen, axis=1), jnp.int32)


def _inner(rows, gate, up):
    opened = rounded(rows) @ gate.T
    product = opened / (1 + np.exp(-opened)) * (rounded(rows) @ up.T)
    return np.asarray(jnp.asarray(product, jnp.bfloat16), np.float64)


def _near(found, expected, most):
    found = np.asarray(found, np.float64)
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < most


def check_few_rows(B, X, E, F, k):
    x, norm = draw(1, B, E), 1 + draw(2, E, scale=0.1)
    gate, up, down = codes(3, X, F, E), codes(4, X, F, E), codes(5, X, E, F)
    chosen = choose(B, k, X)
    weights = jnp.asarray(np.random.default_rng(6).uniform(0.1, 1, (B, k)), jnp.float32)
    assert few_rows_codes.supports(B, (gate, up, down), x.dtype)
    listed = list_experts(chosen, weights, X)
    inner = jax.jit(functools.partial(few_rows_codes.gated, eps=EPS))(x, norm, gate, up, listed)
    found = jax.jit(few_rows_codes.project_add, static_argnums=3)(inner, down, listed, B, x)
    wide = np.asarray(x, np.float64)
    hidden = wide * np.asarray(norm, np.float64)
    scale = 1 / np.sqrt((wide**2).mean(1, keepdims=True) + EPS)
    matrices = [plain(each) for each in (gate, up, down)]
    added = np.zeros_like(wide)
    for number in range(int(listed.total[0])):
        expert = int(listed.experts[number])
        opened, widened = (rounded(hidden) * scale @ each[expert].T for each in matrices[:2])
        product = opened / (1 + np.exp(-opened)) * widened
        _near(inner[number, :B], product, 0.005)
        own = np.asarray(inner[number, :B], np.float64)
        added += np.asarray(listed.weights[number, :B])[:, None] * (
            rounded(own) @ matrices[2][expert].T
        )
    _near(np.asarray(found, np.float64) - wide, added, 0.01)


def check_grouped(T, X, E, F, k, rows=None):
    hidden, chosen = draw(1, T, E), choose(T, k, X)
    gate, up, down = codes(3, X, F, E), codes(4, X, F, E), codes(5, X, E, F)
    rows = rows or grouped_codes.tile_rows(chosen.size, X)
    groups = group(chosen, X, rows)
    placed = jax.jit(spread_codes.spread, static_argnums=2)(
        hidden, groups.places, groups.num_places
    )
    inner = jax.jit(grouped_codes.gated, static_argnums=4)(placed, gate, up, groups.tiles, rows)
    found = jax.jit(grouped_codes.project, static_argnums=3)(inner, down, groups.tiles, rows)
    places, experts = np.asarray(groups.places).T[:T], np.asarray(chosen)
    of_rows = fp8.quantize(hidden.reshape(T, -1, 128))
    matrices = [plain(each) for each in (gate, up, down)]
    for token in range(0, T, max(T // 40, 1)):
        for place, expert in zip(places[token], experts[token], strict=True):
            np.testing.assert_array_equal(placed.scale[:, place], of_rows[1][token])
            np.testing.assert_array_equal(placed.codes[place], of_rows[0][token].reshape(-1))
            product = _inner(
                np.asarray(hidden, np.float64)[token][None], *(m[expert] for m in matrices[:2])
            )
            made = _wide(inner, place)
            _near(made, rounded(product)[0], 0.06)  # Some of 128 become the next float8.
            _near(found[place], made @ matrices[2][expert].T, 0.005)


def _wide(rows, place):
    values = np.asarray(rows.codes[place].astype(jnp.float32), np.float64)
    return values * np.asarray(rows.scale[:, place], np.float64).repeat(128)


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 2, 4, 8])
@pytest.mark.parametrize(("X", "E", "F"), [(32, 512, 128), (64, 512, 384), (32, 2048, 768)])
def test_few_rows_match_fp64(B, X, E, F):
    check_few_rows(B, X, E, F, 4)


def test_more_than_8_rows_are_for_groups():
    def matrix(outputs, inputs):
        scale = np.zeros((32, outputs // 128, inputs // 128), np.float32)
        return QuantizedExperts(np.zeros((32, outputs, inputs), fp8.FP8), scale)

    gate, down = matrix(128, 512), matrix(512, 128)
    assert few_rows_codes.supports(8, (gate, gate, down), jnp.bfloat16)
    assert not few_rows_codes.supports(16, (gate, gate, down), jnp.bfloat16)
    assert grouped_codes.supports(jnp.bfloat16, (gate, gate, down))
    x, inner = jnp.zeros((16, 512), jnp.bfloat16), jnp.zeros((2, 16, 128), jnp.bfloat16)
    listed = Listed(*(jnp.zeros(2, jnp.int32),) * 3)
    with pytest.raises(ValueError, match="take 8 rows, not 16"):
        few_rows_codes.gated(x, x[0], gate, gate, listed, eps=EPS)
    with pytest.raises(ValueError, match="take 8 rows, not 16"):
        few_rows_codes.project_add(inner, down, listed, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("T", [16, 64, 256, 1024])
@pytest.mark.parametrize(("X", "E", "F"), [(32, 512, 128), (64, 640, 384), (32, 2048, 768)])
def test_groups_match_fp64(T, X, E, F):
    check_grouped(T, X, E, F, 4)


def _float32(ref):
    return ref[...].astype(jnp.float32)


@pytest.fixture
def interpreted(monkeypatch):
    interpret(monkeypatch)
    monkeypatch.setattr(in_flight, "start", lambda x, w: jnp.dot(_float32(x), _float32(w).T))
    monkeypatch.setattr(in_flight, "landed", lambda sums, _: sums)
    for module in (few_rows_codes, grouped):  # Each block takes the interpreter long.
        monkeypatch.setattr(module, "MULTIPROCESSORS", 2)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("B", [2, 8])
def test_few_rows_match_fp64_in_the_interpreter(B):
    check_few_rows(B, 32, 512, 128, 2)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("rows", "movable"), [(16, False), (64, False), (128, True)])
def test_groups_match_fp64_in_the_interpreter(rows, movable, monkeypatch):
    monkeypatch.setattr(registers, "can_be_moved", lambda: movable)
    check_grouped(20, 4, 256, 128, 2, rows)
