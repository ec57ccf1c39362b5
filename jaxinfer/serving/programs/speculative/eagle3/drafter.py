"""Drafts the next tokens of sequences by an EAGLE-3 head, one after the other.

The first draft is the head's guess from the pair of the newest token and the feature before it, and
each further one from its own output and the draft before. They write their keys and values where
the model's verification of them then writes the true ones.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.draft_head.eagle3.config import Eagle3Config
from jaxinfer.model.draft_head.eagle3.layer import (
    finish,
    guess,
    keys_values_of,
    pair_up,
    queries_of,
)
from jaxinfer.model.draft_head.weights import DRAFT_HEAD
from jaxinfer.model.layers.context import Params
from jaxinfer.serving.programs.speculative.drafter import DraftRows, DraftState
from jaxinfer.serving.programs.speculative.eagle3.pages import DraftPages
from jaxinfer.serving.programs.speculative.paged_rows import block_at, read, write_pair
from jaxinfer.serving.programs.steps import KVCache, StepContext


@dataclass(frozen=True)
class Eagle3Drafter:
    """The `Drafter` of an EAGLE-3 head.

    Attributes:
        num_tokens: k, most drafts of a row in a step.
        head: the head's shape.
        kernels: of its attention, whose heads are not the model's.
    """

    num_tokens: int
    head: Eagle3Config
    kernels: Kernels

    def of_length(self, num_tokens: int) -> "Eagle3Drafter":
        """The same with another k."""
        return replace(self, num_tokens=num_tokens)

    def draft(
        self,
        params: Params,
        kv: KVCache,
        rows: DraftRows,
        state: DraftState,
        *,
        context: StepContext,
        axis: TensorAxis | None,
    ) -> tuple[KVCache, Int32[Array, "B k"]]:
        """Drafts of rows, and the pages with what the head wrote; as of `Drafter`."""
        head, B = params[DRAFT_HEAD], rows.lengths.shape[0]
        rows = _two_at_least(rows)

        def embed(token_ids: jax.Array) -> jax.Array:
            if "embed_tokens" in head:
                return head["embed_tokens"].at[token_ids].get(mode="clip")
            return context.architecture.embed(params, token_ids, axis).astype(context.dtype)

        @jax.jit  # traced and lowered once for all drafts
        def go_on(
            head: Params, pages: Pages, feature: jax.Array, token_ids: jax.Array, lengths: jax.Array
        ) -> tuple[Pages, jax.Array, jax.Array]:
            return self._go_on(head, pages, feature, embed(token_ids), lengths, rows.block_tables)

        *layers, held = kv
        pages, feature = held.layer, read(held.features, rows.block_tables, rows.lengths - 2)
        token_ids, drafts = rows.newest, []
        for step in range(self.num_tokens):
            # Beyond what a row may gain its table has no block.
            lengths = jnp.where(step < rows.most_gained, rows.lengths + step, 0)
            lengths = jnp.where(rows.lengths > 0, lengths, 0)
            pages, feature, token_ids = go_on(head, pages, feature, token_ids, lengths)
            drafts.append(token_ids)
        return (*layers, DraftPages(pages, held.features)), jnp.stack(drafts, axis=1)[:B]

    def remember(
        self,
        state: DraftState,
        slots: Int32[Array, " B"],
        starts: Int32[Array, " B"],
        tokens: Int32[Array, "B N"],
        counts: Int32[Array, " B"],
    ) -> DraftState:
        """The state as it is: the head reads pages."""
        return state

    def _go_on(
        self,
        head: Params,
        pages: Pages,
        feature: Float[Array, "B E"],
        embeddings: Float[Array, "B E"],
        lengths: Int32[Array, " B"],
        tables: Int32[Array, "B W"],
    ) -> tuple[Pages, Float[Array, "B E"], Int32[Array, " B"]]:
        """Guess one token: the pages, what takes the place of the next feature, and the guess.

        Args:
            head: the head's parameters.
            pages: of its layer.
            feature: of the token before the last.
            embeddings: of the last token.
            lengths: tokens of each row, the last one included; 0 where there is none.
            tables: the rows' blocks.
        """
        S, positions = pages.k.shape[1], jnp.maximum(lengths - 1, 0)
        slots = jnp.where(lengths > 0, block_at(tables, positions, S) * S + positions % S, 0)
        pair = pair_up(head, feature, embeddings, positions, self.head)
        pages = write_pair(pages, *keys_values_of(head, pair, self.head), slots)
        offsets = jnp.arange(lengths.shape[0] + 1, dtype=jnp.int32)
        mixed = paged_attention(
            queries_of(head, pair, self.head),
            pages,
            offsets,
            lengths,
            tables,
            scale=self.head.layer.head_dim**-0.5,
            max_query_len=1,
            kernels=self.kernels,
        )
        output = finish(head, pair, mixed, self.head)
        return pages, output.fed_back, guess(head, output.normed)


def _two_at_least(rows: DraftRows) -> DraftRows:
    """A single row with padding: XLA compiles a product with one row into slow code."""
    missing = max(2 - rows.lengths.shape[0], 0)
    return jax.tree.map(lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), rows)
