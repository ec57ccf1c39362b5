"""Random weights have a model's tree, shapes, dtype and shardings."""

import dataclasses

import jax
import numpy as np

from jaxinfer.measure.random_weights import random_params, skew_routers
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts
from jaxinfer.model.sharding import make_mesh

CONFIG = ModelConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    attention_bias=True,
)


def test_the_tree_is_the_one_that_engines_take():
    mesh = make_mesh(2)
    params = random_params(CONFIG, "bfloat16", mesh)
    described = abstract_params(CONFIG, "bfloat16", mesh)
    assert jax.tree.structure(params) == jax.tree.structure(described)
    for leaf, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(described), strict=True):
        assert (leaf.shape, leaf.dtype) == (wanted.shape, wanted.dtype)
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)


def test_matrices_are_small_noise_norms_one_and_biases_zero():
    params = random_params(CONFIG, "float32", make_mesh(1))
    layer = params["model"]["layers"]["1"]
    other = params["model"]["layers"]["0"]
    gate = np.asarray(layer["mlp"]["gate_proj"])
    assert np.isclose(gate.std(), 0.02, rtol=0.05)
    assert not np.array_equal(gate, np.asarray(other["mlp"]["gate_proj"]))
    assert np.all(np.asarray(layer["self_attn"]["q_norm"]) == 1)
    assert np.all(np.asarray(layer["self_attn"]["q_proj_bias"]) == 0)


def test_a_skewed_router_has_rows_of_other_lengths():
    experts = Experts(num_experts=256, experts_per_token=2, intermediate_size=32)
    config = dataclasses.replace(
        CONFIG, model_type="qwen3_moe", attention_bias=False, experts=experts
    )
    params = random_params(config, "float32", make_mesh(1))
    before = np.linalg.norm(params["model"]["layers"]["1"]["mlp"]["gate"], axis=1)
    skew_routers(params, 0.5)
    after = np.linalg.norm(params["model"]["layers"]["1"]["mlp"]["gate"], axis=1)
    assert np.isclose(np.log(after / before).std(), 0.5, rtol=0.15)
