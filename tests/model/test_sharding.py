"""Which dimension of what is split, and which degrees of tensor parallelism a model allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.sharding import (
    ShardingRules,
    check_divisible,
    kv_pages_spec,
    logits_spec,
    make_mesh,
    num_page_heads,
)
from tests.model import tiny

CONFIG = tiny.config(num_key_value_heads=2, attention_bias=True, tie_word_embeddings=False)


def specs(mesh, rules=None):
    tree = tiny.param_specs(CONFIG, mesh, rules)
    return {
        path.removeprefix("model.layers.0."): spec
        for path, spec in flatten(tree)
        if "layers.1." not in path
    }


def test_each_parameter_is_split_along_its_heads_or_width():
    columns, rows = PartitionSpec(None, "tensor"), PartitionSpec("tensor")
    assert specs(make_mesh(2)) == {
        "model.embed_tokens": rows,
        "lm_head": rows,
        "model.norm": PartitionSpec(),
        "input_layernorm": PartitionSpec(),
        "post_attention_layernorm": PartitionSpec(),
        **{f"self_attn.{name}": rows for name in ("q_proj", "k_proj", "v_proj")},
        **{f"self_attn.{name}_bias": rows for name in ("q_proj", "k_proj", "v_proj")},
        "self_attn.o_proj": columns,
        "self_attn.o_proj_bias": PartitionSpec(),
        "self_attn.q_norm": PartitionSpec(),
        "self_attn.k_norm": PartitionSpec(),
        "mlp.gate_proj": rows,
        "mlp.up_proj": rows,
        "mlp.down_proj": columns,
    }


def test_fewer_kv_heads_than_devices_are_whole_on_each():
    split = specs(make_mesh(4))
    for name in ("k_proj", "v_proj", "k_proj_bias", "v_proj_bias"):
        assert split[f"self_attn.{name}"] == PartitionSpec()
    assert split["self_attn.q_proj"] == PartitionSpec("tensor")
    assert [num_page_heads(CONFIG, n) for n in (1, 2, 4, 8)] == [2, 2, 4, 8]


def test_rules_rename_or_remove_axes():
    mesh = Mesh(np.array(jax.devices()[:2]).reshape(2, 1, 1), ("tensor", "model", "data"))
    renamed = specs(mesh, ShardingRules(vocab="model", intermediate=None, embed="data"))
    assert renamed["model.embed_tokens"] == PartitionSpec("model", "data")
    assert renamed["mlp.up_proj"] == PartitionSpec(None, "data")
    assert kv_pages_spec(ShardingRules()) == PartitionSpec(None, None, "tensor")
    assert logits_spec(ShardingRules()) == PartitionSpec(None, "tensor")


@pytest.mark.parametrize(
    ("num_devices", "problem"),
    [
        (3, "num_attention_heads (8), intermediate_size (64), vocab_size (64)"),
        (16, "num_attention_heads (8)"),
    ],
)
def test_a_degree_that_does_not_divide_is_named_with_those_that_do(num_devices, problem):
    config = tiny.config(intermediate_size=64)
    with pytest.raises(ValueError, match=r"sizes that work: 1, 2, 4, 8$") as caught:
        check_divisible(config, num_devices)
    assert problem in str(caught.value)


def test_parameters_that_do_not_divide_have_no_shardings():
    with pytest.raises(ValueError, match="does not divide"):
        abstract_params(CONFIG, jnp.bfloat16, make_mesh(3))


def test_kv_heads_that_neither_divide_nor_are_divided_are_refused():
    config = tiny.config(num_attention_heads=12, num_key_value_heads=6, vocab_size=60)
    with pytest.raises(
        ValueError, match=r"num_key_value_heads .6.; sizes that work: 1, 2, 3, 6, 12"
    ):
        check_divisible(config, 4)


def test_mesh_takes_the_first_devices_with_automatic_axes():
    mesh = make_mesh(2)
    assert dict(mesh.shape) == {"tensor": 2}
    assert list(mesh.devices) == jax.devices()[:2]
    assert mesh.axis_types == (AxisType.Auto,)
    assert list(make_mesh(1, jax.devices()[3:]).devices) == [jax.devices()[3]]


@pytest.mark.parametrize("number", [0, -1])
def test_fewer_devices_than_one_is_refused(number):
    with pytest.raises(ValueError, match=f"must be at least 1, got {number}"):
        make_mesh(number)


@pytest.mark.parametrize(
    ("there", "said"), [(1, "only 1 cpu device is"), (8, "only 8 cpu devices are")]
)
def test_more_devices_than_there_are_is_refused(there, said):
    with pytest.raises(ValueError, match=f"needs as many devices, and {said} available") as error:
        make_mesh(9, jax.devices()[:there])
    assert "emulate devices by XLA_FLAGS=--xla_force_host_platform_device_count=9" in str(
        error.value
    )


def test_a_mesh_without_the_axis_is_refused():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    with pytest.raises(ValueError, match="on mesh axis 'tensor', but the mesh has 'data'"):
        abstract_params(CONFIG, jnp.float32, mesh)
