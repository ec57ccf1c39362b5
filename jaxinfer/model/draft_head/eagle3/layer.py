"""The maths of an EAGLE-3 draft head as pure functions, for tokens in any arrangement.

The head reads *features*: one vector a token, projected from three of the model's hidden states.
It *pairs* the feature of a token with the embedding of the token behind it, at the latter's
position p >= 1, passes the pair through a layer of attention and MLP, and guesses the token at
p + 1. To guess further, its own output takes the place of the feature. The pair at position 0,
which has no feature, is zeros as a key and as a value: queries see it with a score of zero.

Letters: E hidden, H query heads, K key/value heads, D head dim, V vocabulary of the model, Vd of
the head.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.matmul.xla import contract, linear
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.rounding import rounded_add
from jaxinfer.model.draft_head.eagle3.config import Eagle3Config
from jaxinfer.model.layers.context import Params, Rotation
from jaxinfer.model.rope import apply_rope, cos_sin


class Pair(NamedTuple):
    """What the layer reads of a pair, and what it adds to.

    Attributes:
        inputs: the normed embedding, and behind it the normed feature.
        residual: the feature, or its norm.
        rotation: cosine and sine ``[..., D]`` of the position.
    """

    inputs: Float[Array, "*batch 2E"]
    residual: Float[Array, "*batch E"]
    rotation: Rotation


class Output(NamedTuple):
    """What leaves the head.

    Attributes:
        normed: the final hidden state, which its vocabulary's scores are computed of.
        fed_back: what takes the place of the next pair's feature.
    """

    normed: Float[Array, "*batch E"]
    fed_back: Float[Array, "*batch E"]


@jax.named_scope("draft_features")
def features_of(
    params: Params, states: Sequence[jax.Array], config: Eagle3Config
) -> Float[Array, "*batch E"]:
    """The features of tokens.

    Args:
        params: the head's tree.
        states: ``[..., E]`` each, the hidden states that `Eagle3Config.states` names.
        config: static.
    """
    eps = config.layer.rms_norm_eps
    if config.fc_norm:
        states = [rms_norm(x, params["fc_norm"][str(i)], eps) for i, x in enumerate(states)]
    joined = jnp.concatenate(states, axis=-1)
    if config.norm_before_fc:
        joined = rms_norm(joined, params["input_norm"], eps)
    return linear(joined, params["fc"])


def pair_up(
    params: Params,
    features: Float[Array, "*batch E"],
    embeddings: Float[Array, "*batch E"],
    positions: Int32[Array, "*batch"],
    config: Eagle3Config,
) -> Pair:
    """Pair features with the embeddings of the tokens behind them.

    Args:
        params: the head's tree.
        features: of the tokens before, or the head's own outputs.
        embeddings: of the tokens.
        positions: of the tokens.
        config: static.
    """
    layer, eps = params["layer"], config.layer.rms_norm_eps
    hidden = rms_norm(features, layer["hidden_norm"], eps)
    embedded = rms_norm(embeddings, layer["input_layernorm"], eps)
    return Pair(
        jnp.concatenate([embedded, hidden], axis=-1),
        hidden if config.norm_before_residual else features,
        cos_sin(positions, config.layer, features.dtype),
    )


def queries_of(params: Params, pair: Pair, config: Eagle3Config) -> Float[Array, "*batch H D"]:
    """The rotated queries."""
    return apply_rope(_heads(params, "q_proj", pair, config), *pair.rotation)


def keys_values_of(
    params: Params, pair: Pair, config: Eagle3Config
) -> tuple[Float[Array, "*batch K D"], Float[Array, "*batch K D"]]:
    """The rotated keys, and the values."""
    keys = apply_rope(_heads(params, "k_proj", pair, config), *pair.rotation)
    return keys, _heads(params, "v_proj", pair, config)


def finish(
    params: Params, pair: Pair, mixed: Float[Array, "*batch H D"], config: Eagle3Config
) -> Output:
    """All behind attention.

    Args:
        params: the head's tree.
        pair: what went into the layer.
        mixed: the values, mixed by attention.
        config: static.
    """
    layer, eps = params["layer"], config.layer.rms_norm_eps
    heads = mixed.reshape(*mixed.shape[:-2], -1)
    residual = rounded_add(pair.residual, linear(heads, layer["self_attn"]["o_proj"]))
    mlp, x = layer["mlp"], rms_norm(residual, layer["post_attention_layernorm"], eps)
    inner = jax.nn.silu(linear(x, mlp["gate_proj"])) * linear(x, mlp["up_proj"])
    residual = rounded_add(residual, linear(inner, mlp["down_proj"]))
    normed = rms_norm(residual, params["norm"], eps)
    return Output(normed, normed if config.norm_output else residual)


@jax.named_scope("draft_vocabulary")
def scores_of(params: Params, normed: Float[Array, "*batch E"]) -> Float[Array, "*batch Vd"]:
    """Float32 scores of the head's vocabulary."""
    return contract(normed, params["lm_head"], jnp.float32)


def guess(params: Params, normed: Float[Array, "*batch E"]) -> Int32[Array, "*batch"]:
    """The likeliest token, by its id in the model's vocabulary."""
    best = scores_of(params, normed).argmax(axis=-1)
    return params["token_ids"].at[best].get(mode="clip")


def _heads(params: Params, name: str, pair: Pair, config: Eagle3Config) -> jax.Array:
    projected = linear(pair.inputs, params["layer"]["self_attn"][name])
    return projected.reshape(*projected.shape[:-1], -1, config.layer.head_dim)
