"""How evenly experts are used: a loss that keeps all of them in use, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.kernels.matmul.xla import linear
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts
from jaxinfer.model.forward import residual_stream
from jaxinfer.model.layers.context import LayerContext
from jaxinfer.profiling.figures import share_text

BALANCE_WEIGHT = 0.01
"""What `imbalance` weighs against a nat of the next token."""


def logits_and_routers(
    params: Any, config: ModelConfig, token_ids: jax.Array
) -> tuple[jax.Array, list[jax.Array]]:
    """`forward`'s logits, and each layer's router's probabilities, float32 ``[T, X]``."""
    told: dict[int, dict[str, jax.Array]] = {i: {} for i in range(config.num_hidden_layers)}

    def tapped(context: LayerContext) -> LayerContext:
        return replace(context, tap=told[cast("int", context.index)].__setitem__)

    x, _ = residual_stream(params, config, token_ids, change=tapped)
    layers = params["model"]["layers"]
    routers = [
        jax.nn.softmax(linear(each["router"], layers[str(i)]["mlp"]["gate"]).astype(jnp.float32))
        for i, each in told.items()
    ]
    model = architecture_of(config)
    return model.lm_head(params, model.final_hidden(params, x, config)), routers


def shares_of(
    routers: Sequence[jax.Array], experts: Experts, is_token: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of each layer's experts: how many tokens choose them, and their mean probability.

    Args:
        routers: probabilities of each layer, ``[T, X]``.
        experts: of the config.
        is_token: False for padding, bool ``[T]``.

    Returns:
        Shares of the tokens, float32 ``[L, X]``, k in each layer's sum; and ``[L, X]``, 1 in each.
    """
    probabilities = jnp.stack(list(routers))
    _, chosen = jax.lax.top_k(probabilities, experts.experts_per_token)
    ones = jax.nn.one_hot(chosen, experts.num_experts, dtype=jnp.float32).sum(axis=2)
    counted = is_token.astype(jnp.float32)[:, None]
    weights = counted / jnp.sum(counted)
    return jnp.sum(ones * weights, axis=1), jnp.sum(probabilities * weights, axis=1)


def imbalance(routers: Sequence[jax.Array], experts: Experts, is_token: jax.Array) -> jax.Array:
    """Switch Transformers' auxiliary loss (arXiv:2101.03961), as transformers computes it.

    It is k where all experts are used alike, and X where k take everything. Here it is the mean of
    the layers' own, so that every layer uses all of its experts: transformers sums over layers
    first, and may leave an expert of one layer unused. Args as of `shares_of`.
    """
    shares, means = shares_of(routers, experts, is_token)
    return experts.num_experts * jnp.mean(jnp.sum(shares * means, axis=-1))


def report(params: Mapping[str, Any], config: ModelConfig, token_ids: np.ndarray) -> list[str]:
    """A line for each layer: which share of a text's choices each expert got.

    Args:
        params: the weights, in the dtype to compute in.
        config: of a model with experts.
        token_ids: int32 ``[rows, length]``, without padding.
    """
    experts = config.experts
    assert experts is not None

    @jax.jit
    def shares(params: Any, token_ids: jax.Array) -> jax.Array:
        _, routers = logits_and_routers(params, config, token_ids)
        return shares_of(routers, experts, jnp.ones(token_ids.size, bool))[0]

    return [
        f"experts of layer {layer}: "
        + " ".join(share_text(share / experts.experts_per_token, 1) for share in row)
        for layer, row in enumerate(np.asarray(shares(params, token_ids)))
    ]
