"""A decoder as pure functions of a parameter tree: embedding, layers one after the other, head.

Families are put together from these (`jaxinfer.model.families`). Letters: T tokens, H query heads,
K key/value heads, D head dim, E hidden, F intermediate, V vocabulary. Under ``shard_map`` over a
mesh axis, H, K, F and V are one device's share.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from jaxinfer.kernels.attention.op import norm_rope_write
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import (
    AnyLinear,
    ResidualStream,
    add,
    add_sum,
    linear_of,
    norm_gated,
    norm_project,
    project,
    project_add,
    project_sum_add,
)
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.kernels.rounding import rounded_add
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import Heads, LayerContext, LayerStep, Params, Parts, Rotation
from jaxinfer.model.rope import apply_rope


@jax.named_scope("embed")
def embed(
    params: Params, token_ids: Int[Array, "*batch"], axis: TensorAxis | None = None
) -> Float[Array, "*batch E"]:
    """Look up token embeddings.

    Args:
        params: the whole tree.
        token_ids: ids in [0, V); the caller has checked them, others are clamped silently.
        axis: mesh axis over which the vocabulary is split, inside ``shard_map``.
    """
    if axis is None:
        return linear_of(params["model"], "embed_tokens").rows(token_ids)
    return axis.sum(embed_share(params, token_ids, axis))


@jax.named_scope("embed")
def embed_share(
    params: Params, token_ids: Int[Array, "*batch"], axis: TensorAxis
) -> Float[Array, "*batch E"]:
    """What this device adds to `embed`: its own tokens' embeddings, and zeros for others.

    Exactly one device adds something other than zero, so the sum rounds nothing.
    """
    table = linear_of(params["model"], "embed_tokens")
    local = token_ids - axis.index() * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    found = table.rows(local)
    return jnp.where(mine[..., None], found, 0)


def run_layers(
    layers: Params,
    kinds: Sequence[LayerKind],
    pages: Sequence[Any],
    parts: Parts,
    step_of: Callable[[int, LayerKind], LayerStep],
    *,
    whole: Any = None,
    last_rows: Int32[Array, " B"] | None = None,
) -> tuple[tuple[Any, ...], Float[Array, "*batch E"]]:
    """Pass tokens through every layer in turn: the one loop, which serves, scores and trains.

    Args:
        layers: the subtree of each layer, by its index as a string.
        parts: the tokens. With several parts each layer takes them in turn.
        step_of: ``(index, kind) -> LayerStep``. Layers of one kind should get the same function, so
            that it is traced once.
        whole: the tokens of all parts together.
        last_rows: the only rows of ``[T, E]`` that leave the last layer, which then takes all
            tokens at once; None is all.

    Returns:
        The pages of each layer, and the residual stream behind the last one.
    """
    residuals, rotations, tokens = parts
    pages_of_layers = []
    for index, kind in enumerate(kinds):
        rows = last_rows if index == len(kinds) - 1 else None
        if rows is not None and len(residuals) > 1:
            residuals, tokens = [ResidualStream(_joined(residuals))], [whole]
            rotations = [jax.tree.map(lambda *each: jnp.concatenate(each), *rotations)]
        step, turned = step_of(index, kind), [each[kind.rotation] for each in rotations]
        written, residuals = step(layers[str(index)], pages[index], residuals, turned, tokens, rows)
        pages_of_layers.append(written)
    return tuple(pages_of_layers), _joined(residuals)


def _joined(residuals: Sequence[ResidualStream]) -> jax.Array:
    whole = [residual.summed() for residual in residuals]
    return whole[0] if len(whole) == 1 else jnp.concatenate(whole)


def decoder_layer(layer: Params, residual: ResidualStream, context: LayerContext) -> ResidualStream:
    """One block, attention and gated MLP, each on a norm of the stream; its wanted rows."""
    residual, context = attention_and_output(layer, residual, context)
    residual, inner = gated_block(layer, residual, context)
    mlp = layer["mlp"]
    with jax.named_scope("mlp"):
        down = linear_of(mlp, "down_proj", context.config.quantization)
        return _project_add(inner, down, mlp.get("down_proj_bias"), residual, context)


def attention_and_output(
    layer: Params, residual: ResidualStream, context: LayerContext
) -> tuple[ResidualStream, LayerContext]:
    """The stream behind attention, its wanted rows; and the context of what follows."""
    attention = layer["self_attn"]
    residual, mixed = attention_block(layer, residual, context)
    if context.rows is not None:
        # One layer of a step: more kernels would take longer to lower than they save.
        context = replace(context, kernels=XLA)
    output = linear_of(attention, "o_proj", context.config.quantization)
    with jax.named_scope("o"):
        return _project_add(mixed, output, attention.get("o_proj_bias"), residual, context), context


def attention_block(
    layer: Params, residual: ResidualStream, context: LayerContext
) -> tuple[ResidualStream, Float[Array, "*batch HD"]]:
    """What `o_proj` reads: this device's heads, side by side; and the residual, summed."""
    attention, norm = layer["self_attn"], layer["input_layernorm"]
    residual, heads = project_qkv(attention, residual, norm, context)
    if context.rows is not None:
        residual = residual.of_rows(context.rows)
    mixed = context.attend(attention, heads).reshape(*residual.x.shape[:-1], -1)
    if context.tap is not None:
        context.tap("attention", mixed)
    return residual, mixed


@jax.named_scope("mlp")
def gated_block(
    layer: Params, residual: ResidualStream, context: LayerContext
) -> tuple[ResidualStream, Float[Array, "*batch F"]]:
    """What `down_proj` reads: this device's share of F. The residual stream is returned summed."""
    norm, mlp = layer["post_attention_layernorm"], layer["mlp"]
    form = context.config.quantization
    gate, up = linear_of(mlp, "gate_proj", form), linear_of(mlp, "up_proj", form)
    biases = (mlp["gate_proj_bias"], mlp["up_proj_bias"]) if "gate_proj_bias" in mlp else None
    options: dict[str, Any] = {"eps": context.config.rms_norm_eps, "kernels": context.kernels}
    residual, inner = norm_gated(residual, norm, gate, up, biases, **options)
    if context.tap is not None:
        context.tap("mlp", inner)
    return residual, inner


@jax.named_scope("qkv")
def project_qkv(
    attention: Params, residual: ResidualStream, norm: Float[Array, " E"], context: LayerContext
) -> tuple[ResidualStream, Heads]:
    """The heads that this device attends with, projected from the norm of the residual.

    The residual stream is returned summed; the heads' own norm and rotation are still to come.
    """
    config = context.config
    own_kv = own_kv_head(attention, config, context.axis)
    own = {"q_proj": lambda weight: weight, "k_proj": own_kv, "v_proj": own_kv}
    form, eps, kernels = config.quantization, config.rms_norm_eps, context.kernels
    linears = [linear_of(attention, name, form).of_outputs(own[name]) for name in own]
    residual, projected = norm_project(residual, norm, linears, eps=eps, kernels=kernels)
    if "q_proj_bias" in attention:
        biases = [select(attention[f"{name}_bias"]) for name, select in own.items()]
        biases = biases if len(projected) == len(biases) else [jnp.concatenate(biases)]
        projected = tuple(map(rounded_add, projected, biases))
    heads = (*residual.x.shape[:-1], -1, config.head_dim)
    return residual, tuple(product.reshape(heads) for product in projected)


@jax.named_scope("rope_and_write")
def rotate_heads(
    attention: Params,
    q: Float[Array, "*batch H D"],
    k: Float[Array, "*batch K D"],
    rotation: Rotation,
    eps: float,
) -> tuple[Float[Array, "*batch H D"], Float[Array, "*batch K D"]]:
    """Normalize each query and key head, if it has a norm, then rotate it by its position."""

    def turned(x: jax.Array, norm: jax.Array | None) -> jax.Array:
        return apply_rope(x if norm is None else rms_norm(x, norm, eps), *rotation)

    return turned(q, attention.get("q_norm")), turned(k, attention.get("k_norm"))


def write_heads(
    attention: Params,
    heads: Heads,
    rotation: Rotation,
    pages: Pages,
    slot_mapping: Int32[Array, " T"],
    config: ModelConfig,
    kernels: Kernels,
) -> tuple[Float[Array, "T H D"], Pages]:
    """`rotate_heads` of packed tokens, and their keys and values in the pages."""
    cos, sin = rotation
    return norm_rope_write(
        heads,
        attention.get("q_norm"),
        attention.get("k_norm"),
        cos,
        sin,
        pages,
        slot_mapping,
        eps=config.rms_norm_eps,
        kernels=kernels,
    )


@jax.named_scope("norm")
def final_hidden(
    params: Params, x: Float[Array, "*batch E"], config: ModelConfig
) -> Float[Array, "*batch E"]:
    """Norm of the residual stream after the last layer."""
    return rms_norm(x, params["model"]["norm"], config.rms_norm_eps)


def head_params(params: Params) -> dict[str, Any]:
    """The leaves that `final_hidden` and `lm_head` read, so that a sampler takes no others."""
    head: dict[str, Any] = {"model": {"norm": params["model"]["norm"]}}
    if "lm_head" in params:
        return head | {"lm_head": params["lm_head"]}
    head["model"]["embed_tokens"] = params["model"]["embed_tokens"]
    return head


@jax.named_scope("head")
def lm_head(params: Params, hidden: Float[Array, "*batch E"]) -> Float[Array, "*batch V"]:
    """Float32 logits of this device's rows of the vocabulary, from operands in the model's dtype.

    A tree without ``lm_head`` is tied: the embedding is the head.
    """
    is_tied = "lm_head" not in params
    head = linear_of(params["model"], "embed_tokens") if is_tied else linear_of(params, "lm_head")
    return head.product(hidden, jnp.float32)


def _project_add(
    x: jax.Array,
    linear: AnyLinear,
    bias: jax.Array | None,
    residual: ResidualStream,
    context: LayerContext,
) -> ResidualStream:
    """``residual + (x @ weight.T + bias)``; ``x`` and ``linear`` may be one device's share of I."""
    axis, kernels = context.axis, context.kernels
    if axis is None and bias is None:
        return project_add(x, linear, residual, kernels=kernels)
    if axis is not None and bias is None:
        return project_sum_add(x, linear, residual, axis, kernels=kernels)
    return sum_and_add(project(x, linear, kernels=kernels), bias, residual, axis, kernels)


def sum_and_add(
    output: Float[Array, "*batch E"],
    bias: Float[Array, " E"] | None,
    residual: ResidualStream,
    axis: TensorAxis | None,
    kernels: Kernels,
) -> ResidualStream:
    """``residual + (output + bias)``, where the output is a sum over the devices of an axis."""
    if axis is not None and bias is None:
        return add_sum(residual, output, axis, kernels=kernels)
    if axis is not None:
        output = axis.sum(output)
    return add(residual, output if bias is None else rounded_add(output, bias), kernels=kernels)


def own_kv_head(
    attention: Params, config: ModelConfig, axis: TensorAxis | None
) -> Callable[[jax.Array], jax.Array]:
    """What selects this device's rows of k_proj and v_proj.

    With fewer key/value heads than devices both are replicated, and a device needs only the head
    that its query heads belong to.
    """
    if axis is None or config.num_key_value_heads >= axis.size:
        return lambda weight: weight
    local_heads = linear_of(attention, "q_proj").shape[0] // config.head_dim
    group = config.num_attention_heads // config.num_key_value_heads
    start = axis.index() * local_heads // group * config.head_dim
    return lambda weight: jax.lax.dynamic_slice_in_dim(weight, start, config.head_dim)
