"""What pages hold for a draft head: its layer's keys and values, and the features that it reads.

All of it is of a token, by position, in the blocks of the sequence. What is held of a token depends
on the tokens up to it alone: so a prefix hit, a fork or a block that was swapped brings it along.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.model.draft_head.config import DraftHeadConfig
from jaxinfer.model.draft_head.layer import features_of, keys_values_of, pair_up
from jaxinfer.model.draft_head.weights import DRAFT_HEAD
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import Params, Parts
from jaxinfer.model.layers.watching import StepOf, watching
from jaxinfer.serving.programs.step_inputs import StepInputs


class DraftPages(NamedTuple):
    """The entry of the KV cache behind the model's layers, in an engine with a draft head.

    Attributes:
        layer: of the head's layer: the pair at each position, zeros at position 0.
        features: ``[P, S, E]``, of the token at each position.
    """

    layer: Pages
    features: Any


@dataclass(frozen=True)
class WatchedLayers:
    """A `LayerLoop` that also writes what the head reads of all tokens that pass.

    Attributes:
        head: the head's shape.
    """

    head: DraftHeadConfig

    @property
    def num_probed(self) -> int:
        """One for each state that is kept, and the first."""
        return 1 + len(self.head.states)

    def beside(self, dtype: DTypeLike) -> tuple[DraftPages]:
        """The head's pages of a token."""
        layer = self.head.layer
        heads = (layer.num_key_value_heads, layer.head_dim)
        each = jax.ShapeDtypeStruct(heads, jnp.dtype(dtype))
        feature = jax.ShapeDtypeStruct((layer.hidden_size,), jnp.dtype(dtype))
        return (DraftPages(Pages(each, each), feature),)

    def __call__(
        self,
        params: Params,
        kinds: Sequence[LayerKind],
        kv: Sequence[Any],
        parts: Parts,
        step_of: StepOf,
        *,
        whole: StepInputs,
        last_rows: jax.Array | None,
    ) -> tuple[tuple[Any, ...], jax.Array]:
        """Every layer in turn, and then the head's pages."""
        *pages, drafts = kv
        states, last = self.head.states, len(kinds) - 1
        if last < max(states):  # fewer layers, which stand for all while memory is planned
            states = [min(1 + i, last) for i in range(len(states))]
        seen: dict[int, jax.Array] = {}
        written, x = decoder.run_layers(
            params["model"]["layers"],
            kinds,
            pages,
            parts,
            watching(step_of, {0, *states}, seen),
            whole=whole,
            last_rows=last_rows,
        )
        head, embeddings = params[DRAFT_HEAD], seen[0]
        if "embed_tokens" in head:
            embeddings = head["embed_tokens"].at[whole.token_ids].get(mode="clip")
        features = features_of(head, [seen[layer] for layer in states], self.head)
        drafts = write_tokens(head, drafts, features, embeddings, whole, self.head)
        return (*written, drafts), x


@jax.named_scope("draft_pages")
def write_tokens(
    head: Params,
    pages: DraftPages,
    features: Float[Array, "T E"],
    embeddings: Float[Array, "T E"],
    tokens: StepInputs,
    config: DraftHeadConfig,
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


def write_pair(
    pages: Pages,
    keys: Float[Array, "T K D"],
    values: Float[Array, "T K D"],
    slot_mapping: Int32[Array, " T"],
) -> Pages:
    """Write keys and values of the head's layer."""
    return Pages(write(pages.k, keys, slot_mapping), write(pages.v, values, slot_mapping))


def write(
    pages: Float[Array, "P S *rest"], rows: Float[Array, "T *rest"], slots: Int32[Array, " T"]
) -> Float[Array, "P S *rest"]:
    """Write a row for each token; slots are ``block * S + offset``, 0 for padding."""
    S = pages.shape[1]
    return pages.at[slots // S, slots % S].set(rows, mode="drop")


def read(
    pages: Float[Array, "P S *rest"], tables: Int32[Array, "T W"], positions: Int32[Array, " T"]
) -> Float[Array, "T *rest"]:
    """The row at a position of each sequence; anything where the position is -1.

    Args:
        pages: as they are.
        tables: each sequence's blocks.
        positions: of the sequences.
    """
    S = pages.shape[1]
    return pages.at[block_at(tables, positions, S), jnp.maximum(positions, 0) % S].get(mode="clip")


def block_at(
    tables: Int32[Array, "T W"], positions: Int32[Array, " T"], block_size: int
) -> Int32[Array, " T"]:
    """The block that holds a position of each sequence; positions below 0 count as 0."""
    places = jnp.maximum(positions, 0) // block_size
    return jnp.take_along_axis(tables, places[:, None], axis=1, mode="clip")[:, 0]
