"""What pages hold for an EAGLE-3 head: its layer's keys and values, and the features it reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.model.draft_head.eagle3.config import Eagle3Config
from jaxinfer.model.draft_head.eagle3.layer import features_of, keys_values_of, pair_up
from jaxinfer.model.layers.context import Params
from jaxinfer.serving.programs.speculative.paged_rows import read, write, write_pair
from jaxinfer.serving.programs.step_inputs import StepInputs


class DraftPages(NamedTuple):
    """The entry of the KV cache behind the model's layers, in an engine with an EAGLE-3 head.

    Attributes:
        layer: of the head's layer: the pair at each position, zeros at position 0.
        features: ``[P, S, E]``, of the token at each position.
    """

    layer: Pages
    features: Any


@dataclass(frozen=True)
class Eagle3Pages:
    """The `HeadPages` of an EAGLE-3 head.

    Attributes:
        head: the head's shape.
    """

    head: Eagle3Config
    reads_embeddings = True

    @property
    def states(self) -> tuple[int, ...]:
        """The layers whose incoming residual stream the head reads."""
        return self.head.states

    def of_token(self, dtype: DTypeLike) -> DraftPages:
        """Keys, values and the feature of a token."""
        layer = self.head.layer
        heads = (layer.num_key_value_heads, layer.head_dim)
        each = jax.ShapeDtypeStruct(heads, jnp.dtype(dtype))
        feature = jax.ShapeDtypeStruct((layer.hidden_size,), jnp.dtype(dtype))
        return DraftPages(Pages(each, each), feature)

    def write(
        self,
        head: Params,
        pages: DraftPages,
        states: Sequence[jax.Array],
        embeddings: jax.Array | None,
        tokens: StepInputs,
    ) -> DraftPages:
        """The pages with the tokens' features, and with pairs; as of `HeadPages`."""
        if "embed_tokens" in head:
            embeddings = head["embed_tokens"].at[tokens.token_ids].get(mode="clip")
        assert embeddings is not None
        features = features_of(head, states, self.head)
        return write_tokens(head, pages, features, embeddings, tokens, self.head)


@jax.named_scope("draft_pages")
def write_tokens(
    head: Params,
    pages: DraftPages,
    features: Float[Array, "T E"],
    embeddings: Float[Array, "T E"],
    tokens: StepInputs,
    config: Eagle3Config,
) -> DraftPages:
    """Write what the head reads of tokens whose features are known.

    Args:
        head: the head's parameters.
        pages: donated.
        features: of the tokens.
        embeddings: of the tokens.
        tokens: the step's, in packed ragged rows.
        config: static.
    """
    held = write(pages.features, features, tokens.slot_mapping)
    T = tokens.positions.shape[0]
    places = jnp.arange(T, dtype=jnp.int32)
    ends = tokens.cu_seqlens[1:]
    rows = jnp.searchsorted(ends, places, side="right", method="compare_all")
    tables = tokens.block_tables.at[rows].get(mode="clip")
    before = read(held, tables, tokens.positions - 1)
    pair = pair_up(head, before, embeddings, tokens.positions, config)
    has_pair = (tokens.positions > 0)[:, None, None]
    keys, values = (jnp.where(has_pair, x, 0) for x in keys_values_of(head, pair, config))
    return DraftPages(write_pair(pages.layer, keys, values, tokens.slot_mapping), held)
