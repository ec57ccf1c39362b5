"""A decoder layer whose norms follow attention and MLP, and one norm spans all heads: OLMo 2's.

Products have kernels of their own; norms, which have another place here, are XLA's.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream, linear_of, project
from jaxinfer.kernels.rounding import narrow, rounded, rounded_add
from jaxinfer.model.layers.context import Heads, LayerContext, Params
from jaxinfer.model.layers.decoder import own_kv_head

_NORMS = ("q_norm", "k_norm")


def decoder_layer(layer: Params, residual: ResidualStream, context: LayerContext) -> ResidualStream:
    """``x + norm(attention(x))``, then the same of the MLP; as `decoder.decoder_layer`."""
    attention, mlp, eps = layer["self_attn"], layer["mlp"], context.config.rms_norm_eps
    x = residual.summed()
    heads = _heads(attention, x, context)
    if context.rows is not None:
        x = x.at[context.rows].get(mode="clip")
    rotated = {name: leaf for name, leaf in attention.items() if name not in _NORMS}
    mixed = context.attend(rotated, heads).reshape(*x.shape[:-1], -1)
    if context.tap is not None:
        context.tap("attention", mixed)
    mixed = _summed(attention, "o_proj", mixed, context)
    x = rounded_add(x, rms_norm(mixed, layer["post_attention_layernorm"], eps))
    inner = _gated(mlp, x, context)
    if context.tap is not None:
        context.tap("mlp", inner)
    down = _summed(mlp, "down_proj", inner, context)
    return ResidualStream(rounded_add(x, rms_norm(down, layer["post_feedforward_layernorm"], eps)))


@jax.named_scope("norm")
def rms_norm(
    x: Float[Array, "*batch E"],
    weight: Float[Array, " E"],
    eps: float,
    axis: TensorAxis | None = None,
) -> Float[Array, "*batch E"]:
    """Root-mean-square norm, weighted in float32 before it is rounded, as this family does.

    Args:
        x: what to normalise; with an axis one device's share of it.
        weight: the share's.
        axis: mesh axis that the normalised dimension is split over.
    """
    wide = x.astype(jnp.float32)
    squares, size = jnp.sum(wide * wide, axis=-1, keepdims=True), x.shape[-1]
    if axis is not None:  # a head that devices share counts once for each of them, above and below
        squares, size = jax.lax.psum(squares, axis.name), size * axis.size
    scale = jax.lax.rsqrt(squares / size + eps)
    return narrow(wide * scale * weight.astype(jnp.float32), x.dtype)


@jax.named_scope("qkv")
def _heads(attention: Params, x: jax.Array, context: LayerContext) -> Heads:
    """The heads of this device, normalised; their rotation is still to come."""
    config, axis = context.config, context.axis
    own_kv = own_kv_head(attention, config, axis)
    own = {"q": lambda weight: weight, "k": own_kv, "v": own_kv}
    heads = []
    for name, select in own.items():
        linear = linear_of(attention, f"{name}_proj", config.quantization).of_outputs(select)
        product = project(x, linear, kernels=context.kernels)
        bias = attention.get(f"{name}_proj_bias")
        if bias is not None:
            product = rounded_add(product, select(bias))
        if name != "v":
            norm = select(attention[f"{name}_norm"])
            product = rms_norm(product, norm, config.rms_norm_eps, axis)
        heads.append(product.reshape(*x.shape[:-1], -1, config.head_dim))
    return tuple(heads)


@jax.named_scope("mlp")
def _gated(mlp: Params, x: jax.Array, context: LayerContext) -> jax.Array:
    """What `down_proj` reads: this device's share of F."""
    form, kernels = context.config.quantization, context.kernels
    gate, up = (
        project(x, linear_of(mlp, name, form), kernels=kernels) for name in ("gate_proj", "up_proj")
    )
    opened = rounded(jax.nn.silu(gate.astype(jnp.float32)), gate.dtype)
    return narrow(opened * up.astype(jnp.float32), up.dtype)


def _summed(parent: Mapping[str, Any], name: str, x: jax.Array, context: LayerContext) -> jax.Array:
    """A projection of what devices hold a share of, summed over them, and its bias."""
    linear = linear_of(parent, name, context.config.quantization)
    output = project(x, linear, kernels=context.kernels)
    if context.axis is not None:
        output = context.axis.sum(output)
    bias = parent.get(f"{name}_bias")
    return output if bias is None else rounded_add(output, bias)
