"""What runs on the devices in a step: packed tokens through the layers into pages, rows to tokens.

Pure functions of arrays, each written for one device's shards; `programs.py` puts them under
``shard_map`` and ``jit``. Letters as in the design: T packed tokens, B rows, E hidden, P pages, S
page size, K key/value heads, D head dim, W block-table width.

Nothing unchecked reaches an index. Block tables, slots and slot mappings are built by the host
from its block pool, token ids are checked by the host or come from the sampler, which yields ids in
[0, V); and each gather here says ``mode="clip"``, each scatter ``mode="drop"``, on purpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention import Backend, norm_rope_write, paged_attention
from jaxinfer.kernels.projections import Stream, begin
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.qwen3 import Heads, decoder_layer, embed, final_hidden
from jaxinfer.model.rope import cos_sin
from jaxinfer.model.sharding import ShardingRules, tensor_parallel_size
from jaxinfer.serving.layout import DecodeFields, DecodeShape, PrefillShape
from jaxinfer.serving.sampling.custom import CustomSampler, LogitsProcessor

KVCache = tuple[tuple[Float[Array, "P S K D"], Float[Array, "P S K D"]], ...]
"""Key and value pages of each layer."""


@dataclass(frozen=True)
class StepContext:
    """What is fixed for an engine's life and static in every step.

    Attributes:
        config: the model's shape.
        mesh: the devices.
        rules: which logical axis is split over which mesh axis.
        backend: the attention implementation.
        block_size: S, tokens in a page.
        logits_processor: a user's change of the logits, compiled into the sampler.
        sampler: a user's replacement of the draw.
    """

    config: ModelConfig
    mesh: Mesh
    rules: ShardingRules
    backend: Backend
    block_size: int
    logits_processor: LogitsProcessor | None = None
    sampler: CustomSampler | None = None

    @property
    def num_devices(self) -> int:
        """N, devices that heads and vocabulary are split over."""
        return tensor_parallel_size(self.mesh, self.rules)

    @property
    def axis(self) -> str | None:
        """Mesh axis of tensor parallelism; None on one device, where a reduction is nothing."""
        return self.rules.heads if self.num_devices > 1 else None


def prefill_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    last_tokens: Int32[Array, " slots"],
    *,
    context: StepContext,
    shape: PrefillShape,
) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, "2 B"], Float[Array, "T E"] | None]:
    """Feed packed ragged rows: prompts, chunks of prompts, and single tokens between them.

    Args:
        params: the parameter tree.
        kv: the pages; donated.
        packed: a batch laid out as `PrefillFields`.
        last_tokens: newest token of each slot.
        context: static.
        shape: the bucket; static.

    Returns:
        The pages; the final hidden state of each row's last token; for the sampler, the slot where
        each row's token goes and the row's last token; and the residual stream before the final
        norm, for prompt log-probabilities, of all tokens if the shape says so.
    """
    batch = shape.split(packed)
    in_flight = last_tokens.at[-1 - batch.token_ids].get(mode="clip")
    token_ids = jnp.where(batch.token_ids < 0, in_flight, batch.token_ids)
    ends = jnp.maximum(batch.cu_seqlens[1:] - 1, 0)
    kv, x = _run_layers(
        params,
        kv,
        token_ids,
        batch.positions,
        batch.slot_mapping,
        (batch.cu_seqlens, batch.context_lens, batch.block_tables),
        context,
        max_query_len=None,
        last_rows=None if shape.all_tokens else ends,
    )
    last = x.at[ends].get(mode="clip") if shape.all_tokens else x
    rows = jnp.stack([batch.sample_slots, token_ids.at[ends].get(mode="clip")])
    hidden = final_hidden(params, last, context.config)
    return kv, hidden, rows, x if shape.all_tokens else None


def decode_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    last_tokens: Int32[Array, " slots"],
    *,
    context: StepContext,
    shape: DecodeShape,
) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, "2 B"]]:
    """Feed the newest token of each row; where its key and value go follows from the tables.

    Args:
        params: the parameter tree.
        kv: the pages; donated.
        packed: a batch laid out as `DecodeFields`.
        last_tokens: newest token of each slot.
        context: static.
        shape: the bucket; static.

    Returns:
        The pages, the final hidden state of each row, and for the sampler each row's slot and the
        token that was fed.
    """
    batch = shape.split(packed)
    kv, hidden, fed = feed_last_tokens(params, kv, batch, last_tokens, context=context)
    return kv, hidden, jnp.stack([batch.slots, fed])


def feed_last_tokens(
    params: Mapping[str, Any],
    kv: KVCache,
    batch: DecodeFields,
    last_tokens: Int32[Array, " slots"],
    *,
    context: StepContext,
) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, " B"]]:
    """Decode once: the pages, the rows' hidden states and the tokens fed; the body of a burst."""
    S = context.block_size
    rows = jnp.arange(batch.slots.shape[0], dtype=jnp.int32)
    positions = jnp.maximum(batch.context_lens - 1, 0)
    blocks = batch.block_tables.at[rows, positions // S].get(mode="clip")
    # Padding rows write to slot 0, of the page that nobody holds.
    slot_mapping = jnp.where(batch.context_lens > 0, blocks * S + positions % S, 0)
    token_ids = last_tokens.at[batch.slots].get(mode="clip")
    cu_seqlens = jnp.arange(batch.slots.shape[0] + 1, dtype=jnp.int32)
    kv, x = _run_layers(
        params,
        kv,
        token_ids,
        positions,
        slot_mapping,
        (cu_seqlens, batch.context_lens, batch.block_tables),
        context,
        max_query_len=1,
    )
    return kv, final_hidden(params, x, context.config), token_ids


def _run_layers(
    params: Mapping[str, Any],
    kv: KVCache,
    token_ids: Int32[Array, " T"],
    positions: Int32[Array, " T"],
    slot_mapping: Int32[Array, " T"],
    rows: tuple[Array, Array, Array],
    context: StepContext,
    *,
    max_query_len: int | None,
    last_rows: Int32[Array, " B"] | None = None,
) -> tuple[KVCache, Float[Array, "_ E"]]:
    """Embed and run every layer; each writes its keys and values before it attends.

    With `last_rows`, only those tokens leave the last layer: the last of each row.
    """
    config, axis = context.config, context.axis

    # Traced and lowered once: layers have the same shapes, and a jit inside a jit is cached.
    @jax.jit
    def layer_step(
        layer: Mapping[str, Any],
        pages: tuple[Array, Array],
        stream: Stream,
        cos: Array,
        sin: Array,
        slot_mapping: Array,
        rows: tuple[Array, Array, Array],
        last_rows: Array | None,
    ) -> tuple[tuple[Array, Array], Stream]:
        written = pages
        queries, longest = rows, max_query_len
        if last_rows is not None:  # each row is one query now, as in decoding
            count = last_rows.shape[0]
            queries, longest = (jnp.arange(count + 1, dtype=jnp.int32), *rows[1:]), 1

        def attend(attention: Mapping[str, Any], heads: Heads) -> Array:
            nonlocal written
            q, *both = norm_rope_write(
                heads,
                attention["q_norm"],
                attention["k_norm"],
                cos,
                sin,
                *pages,
                slot_mapping,
                eps=config.rms_norm_eps,
                backend=context.backend,
            )
            written = both[0], both[1]
            return paged_attention(
                q if last_rows is None else q.at[last_rows].get(mode="clip"),
                *written,
                *queries,
                scale=config.head_dim**-0.5,
                max_query_len=longest,
                backend=context.backend,
            )

        stream = decoder_layer(layer, stream, config, attend, axis, context.backend, last_rows)
        return written, stream

    x = embed(params, token_ids, axis)
    stream = begin(x, backend=context.backend)
    # The barrier keeps XLA from computing cosines again inside every layer.
    cos, sin = jax.lax.optimization_barrier(cos_sin(positions, config, x.dtype))
    pages_of_layers = []
    last = config.num_hidden_layers - 1
    for index in range(config.num_hidden_layers):
        layer = params["model"]["layers"][str(index)]
        kept = last_rows if index == last else None
        pages, stream = layer_step(layer, kv[index], stream, cos, sin, slot_mapping, rows, kept)
        pages_of_layers.append(pages)
    return tuple(pages_of_layers), stream.settled()
