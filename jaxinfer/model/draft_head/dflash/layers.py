"""The maths of a DFlash draft head as pure functions, for tokens in any arrangement.

The head has a few layers of the family of Qwen3. What they read of the text so far are not its
tokens: each layer projects its keys and values of a token from the token's *feature*, one vector
for all layers, which is made of the model's hidden states. To guess what follows, a *block* goes
through the layers: the newest token, of which there is no feature yet, and a mask token in the
place of each token to come. Every token of a block attends to the features of all tokens before
and to all of the block, and the model's own head guesses the token in each mask's place.

Letters: E hidden, H query heads, K key/value heads, D head dim, V vocabulary of the model, Vd of
the head.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.matmul.xla import linear
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.model.draft_head.dflash.config import DFlashConfig
from jaxinfer.model.layers.context import Params, Rotation
from jaxinfer.model.rope import apply_rope


@jax.named_scope("draft_features")
def features_of(
    params: Params, states: Sequence[jax.Array], config: DFlashConfig
) -> Float[Array, "*batch E"]:
    """The features of tokens.

    Args:
        params: the head's tree.
        states: ``[..., E]`` each, the hidden states that `DFlashConfig.states` names.
        config: static.
    """
    projected = linear(jnp.concatenate(states, axis=-1), params["fc"])
    return rms_norm(projected, params["hidden_norm"], config.layer.rms_norm_eps)


def keys_values_of(
    attention: Params,
    features: Float[Array, "*batch E"],
    rotation: Rotation,
    config: DFlashConfig,
) -> tuple[Float[Array, "*batch K D"], Float[Array, "*batch K D"]]:
    """The rotated keys and the values of one layer, of tokens whose features are known.

    Args:
        attention: the layer's parameters.
        features: from `features_of`.
        rotation: of the tokens' positions.
        config: static.
    """
    heads = (*features.shape[:-1], -1, config.layer.head_dim)
    keys = linear(features, attention["k_proj"]).reshape(heads)
    keys = rms_norm(keys, attention["k_norm"], config.layer.rms_norm_eps)
    return apply_rope(keys, *rotation), linear(features, attention["v_proj"]).reshape(heads)
