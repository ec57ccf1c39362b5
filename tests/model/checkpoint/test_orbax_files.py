"""Orbax checkpoints: written, restored into shardings, and refused when they don't fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import orbax_files as checkpoint
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny
from tests.model.checkpoint.test_weights import assert_trees_equal


@pytest.fixture(scope="module")
def params():
    return tiny.params(tiny.CONFIG, "bfloat16")


@pytest.fixture
def directory(params, tmp_path):
    checkpoint.save(params, tmp_path)
    return tmp_path


def refusal(directory, config=tiny.CONFIG) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_params(directory, config, jnp.float32)
    message = str(caught.value)
    assert "\n" not in message
    assert "orbax" in message
    return message


def test_restored_tree_is_the_saved_one(directory, params):
    assert_trees_equal(load_params(directory, tiny.CONFIG, jnp.bfloat16), params)


def test_tree_is_restored_into_the_wanted_dtype_and_shardings(directory, params):
    mesh = make_mesh(4)
    loaded = load_params(directory, tiny.CONFIG, jnp.float32, mesh)
    expected = dict(flatten(abstract_params(tiny.CONFIG, jnp.float32, mesh)))
    for path, leaf in flatten(loaded):
        assert leaf.sharding == expected[path].sharding, path
    assert_trees_equal(loaded, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params))


def test_a_sharded_tree_is_saved_and_read_by_one_device(params, tmp_path):
    described = abstract_params(tiny.CONFIG, jnp.bfloat16, make_mesh(8))
    placed = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), params, described)
    checkpoint.save(placed, tmp_path)
    assert_trees_equal(load_params(tmp_path, tiny.CONFIG, jnp.bfloat16), params)


def test_saving_again_replaces_the_checkpoint(directory, params):
    other = jax.tree.map(lambda leaf: leaf * 2, params)
    checkpoint.save(other, directory)
    assert_trees_equal(load_params(directory, tiny.CONFIG, jnp.bfloat16), other)


def test_safetensors_are_not_saved_beside_a_checkpoint(directory, params):
    with pytest.raises(ValueError, match="holds an Orbax checkpoint"):
        save_params(params, tiny.CONFIG, directory)


def test_what_contradicts_the_config_is_named(directory):
    assert "has shape (64, 32), config.json implies (128, 32)" in refusal(
        directory, tiny.config(vocab_size=128)
    )
    assert "'model.layers.2." in refusal(directory, tiny.config(num_hidden_layers=3))
    assert "is not in config.json's model" in refusal(directory, tiny.config(num_hidden_layers=1))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(value, params, tmp_path):
    broken = jax.tree.map(lambda leaf: leaf, params)
    broken["model"]["norm"] = params["model"]["norm"].at[3].set(value)
    checkpoint.save(broken, tmp_path)
    assert "model.norm.weight holds NaN or infinity" in refusal(tmp_path)


@pytest.mark.parametrize("place", ["_METADATA", "manifest.ocdbt", "d", "ocdbt.process_0/d"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_named(place, damage, directory):
    path = directory / "orbax" / place
    for file in [path] if path.is_file() else list(path.iterdir()):
        content = file.read_bytes()
        file.unlink()
        if damage == "cut":
            file.write_bytes(content[: len(content) // 2])
    assert "damaged Orbax checkpoint" in refusal(directory)


def test_an_empty_checkpoint_is_named(tmp_path):
    (tmp_path / "orbax").mkdir()
    assert "damaged Orbax checkpoint" in refusal(tmp_path)


def test_links_in_a_checkpoint_are_refused(directory):
    file = directory / "orbax" / "_METADATA"
    file.rename(directory / "elsewhere")
    file.symlink_to(directory / "elsewhere")
    assert "_METADATA: a link inside an Orbax checkpoint" in refusal(directory)
