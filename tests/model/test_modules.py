"""The Flax modules define the tree that every loader, trainer and step agrees on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name, unflatten
from jaxinfer.model.modules import abstract_params, init_params
from jaxinfer.model.sharding import make_mesh
from tests.model import small_models, tiny


@pytest.mark.parametrize("variant", small_models.VARIANTS)
def test_tree_has_transformers_names_and_shapes(variant):
    from jaxinfer.model.config import ModelConfig

    model = small_models.build(**small_models.VARIANTS[variant])
    config = ModelConfig.from_hf(model.config.to_dict(), variant)
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    tree = abstract_params(config, jnp.float32)
    assert {tensor_name(path): leaf.shape for path, leaf in flatten(tree)} == state


def test_flattened_trees_are_put_together_again():
    tree = abstract_params(tiny.CONFIG, jnp.float32)
    assert jax.tree.structure(unflatten(dict(flatten(tree)))) == jax.tree.structure(tree)


def test_initial_values_are_small_random_matrices_ones_and_zeros():
    config = tiny.config(attention_bias=True, tie_word_embeddings=False)
    params = dict(flatten(init_params(config, jax.random.key(0), jnp.float32)))
    seen = set()
    for path, leaf in params.items():
        if "bias" in path:
            np.testing.assert_array_equal(leaf, 0)
        elif leaf.ndim == 1:
            np.testing.assert_array_equal(leaf, 1)
        else:
            assert 0.015 < float(leaf.std()) < 0.025, path
            seen.add(float(leaf[0, 0]))
    assert len(seen) == 2 + 7 * config.num_hidden_layers, "every matrix has its own random values"


def test_initialization_depends_on_the_key_alone():
    initialize = jax.jit(init_params, static_argnums=(0, 2))
    one, same, other = (
        initialize(tiny.CONFIG, jax.random.key(seed), jnp.bfloat16) for seed in (1, 1, 2)
    )
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), one, same)))
    assert bool((one["model"]["embed_tokens"] != other["model"]["embed_tokens"]).any())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(one)} == {"bfloat16"}


def test_initialization_under_jit_creates_each_devices_part_alone():
    mesh = make_mesh(2)
    described = abstract_params(tiny.CONFIG, jnp.float32, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, described)
    initialize = jax.jit(init_params, static_argnums=(0, 2), out_shardings=shardings)
    params = initialize(tiny.CONFIG, jax.random.key(0), jnp.float32)
    for (path, leaf), (_, expected) in zip(flatten(params), flatten(described), strict=True):
        assert (leaf.shape, leaf.sharding) == (expected.shape, expected.sharding), path
    np.testing.assert_array_equal(
        params["model"]["embed_tokens"],
        init_params(tiny.CONFIG, jax.random.key(0), jnp.float32)["model"]["embed_tokens"],
    )
