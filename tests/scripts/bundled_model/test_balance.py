"""Experts are kept in use by a loss, which training of a model with experts lowers too."""

import dataclasses
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts
from jaxinfer.model.forward import forward
from jaxinfer.model.modules import init_params
from scripts.bundled_model.assets import MAX_BYTES, write_model
from scripts.bundled_model.balance import (
    BALANCE_WEIGHT,
    imbalance,
    logits_and_routers,
    report,
    shares_of,
)
from scripts.bundled_model.config import model_config, with_experts
from scripts.bundled_model.training import losses_of, train, weighted_loss
from tests.lazy import torch
from tests.scripts.bundled_model.test_training import SCHEDULE, TINY, counting_examples

X, K = 4, 2
EXPERTS = Experts(X, K, 8)
MODEL = dataclasses.replace(with_experts(TINY), num_hidden_layers=2, experts=EXPERTS)


def probabilities(num_tokens: int = 12, seed: int = 1) -> jax.Array:
    logits = np.random.default_rng(seed).normal(size=(num_tokens, X))
    return jax.nn.softmax(jnp.asarray(logits, jnp.float32))


def test_experts_used_alike_have_k_and_k_that_take_everything_have_x():
    alike = jnp.stack([jnp.roll(jnp.asarray([0.3, 0.3, 0.2, 0.2]), i) for i in range(X)])
    all_tokens = jnp.ones(X, bool)
    assert float(imbalance([alike], EXPERTS, all_tokens)) == pytest.approx(K)
    taken = jnp.tile(jnp.asarray([0.5, 0.5, 0.0, 0.0]), (X, 1))
    assert float(imbalance([taken], EXPERTS, all_tokens)) == pytest.approx(X)
    assert float(imbalance([alike, taken], EXPERTS, all_tokens)) == pytest.approx((K + X) / 2)


@pytest.mark.slow
def test_of_one_layer_it_is_transformers_loss():
    module = importlib.import_module("transformers.models.qwen3_moe.modeling_qwen3_moe")
    logits = np.random.default_rng(3).normal(scale=2, size=(2, 6, X)).astype(np.float32)
    is_token = np.array([[1] * 6, [1, 1, 1, 1, 0, 0]])
    router = jax.nn.softmax(jnp.asarray(logits.reshape(-1, X)))
    for mask in (None, is_token):
        expected = module.load_balancing_loss_func(
            (torch.tensor(logits.reshape(-1, X)),),
            X,
            K,
            None if mask is None else torch.tensor(mask),
        )
        counted = np.ones(router.shape[0], bool) if mask is None else mask.ravel().astype(bool)
        found = imbalance([router], EXPERTS, jnp.asarray(counted))
        assert float(found) == pytest.approx(expected.item(), rel=1e-5)
        assert K < expected.item() < X


def test_it_counts_what_tokens_choose_and_no_padding():
    routers = [probabilities(), probabilities(seed=2)]
    is_token = jnp.arange(12) < 7
    shares, means = shares_of(routers, EXPERTS, is_token)
    for layer, router in enumerate(np.asarray(each)[:7] for each in routers):
        chosen = np.argsort(-router, axis=-1)[:, :K]
        np.testing.assert_allclose(shares[layer], np.bincount(chosen.ravel(), minlength=X) / 7)
        np.testing.assert_allclose(means[layer], router.mean(axis=0), rtol=1e-5)
    other_padding = [each.at[7:].set(0.25) for each in routers]
    assert imbalance(routers, EXPERTS, is_token) == imbalance(other_padding, EXPERTS, is_token)


def test_routers_are_those_of_the_forward_pass():
    params = init_params(MODEL, jax.random.key(0), jnp.float32)
    # The weights' own size makes every expert as likely as any other.
    params["model"]["layers"]["1"]["mlp"]["gate"] *= 100
    token_ids = jnp.arange(16, dtype=jnp.int32).reshape(2, 8)
    logits, routers = jax.jit(logits_and_routers, static_argnums=1)(params, MODEL, token_ids)
    np.testing.assert_array_equal(
        logits, jax.jit(forward, static_argnums=1)(params, MODEL, token_ids)
    )
    assert [each.shape for each in routers] == [(16, X)] * 2
    np.testing.assert_allclose([each.sum(-1) for each in routers], np.ones((2, 16)), rtol=1e-5)
    assert routers[1].max() > 0.5 > 0.3 > routers[0].max()
    lines = report(params, MODEL, np.asarray(token_ids))
    assert [line.split(":")[0] for line in lines] == ["experts of layer 0", "experts of layer 1"]
    shares = [float(share.rstrip("%")) for share in lines[1].split(": ")[1].split()]
    assert len(shares) == X
    assert sum(shares) == pytest.approx(100, abs=0.3)


def test_what_training_lowers_is_both_losses():
    params = init_params(MODEL, jax.random.key(0), jnp.float32)
    token_ids = jnp.arange(16, dtype=jnp.int32).reshape(2, 8)
    weights = jnp.ones((2, 8), jnp.float32).at[1, 5:].set(0)
    total, parts = jax.jit(losses_of, static_argnums=1)(params, MODEL, token_ids, weights)
    alone = jax.jit(weighted_loss, static_argnums=1)(params, MODEL, token_ids, weights)
    assert parts["loss"] == pytest.approx(float(alone), rel=1e-5)
    assert float(parts["imbalance"]) >= K - 0.1
    assert total == pytest.approx(float(alone + BALANCE_WEIGHT * parts["imbalance"]), rel=1e-5)


@pytest.mark.slow
def test_training_uses_every_expert_and_learns(capsys: pytest.CaptureFixture[str]):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        params = train(MODEL, SCHEDULE, counting_examples(), pad_id=0, seed=0, max_seconds=60.0)
    assert ", imbalance 2." in capsys.readouterr().out
    token_ids = np.asarray([range(start, start + 8) for start in range(2, 50)], np.int32)
    weights = jnp.ones(token_ids.shape, jnp.float32)
    run = jax.jit(losses_of, static_argnums=1)
    before = run(init_params(MODEL, jax.random.key(0), jnp.float32), MODEL, token_ids, weights)[1]
    after = run(params, MODEL, token_ids, weights)[1]
    assert after["loss"] < before["loss"] - 1.0
    shares = [line.split(": ")[1].split() for line in report(params, MODEL, token_ids)]
    assert min(float(share.strip("<%")) for layer in shares for share in layer) > 2


def test_a_written_model_with_experts_fits_and_is_read_again(tmp_path: Path):
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    config = with_experts(model_config(tokenizer.get_vocab_size(), (2041, 2039), 2039))
    params = init_params(config, jax.random.key(1), jnp.bfloat16)
    write_model(tmp_path, config, tokenizer, params)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < MAX_BYTES
    assert ModelConfig.from_directory(tmp_path) == config
    read = load_params(tmp_path, config, jnp.bfloat16)
    assert jax.tree.structure(read) == jax.tree.structure(params)
    for one, two in zip(jax.tree.leaves(read), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(one, two)
    assert (tmp_path / "tokenizer.json").read_bytes() == (
        BUNDLED_MODEL / "tokenizer.json"
    ).read_bytes()
