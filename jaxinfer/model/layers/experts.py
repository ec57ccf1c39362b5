"""A decoder layer whose MLP is experts, of which a router takes a few for each token.

Under tensor parallelism each device has its share of the width of every expert, as of a dense MLP:
all of them route alike, and their outputs are summed as a dense MLP's are. Under expert parallelism
it has some experts whole, or its share of some: nothing of others is computed, and the same sum
brings all of a token's experts together.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.experts.xla import mixture, route
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import LayerContext, Params


def decoder_layer(layer: Params, residual: ResidualStream, context: LayerContext) -> ResidualStream:
    """One block, attention and experts, or a dense MLP where its kind says so."""
    if not context.kind.experts:
        return decoder.decoder_layer(layer, residual, context)
    residual, context = decoder.attention_and_output(layer, residual, context)
    x, share = expert_block(layer, residual, context)
    with jax.named_scope("mlp"):
        return decoder.sum_and_add(share, None, x, context.axis, context.kernels)


@jax.named_scope("mlp")
def expert_block(
    layer: Params, residual: ResidualStream, context: LayerContext
) -> tuple[ResidualStream, Float[Array, "*batch E"]]:
    """The residual stream, summed, and what the experts add to it: this device's share.

    Padding tokens go through no expert; nothing is added to them.
    """
    mlp, config, x = layer["mlp"], context.config, residual.summed()
    assert config.experts is not None
    hidden = rms_norm(x, layer["post_attention_layernorm"], config.rms_norm_eps)
    rows = hidden.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    k, is_normed = config.experts.experts_per_token, config.experts.norm_topk_prob
    chosen, weights = route(rows, mlp["gate"], k, normalize=is_normed)
    matrices = (mlp["experts"][name] for name in ("gate_proj", "up_proj", "down_proj"))
    if "replicas" in mlp:
        chosen = _slots(chosen, mlp["replicas"])
    chosen = _own(chosen, mlp["experts"]["gate_proj"].shape[0], context.axis)
    mixed = mixture(rows, chosen, weights, *matrices, is_token=_is_token(context))
    return ResidualStream(x), mixed.reshape(x.shape)


def _slots(
    chosen: Int32[Array, "T k"], replicas: Int32[Array, "X R_plus_2"]
) -> Int32[Array, "T k"]:
    """Where the chosen experts lie; tokens take an expert's replicas in turn, which are alike."""
    turns = jnp.arange(chosen.shape[0], dtype=jnp.int32)[:, None] % replicas[chosen, 0]
    return replicas[chosen, 1 + turns]


def _own(chosen: Int32[Array, "T k"], num_own: int, axis: TensorAxis | None) -> Int32[Array, "T k"]:
    """The chosen experts by their places on this device; `num_own`, no place, for all others."""
    if axis is None or axis.experts is None:
        return chosen
    own = chosen - jax.lax.axis_index(axis.experts) * num_own
    return jnp.where((own >= 0) & (own < num_own), own, num_own)


def _is_token(context: LayerContext) -> Bool[Array, " T"] | None:
    """Which rows are tokens and no padding; None where a caller's whole sequences pass."""
    tokens = context.tokens
    if tokens is None:
        return None
    # Padding writes to slot 0, of a page that is never allocated.
    return tokens.slot_mapping > 0 if context.rows is None else tokens.context_lens > 0
