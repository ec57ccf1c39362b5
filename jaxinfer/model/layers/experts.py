"""A decoder layer whose MLP is experts, of which a router takes a few for each token.

Under tensor parallelism each device has its share of the width of every expert, as of a dense MLP:
all of them route alike, and their outputs are summed as a dense MLP's are. Under expert parallelism
it has some experts whole, or its share of some: nothing of others is computed, and the same sum
brings all of a token's experts together.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.load import expert_load
from jaxinfer.kernels.experts.op import mix, mix_add, route
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.model.layer_kind import MLP_PROJECTIONS
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import LayerContext, Params


def decoder_layer(layer: Params, residual: ResidualStream, context: LayerContext) -> ResidualStream:
    """One block, attention and experts, or a dense MLP where its kind says so."""
    if not context.kind.experts:
        return decoder.decoder_layer(layer, residual, context)
    # Of the wanted rows, too, experts are computed by the kernels given.
    residual, _ = decoder.attention_and_output(layer, residual, context)
    return expert_block(layer, residual, context)


@jax.named_scope("mlp")
def expert_block(layer: Params, residual: ResidualStream, context: LayerContext) -> ResidualStream:
    """The residual stream with the experts' sum added to it.

    Padding tokens go through no expert; nothing is added to them.
    """
    mlp, norm, kernels = layer["mlp"], layer["post_attention_layernorm"], context.kernels
    config, eps = context.config.experts, context.config.rms_norm_eps
    assert config is not None
    routed = route(
        residual,
        norm,
        mlp["gate"],
        config.experts_per_token,
        normalize=config.norm_topk_prob,
        eps=eps,
        kernels=kernels,
    )
    is_token = _is_token(context)
    if context.tap is not None:
        context.tap("router", routed.hidden)
        context.tap("experts", expert_load(routed.chosen, is_token, config.num_experts))
    matrices = [_matrices(mlp["experts"][name]) for name in MLP_PROJECTIONS]
    if context.axis is None:
        return mix_add(routed, norm, matrices, is_token=is_token, eps=eps, kernels=kernels)
    if "replicas" in mlp:
        routed = routed.renumbered(_slots(routed.chosen, mlp["replicas"]))
    share = mix(
        routed.renumbered(_own(routed.chosen, len(matrices[0]), context.axis)),
        norm,
        matrices,
        is_token=is_token,
        eps=eps,
        kernels=kernels,
        lacks_some=context.axis.experts is not None,
    )
    stream = ResidualStream(routed.x)
    return decoder.sum_and_add(share, None, stream, context.axis, kernels)


def _matrices(leaf: Any) -> Any:
    """One matrix of all experts, from what a tree holds: an array, or codes with scales."""
    return QuantizedExperts(**leaf) if isinstance(leaf, Mapping) else leaf


def _slots(
    chosen: Int32[Array, "T k"], replicas: Int32[Array, "X R_plus_2"]
) -> Int32[Array, "T k"]:
    """Where the chosen experts lie; tokens take an expert's replicas in turn, which are alike."""
    turns = jnp.arange(chosen.shape[0], dtype=jnp.int32)[:, None] % replicas[chosen, 0]
    return replicas[chosen, 1 + turns]


def _own(chosen: Int32[Array, "T k"], num_own: int, axis: TensorAxis) -> Int32[Array, "T k"]:
    """The chosen experts by their places on this device; `num_own`, no place, for all others."""
    if axis.experts is None:
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
