"""Qwen3 as pure functions of a parameter tree: the one forward that serves, scores and trains.

Letters: T tokens, H query heads, K key/value heads, D head dim, E hidden, F intermediate,
V vocabulary. Under ``shard_map`` over a mesh axis, H, K, F and V are one device's share.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32

from jaxinfer.kernels.attention.op import Backend
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import (
    Linear,
    ResidualStream,
    add,
    add_sum,
    begin,
    linear_of,
    norm_gated,
    norm_project,
    project,
    project_add,
    project_sum_add,
)
from jaxinfer.kernels.matmul.xla import contract, precision
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.rounding import rounded_add
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.rope import apply_rope, cos_sin

Params = Mapping[str, Any]
Heads = tuple[jax.Array, ...]
"""Projected heads: queries ``[..., H, D]``, keys and values ``[..., K, D]``, in three arrays; with
`backend` "mosaic" possibly in a single one, ``[..., H + 2K, D]``, in this order."""
Attend = Callable[[Params, Heads], jax.Array]


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
        table = params["model"]["embed_tokens"]
        return table.at[token_ids].get(mode="clip", wrap_negative_indices=False)
    return axis.sum(embed_share(params, token_ids, axis))


@jax.named_scope("embed")
def embed_share(
    params: Params, token_ids: Int[Array, "*batch"], axis: TensorAxis
) -> Float[Array, "*batch E"]:
    """What this device adds to `embed`: its own tokens' embeddings, and zeros for others.

    Exactly one device adds something other than zero, so the sum rounds nothing.
    """
    table = params["model"]["embed_tokens"]
    local = token_ids - axis.index() * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    found = table.at[local].get(mode="clip", wrap_negative_indices=False)
    return jnp.where(mine[..., None], found, 0)


def decoder_layer(
    layer: Params,
    residual: ResidualStream,
    config: ModelConfig,
    attend: Attend,
    axis: TensorAxis | None = None,
    backend: Backend = "xla",
    rows: Int32[Array, " B"] | None = None,
) -> ResidualStream:
    """One transformer block: attention and gated MLP, each on a norm of the residual stream.

    Args:
        layer: this layer's subtree; inside ``shard_map`` one device's shards of it.
        residual: the residual stream, the same on every device.
        config: constants and the global number of key/value heads.
        attend: ``attend(attn_params, heads) -> [..., H, D]``. It receives the raw projections,
            because GPU kernels fuse the norm, the rotation and the page write; ``qk_norm_rope``
            does the first two.
        axis: mesh axis of tensor parallelism, inside ``shard_map``.
        backend: whose kernels compute the projections.
        rows: the rows of ``[T, E]`` whose output is wanted, and which ``attend`` returns;
            None is all of them. Keys and values are computed of all in any case.

    Returns:
        The residual, of the wanted rows.
    """
    attention, mlp = layer["self_attn"], layer["mlp"]
    residual, mixed = attention_block(layer, residual, config, attend, axis, backend, rows)
    if rows is not None:
        # One layer of a step: more kernels would take longer to lower than they save.
        backend = "xla"
    bias = attention.get("o_proj_bias")
    output, down = linear_of(attention, "o_proj"), linear_of(mlp, "down_proj")
    with jax.named_scope("o"):
        residual = _project_add(mixed, output, bias, residual, axis, backend)
    residual, inner = gated_block(layer, residual, config, backend)
    with jax.named_scope("mlp"):
        return _project_add(inner, down, None, residual, axis, backend)


def attention_block(
    layer: Params,
    residual: ResidualStream,
    config: ModelConfig,
    attend: Attend,
    axis: TensorAxis | None,
    backend: Backend,
    rows: Int32[Array, " B"] | None = None,
) -> tuple[ResidualStream, Float[Array, "*batch HD"]]:
    """What `o_proj` reads: this device's heads, side by side; and the residual, summed."""
    attention, norm = layer["self_attn"], layer["input_layernorm"]
    residual, heads = project_qkv(attention, residual, norm, config, axis, backend)
    if rows is not None:
        residual = residual.of_rows(rows)
    return residual, attend(attention, heads).reshape(*residual.x.shape[:-1], -1)


@jax.named_scope("mlp")
def gated_block(
    layer: Params, residual: ResidualStream, config: ModelConfig, backend: Backend
) -> tuple[ResidualStream, Float[Array, "*batch F"]]:
    """What `down_proj` reads: this device's share of F. The residual stream is returned summed."""
    norm, mlp = layer["post_attention_layernorm"], layer["mlp"]
    gate, up = linear_of(mlp, "gate_proj"), linear_of(mlp, "up_proj")
    return norm_gated(residual, norm, gate, up, eps=config.rms_norm_eps, backend=backend)


@jax.named_scope("qkv")
def project_qkv(
    attention: Params,
    residual: ResidualStream,
    norm: Float[Array, " E"],
    config: ModelConfig,
    axis: TensorAxis | None,
    backend: Backend,
) -> tuple[ResidualStream, Heads]:
    """The heads that this device attends with, projected from the norm of the residual.

    The residual stream is returned summed; the heads' own norm and rotation are still to come.
    """
    own_kv = _own_kv_head(attention, config, axis)
    own = {"q_proj": lambda weight: weight, "k_proj": own_kv, "v_proj": own_kv}
    linears = [linear_of(attention, name).of_outputs(select) for name, select in own.items()]
    eps = config.rms_norm_eps
    residual, projected = norm_project(residual, norm, linears, eps=eps, backend=backend)
    if "q_proj_bias" in attention:
        biases = [select(attention[f"{name}_bias"]) for name, select in own.items()]
        biases = biases if len(projected) == len(biases) else [jnp.concatenate(biases)]
        projected = tuple(map(rounded_add, projected, biases))
    heads = (*residual.x.shape[:-1], -1, config.head_dim)
    return residual, tuple(product.reshape(heads) for product in projected)


@jax.named_scope("rope_and_write")
def qk_norm_rope(
    attention: Params,
    q: Float[Array, "*batch H D"],
    k: Float[Array, "*batch K D"],
    cos: Float[Array, "*batch D"],
    sin: Float[Array, "*batch D"],
    eps: float,
) -> tuple[Float[Array, "*batch H D"], Float[Array, "*batch K D"]]:
    """Normalize each query and key head, then rotate it by its position."""
    q = apply_rope(rms_norm(q, attention["q_norm"], eps), cos, sin)
    return q, apply_rope(rms_norm(k, attention["k_norm"], eps), cos, sin)


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
    head = params["lm_head"] if "lm_head" in params else params["model"]["embed_tokens"]
    return contract(hidden, head, jnp.float32)


@jax.numpy_rank_promotion("allow")  # whatever a trainer has set for its own code
def forward(
    params: Params,
    config: ModelConfig,
    token_ids: Int[Array, "*batch T"],
    *,
    positions: Int[Array, "*batch T"] | None = None,
    attention_mask: jax.Array | None = None,
    remat: bool = False,
) -> Float[Array, "*batch T V"]:
    """Logits of whole sequences, with dense causal attention.

    Pure: works under ``jit`` (``config`` and ``remat`` static), ``vmap``, ``grad``, and on a mesh,
    where the shardings of ``params`` and ``token_ids`` decide how the work is split.

    Args:
        params: tree as of ``abstract_params``; its dtype is the dtype computed in.
        config: the model's shape.
        token_ids: ids in [0, V), any leading dimensions; others are clamped silently.
        positions: absolute positions; 0, 1, 2, ... by default. Causality goes by index.
        attention_mask: nonzero where a key may be read: ``[..., T]`` for padding, as Hugging Face,
            or ``[..., T, T]`` (query, key) for packed sequences. It is combined with the causal
            mask; rows that see nothing give finite logits without meaning.
        remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
        float32 logits.

    Raises:
        ValueError: ``attention_mask`` has another shape, or there is no token.
    """
    if token_ids.size == 0:
        raise ValueError(f"token_ids has shape {token_ids.shape}; forward needs at least one token")
    length = token_ids.shape[-1]
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(length), token_ids.shape)
    mask = _dense_mask(token_ids.shape, attention_mask)
    x = embed(params, token_ids)
    cos, sin = cos_sin(positions, config, x.dtype)

    def attend(attention: Params, heads: Heads) -> jax.Array:
        q, k, v = heads
        q, k = qk_norm_rope(attention, q, k, cos, sin, config.rms_norm_eps)
        return dense_attention(q, k, v, mask)

    layer_step = functools.partial(decoder_layer, config=config, attend=attend)
    if remat:
        layer_step = jax.checkpoint(layer_step)
    residual = begin(x)
    for index in range(config.num_hidden_layers):
        residual = layer_step(params["model"]["layers"][str(index)], residual)
    return lm_head(params, final_hidden(params, residual.summed(), config))


@jax.named_scope("attention")
def dense_attention(
    q: Float[Array, "*batch T H D"],
    k: Float[Array, "*batch T K D"],
    v: Float[Array, "*batch T K D"],
    mask: Bool[Array, "*masked T T"],
) -> Float[Array, "*batch T H D"]:
    """Softmax attention over whole sequences; query head h reads key/value head ``h // (H/K)``.

    Scores and softmax are float32; probabilities are rounded to ``q.dtype`` before they weigh v.
    """
    *leading, heads, head_dim = q.shape
    grouped = q.reshape(*leading, k.shape[-2], -1, head_dim)
    product = functools.partial(jnp.einsum, precision=precision(q.dtype))
    scores = product("...tkgd,...skd->...kgts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(
        mask[..., None, None, :, :], scores * head_dim**-0.5, jnp.finfo(jnp.float32).min
    )
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    mixed = product("...kgts,...skd->...tkgd", weights, v, preferred_element_type=q.dtype)
    return mixed.reshape(*leading, heads, head_dim)


def _dense_mask(shape: tuple[int, ...], attention_mask: jax.Array | None) -> jax.Array:
    """Which keys each query may read: ``[T, T]``, or with leading dimensions if a mask is given."""
    length = shape[-1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    if attention_mask is None:
        return causal
    if attention_mask.shape == shape:
        return causal & attention_mask.astype(bool)[..., None, :]
    if attention_mask.shape == (*shape, length):
        return causal & attention_mask.astype(bool)
    raise ValueError(
        f"attention_mask must have shape {shape} or {(*shape, length)}, got {attention_mask.shape}"
    )


def _project_add(
    x: jax.Array,
    linear: Linear,
    bias: jax.Array | None,
    residual: ResidualStream,
    axis: TensorAxis | None,
    backend: Backend,
) -> ResidualStream:
    """``residual + (x @ weight.T + bias)``; ``x`` and ``linear`` may be one device's share of I."""
    if axis is None and bias is None:
        return project_add(x, linear, residual, backend=backend)
    if axis is not None and bias is None:
        return project_sum_add(x, linear, residual, axis, backend=backend)
    return sum_and_add(project(x, linear, backend=backend), bias, residual, axis, backend)


def sum_and_add(
    output: Float[Array, "*batch E"],
    bias: Float[Array, " E"] | None,
    residual: ResidualStream,
    axis: TensorAxis | None,
    backend: Backend,
) -> ResidualStream:
    """``residual + (output + bias)``, where the output is a sum over the devices of an axis."""
    if axis is not None and bias is None:
        return add_sum(residual, output, axis, backend=backend)
    if axis is not None:
        output = axis.sum(output)
    return add(residual, output if bias is None else rounded_add(output, bias), backend=backend)


def _own_kv_head(
    attention: Params, config: ModelConfig, axis: TensorAxis | None
) -> Callable[[jax.Array], jax.Array]:
    """What selects this device's rows of k_proj and v_proj.

    With fewer key/value heads than devices both are replicated, and a device needs only the head
    that its query heads belong to.
    """
    if axis is None or config.num_key_value_heads >= axis.size:
        return lambda weight: weight
    local_heads = attention["q_proj"].shape[0] // config.head_dim
    group = config.num_attention_heads // config.num_key_value_heads
    start = axis.index() * local_heads // group * config.head_dim
    return lambda weight: jax.lax.dynamic_slice_in_dim(weight, start, config.head_dim)
