"""A decoder layer whose MLP is experts, of which a router takes a few for each token.

Under tensor parallelism each device has its share of the width of every expert, as of a dense MLP:
all of them route alike, and their outputs are summed as a dense MLP's are.
"""

import math

import jax
from jaxtyping import Array, Bool, Float

from jaxinfer.kernels.experts.load import expert_load
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
    is_token = _is_token(context)
    if context.tap is not None:
        context.tap("experts", expert_load(chosen, is_token, config.experts.num_experts))
    matrices = (mlp["experts"][name] for name in ("gate_proj", "up_proj", "down_proj"))
    mixed = mixture(rows, chosen, weights, *matrices, is_token=is_token)
    return ResidualStream(x), mixed.reshape(x.shape)


def _is_token(context: LayerContext) -> Bool[Array, " T"] | None:
    """Which rows are tokens and no padding; None where a caller's whole sequences pass."""
    tokens = context.tokens
    if tokens is None:
        return None
    # Padding writes to slot 0, of a page that is never allocated.
    return tokens.slot_mapping > 0 if context.rows is None else tokens.context_lens > 0
