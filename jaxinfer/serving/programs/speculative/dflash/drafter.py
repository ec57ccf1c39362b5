"""Drafts the next tokens of sequences by a DFlash head, all of a block in one pass.

The tokens of a block write their keys and values where the sequence goes on, where the model's
verification of the drafts then writes the true ones. Each is a row of a decode step of the head's
layers, and as all rows of a block have the length of the whole block, each sees all of it.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.matmul.xla import contract
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.draft_head.dflash.config import DFlashConfig
from jaxinfer.model.draft_head.weights import DRAFT_HEAD
from jaxinfer.model.layers.context import Params, Parts
from jaxinfer.model.layers.decoder import run_layers
from jaxinfer.serving.programs.speculative.drafter import DraftRows, DraftState
from jaxinfer.serving.programs.speculative.paged_rows import block_at
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import KVCache, StepContext, layer_function
from jaxinfer.serving.sampling.logprobs import largest_logit
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


@dataclass(frozen=True)
class DFlashDrafter:
    """The `Drafter` of a DFlash head.

    Attributes:
        num_tokens: k, most drafts of a row in a step.
        head: the head's shape.
        kernels: of its layers, whose heads are not the model's.
    """

    num_tokens: int
    head: DFlashConfig
    kernels: Kernels

    def of_length(self, num_tokens: int) -> "DFlashDrafter":
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
        head, B, N = params[DRAFT_HEAD], rows.lengths.shape[0], self.num_tokens + 1
        *layers, pages = kv
        tokens = self._block(rows, context.block_size)
        if "embed_tokens" in head:
            x = head["embed_tokens"].at[tokens.token_ids].get(mode="clip")
        else:
            x = context.architecture.embed(params, tokens.token_ids, axis).astype(context.dtype)
        own = replace(context, config=self.head.layer, kernels=self.kernels)
        rotations = own.architecture.rotations(tokens.positions, own.config, x.dtype)
        rotations = jax.lax.optimization_barrier(rotations)  # as of `WholeSequences.run_layers`
        kinds = own.architecture.layer_kinds(own.config)
        step = layer_function(kinds[0], own, None, max_query_len=1)
        parts = Parts([begin(x, kernels=self.kernels)], [rotations], [tokens])
        pages, x = run_layers(head["layers"], kinds, pages, parts, lambda *_: step, whole=tokens)
        normed = rms_norm(x, head["norm"], own.config.rms_norm_eps)
        # The newest token's row guesses nothing, and spares a product with one row.
        drafts = _guess(params, normed, context).reshape(B, N)[:, 1:]
        return (*layers, pages), drafts

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

    def _block(self, rows: DraftRows, block_size: int) -> StepInputs:
        """The blocks of rows as rows of a decode step, N = k + 1 of each, one behind the other."""
        N, S = self.num_tokens + 1, block_size
        places = jnp.arange(N, dtype=jnp.int32)
        # Beyond what a row may gain its table has no block.
        is_fed = (rows.lengths[:, None] > 0) & (places < rows.most_gained[:, None])
        ends = rows.lengths - 1 + is_fed.sum(axis=1, dtype=jnp.int32)
        positions = (jnp.maximum(rows.lengths - 1, 0)[:, None] + places).reshape(-1)
        tables = jnp.repeat(rows.block_tables, N, axis=0)
        slots = block_at(tables, positions, S) * S + positions % S
        masks = jnp.full((rows.newest.shape[0], N - 1), self.head.mask_token_id, jnp.int32)
        return StepInputs(
            token_ids=jnp.concatenate([rows.newest[:, None], masks], axis=1).reshape(-1),
            positions=positions,
            slot_mapping=jnp.where(is_fed.reshape(-1), slots, 0),
            cu_seqlens=jnp.arange(positions.shape[0] + 1, dtype=jnp.int32),
            context_lens=jnp.where(is_fed, ends[:, None], 0).reshape(-1),
            block_tables=tables,
        )


@jax.named_scope("draft_vocabulary")
def _guess(params: Params, normed: Float[Array, "T E"], context: StepContext) -> Int32[Array, " T"]:
    """The likeliest token, by the head's own vocabulary or the model's."""
    head = params[DRAFT_HEAD]
    if "lm_head" in head:
        best = contract(normed, head["lm_head"], jnp.float32).argmax(axis=-1)
        return head["token_ids"].at[best].get(mode="clip")
    logits = context.architecture.lm_head(context.architecture.head_params(params), normed)
    best, _, _ = largest_logit(logits, VocabAxis(context.axis))
    return best
