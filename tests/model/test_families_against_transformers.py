"""Other families give Hugging Face's logits, gradients and texts: saved by it, served by us."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import ModelConfig, forward, init_params
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name, unflatten
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.planning.operations import count_parameters, weight_bytes_per_device
from jaxinfer.planning.shapes import shape_of
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.rollouts.trees import leaves_by_path
from tests.lazy import torch, transformers
from tests.model import small_models
from tests.model.checkpoint.test_weights import assert_trees_equal
from tests.model.reference import (
    assert_logits_equal,
    assert_served_texts_equal,
    reference_logits,
)

FIRST = [name for name in small_models.FAMILIES if name.endswith("-0")]
ALL = [
    pytest.param(name, marks=() if name in FIRST else pytest.mark.slow)
    for name in small_models.FAMILIES
]
# One shape of each family, on one, two and four devices in turn; all where all combinations run.
SERVED = [
    pytest.param(name, marks=() if i % 6 == i // 6 % 3 else pytest.mark.exhaustive)
    for i, name in enumerate(small_models.FAMILIES)
]


def save(directory, variant, **changes):
    return small_models.save(directory, **small_models.FAMILIES[variant] | changes)


@pytest.mark.parametrize("variant", ALL)
def test_float32_logits_and_greedy_choices_equal_transformers(variant, tmp_path):
    model = save(tmp_path, variant)
    assert_logits_equal(model, tmp_path, (3, 160))


@pytest.mark.slow
@pytest.mark.parametrize("variant", SERVED)
def test_served_greedy_texts_equal_transformers(variant, tmp_path):
    """On 1, 2 and 4 devices in turn; by chunks of prompts, beside other requests."""
    model, devices = save(tmp_path, variant), 2 ** (int(variant[-1]) % 3)
    assert_served_texts_equal(
        model, tmp_path, tensor_parallel_size=devices, max_num_batched_tokens=32
    )


@pytest.mark.slow
@pytest.mark.parametrize("variant", FIRST)
def test_gradients_equal_transformers(variant, tmp_path):
    model = save(tmp_path, variant)
    config = ModelConfig.from_directory(tmp_path)
    params = load_params(tmp_path, config, "float32")
    token_ids = np.random.default_rng(5).integers(0, 384, (2, 48), dtype=np.int32)

    def loss(params):
        logprobs = jax.nn.log_softmax(forward(params, config, jnp.asarray(token_ids))[:, :-1])
        return -jnp.mean(jnp.take_along_axis(logprobs, token_ids[:, 1:, None], axis=-1))

    value, gradients = jax.value_and_grad(loss)(params)
    ids = torch.from_numpy(token_ids).long()
    logprobs = torch.log_softmax(model(ids).logits[:, :-1], -1)
    expected = -torch.gather(logprobs, -1, ids[:, 1:, None]).mean()
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    ends = ("layers.0.mlp.down_proj.weight", "layers.0.mlp.experts.down_proj")
    down = next(grad for name, grad in theirs.items() if name.endswith(ends))
    mlp = gradients["model"]["layers"]["0"]["mlp"]
    ours = mlp.get("experts", mlp)["down_proj"]
    np.testing.assert_allclose(ours, down.numpy(), rtol=0, atol=2e-6)
    for path, gradient in flatten(gradients):
        assert np.abs(gradient).max() > 0, path


@pytest.mark.parametrize("variant", FIRST)
def test_what_is_saved_is_read_again_and_by_transformers(variant, tmp_path):
    """The text half of a multimodal model is saved as the model of texts that it is."""
    model = save(tmp_path / "theirs", variant)
    config = ModelConfig.from_directory(tmp_path / "theirs")
    params = load_params(tmp_path / "theirs", config, "float32")
    save_params(params, config, tmp_path / "ours")
    again = ModelConfig.from_directory(tmp_path / "ours")
    assert dataclasses.replace(again, model_type=config.model_type) == config
    assert_trees_equal(load_params(tmp_path / "ours", again, "float32"), params)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", pad_token_id=0)
    token_ids = np.random.default_rng(6).integers(0, 384, (1, 32), dtype=np.int32)
    expected = reference_logits(model, token_ids)
    np.testing.assert_allclose(reference_logits(read, token_ids), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", small_models.FAMILIES)
def test_a_plan_counts_every_parameter(variant):
    config = config_of(variant)
    tree = jax.eval_shape(lambda: _init(config))
    sizes = [np.prod(leaf.shape) for leaf in jax.tree.leaves(tree)]
    assert count_parameters(shape_of(config)) == sum(sizes)
    assert weight_bytes_per_device(shape_of(config), "float32", 1) == 4 * sum(sizes)


@pytest.mark.parametrize("variant", FIRST)
def test_a_mapping_takes_a_trainers_tree_of_the_family(variant):
    """Flax's layers, whose matrices are `[in, out]`."""
    config = config_of(variant)
    mapping, params = ParamsMapping.nnx_linear(config), _init(config)
    described = jax.eval_shape(lambda: params)
    held = {}
    for path, leaf in flatten(params):
        name = tensor_name(path).removesuffix(".weight")
        kind = "bias" if name.endswith(".bias") else "scale" if leaf.ndim == 1 else "kernel"
        kind = "embedding" if name.endswith("embed_tokens") else kind
        name = name.removesuffix(".bias")
        held[f"{name}.{kind}"] = leaf.swapaxes(-1, -2) if kind == "kernel" else leaf
    held = leaves_by_path(unflatten(held))
    assignments = mapping.assignments(held, described)
    assert sorted(each.path for each in assignments) == sorted(held)


def config_of(variant):
    """As transformers writes it, without a model."""
    return ModelConfig.from_hf(
        small_models.config(**small_models.FAMILIES[variant]).to_dict(), "config.json"
    )


def _init(config):
    return init_params(config, jax.random.key(0), "float32")
