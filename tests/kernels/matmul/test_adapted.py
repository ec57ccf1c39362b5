"""Projections with adapters: each token's own, and nothing of another's."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.matmul.adapted import AdaptedLeaf, Owned
from jaxinfer.kernels.matmul.op import begin, linear_of, norm_project, project_add
from jaxinfer.kernels.norms.xla import rms_norm

L, R, INPUTS, OUTPUTS = 3, 4, 16, 8
SLOTS = jnp.array([2, -1, 0, 2, 1], jnp.int32)


def owned(slots, num_slots):
    owners = jnp.repeat(jnp.arange(num_slots, dtype=jnp.int32), R)
    return Owned(slots, owners, jnp.zeros((4, 2), jnp.int32))


def leaf(seed=0, slots=SLOTS):
    rng = np.random.default_rng(seed)
    shapes = ((OUTPUTS, INPUTS), (L * R, INPUTS), (OUTPUTS, L * R))
    weight, a, b = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return AdaptedLeaf(jnp.array(weight), jnp.array(a), jnp.array(b), owned(slots, L))


def inputs():
    return jnp.array(np.random.default_rng(1).normal(size=(len(SLOTS), INPUTS)), jnp.float32)


def expected(each, x):
    """By a loop over tokens."""
    rows = []
    for row, slot in zip(np.asarray(x), SLOTS.tolist(), strict=True):
        ranks = slice(slot * R, (slot + 1) * R) if slot >= 0 else slice(0)
        weight = np.asarray(each.weight) + np.asarray(each.b)[:, ranks] @ np.asarray(each.a)[ranks]
        rows.append(weight @ row)
    return np.stack(rows)


def test_each_token_has_its_own_adapter_or_none():
    each, x = leaf(), inputs()
    found = linear_of({"q_proj": each}, "q_proj").product(x, x.dtype)
    np.testing.assert_allclose(found, expected(each, x), rtol=1e-5, atol=1e-5)


def test_ops_take_it_as_they_take_plain_weights():
    each, x = leaf(), inputs()
    linear, norm = linear_of({"q_proj": each}, "q_proj"), jnp.ones(INPUTS)
    _, (found,) = norm_project(begin(x), norm, [linear], eps=1e-6)
    wanted = expected(each, rms_norm(x, norm, 1e-6))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    residual = begin(jnp.ones((len(SLOTS), OUTPUTS)))
    found = project_add(x, linear, residual).summed()
    np.testing.assert_allclose(found, 1 + expected(each, x), rtol=1e-5, atol=1e-5)


def test_outputs_can_be_selected():
    each, x = leaf(), inputs()
    linear = linear_of({"k_proj": each}, "k_proj").of_outputs(lambda leaf: leaf[2:5])
    assert linear.shape == (3, INPUTS)
    found = linear.product(x, x.dtype)
    np.testing.assert_allclose(found, expected(each, x)[:, 2:5], rtol=1e-5, atol=1e-5)


def test_what_an_adapter_overflows_to_reaches_no_other_token():
    each, x = leaf(), inputs()
    wild = AdaptedLeaf(each.weight, each.a.at[R : 2 * R].set(3e38), each.b, each.owned)
    found = linear_of({"q_proj": wild}, "q_proj").product(x, x.dtype)
    wanted = linear_of({"q_proj": each}, "q_proj").product(x, x.dtype)
    np.testing.assert_array_equal(found[:4], wanted[:4])
    assert not np.isfinite(found[4]).all()


@pytest.mark.parametrize("slot", range(L))
def test_the_slot_changes_nothing(slot):
    each, x = leaf(), inputs()[:1]
    a, b = each.a[:R], each.b[:, :R]
    moved = AdaptedLeaf(
        each.weight,
        jnp.zeros_like(each.a).at[slot * R : (slot + 1) * R].set(a),
        jnp.zeros_like(each.b).at[:, slot * R : (slot + 1) * R].set(b),
        owned(jnp.array([slot], jnp.int32), L),
    )
    alone = AdaptedLeaf(each.weight, a, b, owned(jnp.array([0], jnp.int32), 1))
    found, wanted = (
        linear_of({"q_proj": leaf}, "q_proj").product(x, x.dtype) for leaf in (moved, alone)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
