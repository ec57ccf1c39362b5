"""Layers are split into stages that take about equally long, and leaves lie on their stage."""

import dataclasses

import jax
import pytest

from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.stages.stage_layers import head_layers, stage_layers
from jaxinfer.model.stages.staged_params import make_pipeline_mesh, stage_meshes
from jaxinfer.planning.named_shapes import shape_config
from jaxinfer.testing import TINY_CONFIG


def sizes(config, num_stages):
    return [len(layers) for layers in stage_layers(config, num_stages)]


@pytest.mark.parametrize("num_stages", range(1, 29))
def test_stages_are_consecutive_and_none_is_empty(num_stages):
    stages = stage_layers(shape_config("0.6b"), num_stages)
    assert [i for layers in stages for i in layers] == list(range(28))
    assert min(map(len, stages)) >= 1


@pytest.mark.parametrize("num_stages", [2, 3, 4, 7])
@pytest.mark.parametrize("name", ["0.6b", "8b", "32b", "30b-a3b"])
def test_no_other_last_stage_makes_the_longest_one_shorter(name, num_stages):
    config = shape_config(name)
    found, head, others = sizes(config, num_stages), head_layers(config), num_stages - 1
    assert max(found[:-1]) - min(found[:-1]) <= 1
    assert found[:-1] == sorted(found[:-1], reverse=True)
    count = config.num_hidden_layers
    ways = [max(-(-(count - last) // others), last + head) for last in range(1, count - others + 1)]
    assert max(*found[:-1], found[-1] + head) == min(ways)


def test_the_head_counts_as_layers():
    assert sizes(shape_config("8b"), 2) == [19, 17]
    assert sizes(shape_config("32b"), 2) == [32, 32]


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match=r"3 is more than the model's 2 layers; .* work: 1 to 2$"):
        stage_layers(TINY_CONFIG, 3)


def test_leaves_lie_on_the_devices_of_their_stage_split_as_in_one():
    config = dataclasses.replace(TINY_CONFIG, num_hidden_layers=3)
    mesh = make_pipeline_mesh(2, 2)
    first, last = (set(each.devices.flat) for each in stage_meshes(mesh))
    assert (first, last) == (set(jax.devices()[:2]), set(jax.devices()[2:4]))
    params = abstract_params(config, "float32", mesh)
    one = abstract_params(config, "float32", stage_meshes(mesh)[0])
    for (path, leaf), (_, whole) in zip(
        jax.tree_util.tree_leaves_with_path(params),
        jax.tree_util.tree_leaves_with_path(one),
        strict=True,
    ):
        names = [key.key for key in path]
        on_last = names[0] == "lm_head" or names[1] == "norm" or names[2:3] == ["2"]
        assert leaf.sharding.device_set == (last if on_last else first), names
        assert leaf.sharding.spec == whole.sharding.spec
