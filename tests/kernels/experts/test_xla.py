"""Experts by blocks give what each token's experts give alone, and read no others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.experts.xla import _block_rows, _sort, expert_outputs, mixture, route

X, K, E, F = 6, 3, 16, 8


def matrices(dtype="float32", num_experts=X):
    rng = np.random.default_rng(1)
    shapes = ((num_experts, F, E), (num_experts, F, E), (num_experts, E, F))
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def batch(num_tokens, num_experts=X, seed=2):
    """Rows, their experts and weights; most tokens choose the last experts."""
    rng = np.random.default_rng(seed)
    likely = np.arange(1.0, num_experts + 1) ** 2
    chosen = [
        rng.choice(num_experts, K, replace=False, p=likely / likely.sum())
        for _ in range(num_tokens)
    ]
    hidden = jnp.asarray(rng.normal(size=(num_tokens, E)), jnp.float32)
    weights = jnp.asarray(rng.random((num_tokens, K)), jnp.float32)
    return hidden, jnp.asarray(np.array(chosen), jnp.int32), weights


def one_by_one(hidden, chosen, weights, gate, up, down):
    """Each token through each of its experts, in float64."""
    hidden, weights, gate, up, down = (
        np.asarray(each, np.float64) for each in (hidden, weights, gate, up, down)
    )
    total = np.zeros_like(hidden)
    for token, experts in enumerate(np.asarray(chosen)):
        for place, expert in enumerate(experts):
            opened = gate[expert] @ hidden[token]
            inner = opened / (1 + np.exp(-opened)) * (up[expert] @ hidden[token])
            total[token] += weights[token, place] * (down[expert] @ inner)
    return total


def dense(hidden, chosen, weights, gate, up, down):
    """All experts of all tokens, of which the chosen ones are picked: XLA differentiates it."""
    product = functools.partial(jnp.einsum, precision="highest")
    inner = jax.nn.silu(product("te,xfe->txf", hidden, gate)) * product("te,xfe->txf", hidden, up)
    every = product("txf,xef->txe", inner, down)
    picked = jnp.take_along_axis(every, chosen[:, :, None], axis=1)
    return jnp.sum(picked * weights[:, :, None], axis=1)


# Blocks of one row, of 16, of more than an expert has, and of a quarter of what one has.
@pytest.mark.parametrize("num_tokens", [1, 5, 8, 40, 150, 1200])
def test_a_mixture_is_the_weighted_sum_of_each_tokens_experts(num_tokens):
    inputs = (*batch(num_tokens), *matrices())
    np.testing.assert_allclose(jax.jit(mixture)(*inputs), one_by_one(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_debugger_may_follow_a_mixture():
    inputs = (*batch(3), *matrices())
    with jax.disable_jit():
        found = mixture(*inputs)
    np.testing.assert_allclose(found, one_by_one(*inputs), rtol=1e-4, atol=1e-4)


def test_blocks_of_one_row_and_of_many_are_tried():
    rows = [_block_rows(tokens * K, X) for tokens in (1, 5, 8, 40, 150, 1200)]
    assert rows == [1, 1, 16, 64, 64, 128]


def test_blocks_of_long_batches_are_few_and_mostly_full():
    """A step of training has 65,536 slots; a loop over blocks of 64 rows would take a second."""
    for num_slots, num_experts in ((65_536, 8), (16_384, 8), (262_144, 128)):
        rows = _block_rows(num_slots, num_experts)
        assert num_slots // rows <= 8 * num_experts
        assert rows <= num_slots // num_experts // 4


@pytest.mark.parametrize(
    "num_tokens",
    [5, pytest.param(24, marks=pytest.mark.slow), pytest.param(150, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_mates_change_no_bit(num_tokens, dtype):
    run, weights_of_experts = jax.jit(mixture), matrices(dtype)
    hidden, chosen, weights = batch(num_tokens)
    hidden, weights = hidden.astype(dtype), weights.astype(dtype)
    expected = run(hidden, chosen, weights, *weights_of_experts)[3]
    for seed in range(10):
        others = batch(num_tokens, seed=10 + seed)
        at = seed % num_tokens
        mates = (
            theirs.astype(mine.dtype).at[at].set(mine[3])
            for theirs, mine in zip(others, (hidden, chosen, weights), strict=True)
        )
        np.testing.assert_array_equal(run(*mates, *weights_of_experts)[at], expected)


@pytest.mark.parametrize("num_tokens", [5, 24])
def test_a_row_of_nan_stays_alone(num_tokens):
    """Of infinite logits softmax makes NaN, whatever experts are taken then."""
    hidden, _, _ = batch(num_tokens)
    gate = jnp.asarray(np.random.default_rng(3).normal(size=(X, E)), jnp.float32)

    @jax.jit
    def run(hidden):
        return mixture(hidden, *route(hidden, gate, K, normalize=True), *matrices())

    expected, found = run(hidden), run(hidden.at[2].set(3e38))
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, axis=0), np.delete(expected, 2, axis=0))
    assert np.isfinite(np.delete(found, 2, axis=0)).all()


@pytest.mark.parametrize("normalize", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whatever_top_k_makes_of_nan_the_row_is_nan(dtype, normalize, monkeypatch):
    """Some select by comparisons, which NaN never wins: what they begin with is left."""
    top_k = jax.lax.top_k

    def by_comparisons(operand, k):
        values, indices = top_k(operand, k)
        is_nan = jnp.isnan(values)
        return jnp.where(is_nan, 0.25, values), jnp.where(is_nan, 2**30, indices)

    monkeypatch.setattr(jax.lax, "top_k", by_comparisons)
    hidden, _, _ = batch(5)
    hidden = hidden.astype(dtype)
    gate = jnp.asarray(np.random.default_rng(3).normal(size=(X, E)), dtype)
    run = functools.partial(route, gate=gate, num_chosen=K, normalize=normalize)
    expected = run(hidden)
    for value in (jnp.nan, jnp.inf):
        chosen, weights = run(hidden.at[2, 1].set(value))
        assert np.isnan(weights[2]).all()
        assert ((chosen >= 0) & (chosen < X)).all()
        for found, before in zip((chosen, weights), expected, strict=True):
            np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(before, 2, 0))
        mixed = mixture(hidden, chosen, weights, *matrices(dtype))
        assert np.isnan(mixed.astype(jnp.float32)[2]).all()


@pytest.mark.parametrize("num_tokens", [5, 24])
def test_padding_goes_through_no_expert(num_tokens):
    hidden, chosen, weights = batch(num_tokens)
    is_token = jnp.arange(num_tokens) < 4
    padded = hidden.at[4:].set(jnp.nan), chosen, weights.at[4:].set(jnp.nan)
    found = mixture(*padded, *matrices(), is_token=is_token)
    np.testing.assert_array_equal(found[4:], 0)
    np.testing.assert_array_equal(found[:4], mixture(hidden, chosen, weights, *matrices())[:4])
    alone = jnp.where(is_token[:, None], chosen, X)
    num_blocks = 4 * K if num_tokens == 5 else len(np.unique(chosen[:4]))  # of one row, or of 32
    assert _sort(alone, X).num_blocks == num_blocks
    assert _sort(jnp.full_like(chosen, X), X).num_blocks == 0


def test_a_block_is_of_one_expert_and_all_slots_are_in_one():
    _, chosen, _ = batch(40)
    sorting = _sort(chosen, X)
    seen = []
    for block in range(int(sorting.num_blocks)):
        expert, slots = sorting.block(jnp.asarray(block))
        own = np.asarray(slots)[np.asarray(slots) < chosen.size]
        assert own.size
        np.testing.assert_array_equal(np.asarray(chosen).reshape(-1)[own], expert)
        assert len(np.unique(slots)) == len(slots)  # as scatters are told
        seen += own.tolist()
    assert sorted(seen) == list(range(chosen.size))


def test_no_operand_is_as_large_as_all_rows_times_all_experts():
    """`ragged_dot` would have one, and as many operations."""
    num_experts, num_tokens = 64, 256
    hidden, chosen, weights = batch(num_tokens, num_experts)
    compiled = (
        jax.jit(mixture).lower(hidden, chosen, weights, *matrices("f4", num_experts)).compile()
    )
    slots = num_tokens * K * (E + 4) * 4
    assert (
        compiled.memory_analysis().temp_size_in_bytes < 4 * slots < num_experts * num_tokens * E * 4
    )


@pytest.mark.parametrize("num_tokens", [5, 24, 1200])
def test_gradients_are_those_of_a_dense_sum(num_tokens):
    hidden, chosen, weights = batch(num_tokens)
    target = jnp.asarray(np.random.default_rng(4).normal(size=(num_tokens, E)), jnp.float32)

    def loss(function, hidden, weights, *experts):
        return jnp.sum(function(hidden, chosen, weights, *experts) * target)

    arguments, places = (hidden, weights, *matrices()), (1, 2, 3, 4, 5)
    found = jax.jit(jax.grad(loss, places), static_argnums=0)(mixture, *arguments)
    expected = jax.grad(loss, places)(dense, *arguments)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(theirs).max() > 0
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_gradients_pass_vmap_and_remat():
    hidden, chosen, weights = batch(10)
    experts = matrices()

    def loss(hidden, chosen, weights):
        return jnp.sum(jax.checkpoint(mixture)(hidden, chosen, weights, *experts) ** 2)

    halves = (each.reshape(2, 5, -1) for each in (hidden, chosen, weights))
    found = jax.vmap(jax.grad(loss))(*halves)
    expected = jax.grad(loss)(hidden, chosen, weights)
    np.testing.assert_allclose(found.reshape(10, -1), expected, rtol=1e-4, atol=1e-2)


def test_slots_without_an_expert_are_zero():
    hidden, chosen, _ = batch(6)
    found = expert_outputs(hidden, chosen.at[1, 2].set(X), *matrices())
    np.testing.assert_array_equal(found[1, 2], 0)
    assert np.abs(found[1, 1]).max() > 0


@pytest.mark.parametrize("normalize", [True, False])
def test_a_router_weighs_the_likeliest_experts(normalize):
    hidden, _, _ = batch(7)
    gate = np.random.default_rng(3).normal(size=(X, E)).astype(np.float32)
    chosen, weights = route(hidden, jnp.asarray(gate), K, normalize=normalize)
    logits = np.asarray(hidden, np.float64) @ gate.T
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = np.argsort(-probabilities, axis=-1)[:, :K]
    expected = np.take_along_axis(probabilities, order, axis=-1)
    if normalize:
        expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_array_equal(chosen, order)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_a_softmax_of_bfloat16_logits_is_float32():
    """In bfloat16 the two likeliest of these would weigh the same."""
    hidden = jnp.ones((1, 1), jnp.bfloat16)
    gate = jnp.asarray([[0.0], [-5.0], [0.00390625], [-8.0]], jnp.bfloat16)
    chosen, _ = route(hidden, gate, 2, normalize=True)
    np.testing.assert_array_equal(chosen, [[2, 0]])
