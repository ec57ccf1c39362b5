"""Inside shard_map, one device's shards of the layers add up to the whole model's logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream, begin
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.model.forward import dense_attention, forward
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import LayerContext
from jaxinfer.model.layers.decoder import (
    decoder_layer,
    embed,
    final_hidden,
    lm_head,
    project_qkv,
    rotate_heads,
)
from jaxinfer.model.layers.two_batch_overlap import overlapped_layer
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.rope import cos_sin
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny

MODELS = {
    "kv-heads-divide": tiny.config(num_key_value_heads=8, tie_word_embeddings=False),
    "fewer-kv-heads-than-devices": tiny.config(num_key_value_heads=2, num_hidden_layers=1),
    "one-kv-head": tiny.config(num_key_value_heads=1, num_hidden_layers=1),
    "biases": tiny.config(num_key_value_heads=2, attention_bias=True, num_hidden_layers=1),
}

AXIS = TensorAxis("tensor")


def local_forward(params, tokens, *, config, axis=AXIS, first=None):
    """The layers as one device of the tensor axis runs them; logits of its part of V.

    With `first`, that number of tokens and the rest go through each layer in turn.
    """
    x = embed(params, tokens, axis=axis)
    cos, sin = cos_sin(jnp.arange(len(tokens)), config, x.dtype)
    mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))

    def attend(earlier, attention, heads):
        q, k, v = heads
        begin, end = len(earlier), len(earlier) + len(q)
        rotation = cos[begin:end], sin[begin:end]
        q, k = rotate_heads(attention, q, k, rotation, config.rms_norm_eps)
        earlier += zip(q, k, v, strict=True)
        tokens = [jnp.stack(each) for each in zip(*earlier, strict=True)]
        return dense_attention(*tokens, mask[:end, :end])[begin:]

    residuals = [begin(x)] if first is None else [begin(x[:first]), begin(x[first:])]
    for index in range(config.num_hidden_layers):
        layer = params["model"]["layers"][str(index)]
        context = LayerContext(config, LayerKind(), functools.partial(attend, []), axis)
        if first is None:
            residuals = [decoder_layer(layer, residuals[0], context)]
        else:
            residuals = overlapped_layer(layer, residuals, [context] * len(residuals))
    x = jnp.concatenate([residual.summed() for residual in residuals])
    return lm_head(params, final_hidden(params, x, config))


@functools.cache
def whole_forward(model):
    config = MODELS[model]
    params, tokens = tiny.params(config), tiny.token_ids(config, 10)
    return params, tokens, jax.jit(forward, static_argnums=1)(params, config, tokens)


@pytest.mark.parametrize(
    ("model", "num_devices"),
    [
        ("kv-heads-divide", 4),
        ("fewer-kv-heads-than-devices", 8),
        ("one-kv-head", 2),
        ("biases", 4),
        *(
            pytest.param(model, devices, marks=pytest.mark.exhaustive)
            for model, devices in [
                *(("kv-heads-divide", n) for n in (1, 2, 8)),
                *(("fewer-kv-heads-than-devices", n) for n in (1, 2, 4)),
            ]
        ),
    ],
)
def test_shards_give_the_logits_of_the_whole(model, num_devices):
    check_logits(model, num_devices)


@pytest.mark.parametrize(("model", "num_devices"), [("kv-heads-divide", 4), ("biases", 2)])
def test_two_parts_in_turn_give_the_logits_of_the_whole(model, num_devices):
    check_logits(model, num_devices, first=6)


def test_two_devices_that_swap_give_the_logits_of_the_whole(monkeypatch):
    monkeypatch.setattr(TensorAxis, "alone", lambda self: self)
    swapping = TensorAxis("tensor", swaps=True)
    check_logits("kv-heads-divide", 2, first=6, axis=swapping)


def test_sums_that_run_side_by_side_are_swapped_where_two_devices_have_peer_buffers():
    def swaps(num_devices, peers):
        found = []

        def look(x):
            found.append(TensorAxis("tensor", peers).alone())
            return x

        mesh, split = make_mesh(num_devices), PartitionSpec("tensor")
        jax.eval_shape(jax.shard_map(look, mesh=mesh, in_specs=split, out_specs=split), X)
        (axis,) = found
        assert axis.peers is None
        return axis.swaps

    X, peers = jnp.zeros(8), jnp.zeros((2, 2), jnp.int32)
    assert swaps(2, peers)
    assert not swaps(4, jnp.zeros((4, 2), jnp.int32))
    assert not swaps(2, None)


def check_logits(model, num_devices, **parts):
    config = MODELS[model]
    params, tokens, expected = whole_forward(model)
    mesh = make_mesh(num_devices)
    sharded = jax.jit(
        jax.shard_map(
            functools.partial(local_forward, config=config, **parts),
            mesh=mesh,
            in_specs=(tiny.param_specs(config, mesh), PartitionSpec()),
            out_specs=PartitionSpec(None, "tensor"),
            check_vma=False,
        )
    )
    described = abstract_params(config, jnp.float32, mesh)
    placed = jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), params, described)
    actual = jax.block_until_ready(sharded(placed, tokens))
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    np.testing.assert_array_equal(np.argmax(actual, -1), np.argmax(expected, -1))


@pytest.mark.parametrize("num_devices", [1, 4])
def test_heads_from_one_product_are_those_from_three(num_devices):
    config = tiny.config(num_key_value_heads=2, head_dim=64, attention_bias=True)
    layer = tiny.params(config, jnp.bfloat16)["model"]["layers"]["0"]
    x = jax.random.normal(jax.random.key(0), (24, config.hidden_size), jnp.bfloat16)
    specs = tiny.param_specs(config, make_mesh(num_devices))["model"]["layers"]["0"]

    def project(layer, x, kernels, count):
        context = LayerContext(config, LayerKind(), lambda *_: None, AXIS, kernels)
        arguments = layer["self_attn"], ResidualStream(x), layer["input_layernorm"], context
        _, heads = project_qkv(*arguments)
        assert len(heads) == count
        return jnp.concatenate(heads, axis=1)

    def on_devices(kernels, count):
        local = functools.partial(project, kernels=kernels, count=count)
        run = jax.shard_map(
            local,
            mesh=make_mesh(num_devices),
            in_specs=(specs, PartitionSpec()),
            out_specs=PartitionSpec(None, "tensor"),
            check_vma=False,
        )
        return jax.block_until_ready(jax.jit(run)(layer, x))

    np.testing.assert_array_equal(on_devices(Kernels("mosaic"), 1), on_devices(XLA, 3))
