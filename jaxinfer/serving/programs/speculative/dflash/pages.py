"""What pages hold for a DFlash head: keys and values of each of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.draft_head.dflash.config import DFlashConfig
from jaxinfer.model.draft_head.dflash.layers import features_of, keys_values_of
from jaxinfer.model.layers.context import Params
from jaxinfer.serving.programs.speculative.paged_rows import write_pair
from jaxinfer.serving.programs.step_inputs import StepInputs


@dataclass(frozen=True)
class DFlashPages:
    """The `HeadPages` of a DFlash head.

    Attributes:
        head: the head's shape.
    """

    head: DFlashConfig
    reads_embeddings = False

    @property
    def states(self) -> tuple[int, ...]:
        """The layers whose incoming residual stream the head reads."""
        return self.head.states

    def of_token(self, dtype: DTypeLike) -> tuple[Pages, ...]:
        """Keys and values of a token, of each layer."""
        layer = self.head.layer
        heads = (layer.num_key_value_heads, layer.head_dim)
        each = jax.ShapeDtypeStruct(heads, jnp.dtype(dtype))
        return (Pages(each, each),) * layer.num_hidden_layers

    @jax.named_scope("draft_pages")
    def write(
        self,
        head: Params,
        pages: Sequence[Pages],
        states: Sequence[jax.Array],
        embeddings: jax.Array | None,
        tokens: StepInputs,
    ) -> tuple[Pages, ...]:
        """The pages with keys and values of the tokens' features; as of `HeadPages`."""
        features, layer = features_of(head, states, self.head), self.head.layer
        (rotation,) = architecture_of(layer).rotations(tokens.positions, layer, features.dtype)
        written = []
        for index, each in enumerate(pages):
            attention = head["layers"][str(index)]["self_attn"]
            heads = keys_values_of(attention, features, rotation, self.head)
            written.append(write_pair(each, *heads, tokens.slot_mapping))
        return tuple(written)
