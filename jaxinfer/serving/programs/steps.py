"""The device side of a step: packed tokens through the layers, keys and values into the pages.

Pure functions of arrays, each written for one device's shards; `programs.py` puts them under
``shard_map`` and ``jit``. Letters as in the design: T packed tokens, B rows, E hidden, P pages, S
page size, K key/value heads, D head dim, W block-table width.

Nothing unchecked reaches an index. Block tables, slots and slot mappings are built by the host
from its block pool, token ids are checked by the host or come from the sampler, which yields ids in
[0, V); and each gather here says ``mode="clip"``, each scatter ``mode="drop"``, on purpose.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int32

from jaxinfer.config import MAX_LOGPROBS, KVCacheDType, LogprobsMode
from jaxinfer.kernels.attention.op import paged_attention
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.collectives.tensor_axis import MeshAxes, TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream, begin, begin_sum
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.architecture import Architecture, architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import LayerContext, LayerStep, Parts, Rotation, Tap
from jaxinfer.model.sharding import ShardingRules, tensor_parallel_size
from jaxinfer.serving.programs.layer_loop import LayerLoop
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape, SampledRows
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.token_parts import cut
from jaxinfer.serving.sampling.custom import CustomSampler, LogitsProcessor

KVCache = tuple[Any, ...]
"""The `Pages` of each layer; and behind them what the engine's `LayerLoop` keeps beside."""
Forward = Callable[..., tuple[KVCache, Array, Array]]
"""The signature of `feed_last_tokens` and its replacements."""


@dataclass(frozen=True)
class EveryLayer:
    """The loop over layers of an engine without a draft head: it keeps nothing beside."""

    num_probed = 2
    runs_user_code = False
    layer = staticmethod(jax.jit)

    def beside(self, dtype: Any) -> tuple[Any, ...]:
        """Nothing."""
        return ()

    def __call__(self, params: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        """Run `decoder.run_layers`."""
        return decoder.run_layers(params["model"]["layers"], *args, **options)


EVERY_LAYER = EveryLayer()


@dataclass(frozen=True)
class StepContext:
    """Settings that are fixed for an engine's life and static in every step.

    Attributes:
        block_size: S, tokens in a page.
        dtype: of activations, by name; each weight has its own.
        peer_buffers: whether small sums go through the devices' peer buffers (`peer_buffers.py`).
        logits_processor: a user's change of the logits, compiled into the sampler.
        sampler: a user's replacement of the draw.
        max_logprobs: most likeliest tokens that a step reports.
        logprobs_mode: the distribution whose log-probabilities mode "full" reports.
        loop: passes tokens through the layers.
        sequences: which devices have which tokens.
    """

    config: ModelConfig
    mesh: Mesh
    rules: ShardingRules
    kernels: Kernels
    block_size: int
    dtype: str
    peer_buffers: bool = False
    logits_processor: LogitsProcessor | None = None
    sampler: CustomSampler | None = None
    max_logprobs: int = MAX_LOGPROBS
    logprobs_mode: LogprobsMode = "processed_logprobs"
    kv_cache_dtype: KVCacheDType = "auto"
    loop: LayerLoop = EVERY_LAYER
    sequences: "WholeSequences" = field(
        default_factory=lambda: WholeSequences()  # noqa: PLW0108, it is defined below
    )

    @property
    def architecture(self) -> Architecture:
        """The model's parts."""
        return architecture_of(self.config)

    @property
    def has_custom_functions(self) -> bool:
        """True if a user's own code takes part in sampling."""
        return self.logits_processor is not None or self.sampler is not None

    @property
    def num_logprobs(self) -> int:
        """The number of likeliest tokens that a step reports, if it reports any."""
        return min(self.max_logprobs, self.config.vocab_size)

    @property
    def num_devices(self) -> int:
        """N, devices that heads and vocabulary are split over."""
        return tensor_parallel_size(self.mesh, self.rules)

    @property
    def axis(self) -> MeshAxes | None:
        """Mesh axes of tensor parallelism; None on one device, where reductions are no-ops."""
        if self.mesh.size == 1:
            return None
        return self.rules.heads if self.num_devices > 1 else None

    def tensor_axis(self, peers: Array | None) -> TensorAxis | None:
        """The axis as the model's functions take it, with a program's argument `peers`."""
        if self.axis is None:
            return None
        return TensorAxis(self.axis, None if peers is None else peers[0], False, self.rules.experts)


def prefill_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    last_tokens: Int32[Array, " slots"],
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: PrefillShape,
    part_sizes: Sequence[int] = (),
) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, " rows"], Float[Array, "T E"] | None]:
    """Run the layers over packed ragged rows: prompts, chunks of prompts, and single tokens.

    Args:
        params: the parameter tree.
        kv: the pages; donated.
        packed: a batch laid out by the shape.
        last_tokens: newest token of each slot.
        peers: this device's row of `PeerBuffers.peers`; None leaves all sums to XLA.
        context: static.
        shape: the bucket; static.
        part_sizes: see `run_layers`; static.

    Returns:
        The pages; the final hidden state of each row's last token; for the sampler, its
        `SampledRows.joined`; and the residual stream before the final norm, for prompt
        log-probabilities, of all tokens if the shape says so.
    """
    batch = shape.split(packed)
    in_flight = last_tokens.at[-1 - batch.token_ids].get(mode="clip")
    token_ids = jnp.where(batch.token_ids < 0, in_flight, batch.token_ids)
    ends = jnp.maximum(batch.cu_seqlens[1:] - 1, 0)
    tokens = batch.for_layers()._replace(token_ids=token_ids)
    last_rows = None if shape.all_tokens else ends
    options: dict[str, Any] = {"last_rows": last_rows, "part_sizes": part_sizes}
    kv, x = context.sequences.run_layers(params, kv, tokens, context, peers, **options)
    last = x.at[ends].get(mode="clip") if shape.all_tokens else x
    rows = SampledRows(batch.slots, token_ids.at[ends].get(mode="clip"), batch.sampling)
    hidden = context.architecture.final_hidden(params, last, context.config)
    return kv, hidden, rows.joined(), x if shape.all_tokens else None


def feed_last_tokens(
    params: Mapping[str, Any],
    kv: KVCache,
    batch: StepInputs,
    last_tokens: Int32[Array, " slots"],
    peers: Int32[Array, "one N 2"] | None,
    *,
    context: StepContext,
) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, " B"]]:
    """Decode once: the pages, the rows' hidden states and the tokens fed."""
    S = context.block_size
    rows = jnp.arange(batch.slots.shape[0], dtype=jnp.int32)
    positions = jnp.maximum(batch.context_lens - 1, 0)
    blocks = batch.block_tables.at[rows, positions // S].get(mode="clip")
    # Padding rows write to slot 0, of page 0, which is never allocated.
    slot_mapping = jnp.where(batch.context_lens > 0, blocks * S + positions % S, 0)
    token_ids = last_tokens.at[batch.slots].get(mode="clip")
    cu_seqlens = jnp.arange(batch.slots.shape[0] + 1, dtype=jnp.int32)
    tokens = batch.for_layers()._replace(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slot_mapping,
        cu_seqlens=cu_seqlens,
    )
    kv, x = context.sequences.run_layers(params, kv, tokens, context, peers, max_query_len=1)
    return kv, context.architecture.final_hidden(params, x, context.config), token_ids


def decode_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    last_tokens: Int32[Array, " slots"],
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: DecodeShape,
    forward: Forward = feed_last_tokens,
) -> tuple[KVCache, Float[Array, "B E"], Int32[Array, " rows"]]:
    """Run the layers over each row's newest token; its key and value go where the tables say.

    Args as of `prefill_step`, but for:
        forward: replaces `feed_last_tokens`; static.

    Returns:
        The pages, the final hidden state of each row, and for the sampler its
        `SampledRows.joined`.
    """
    batch = shape.split(packed)
    kv, hidden, fed = forward(params, kv, batch, last_tokens, peers, context=context)
    return kv, hidden, SampledRows(batch.slots, fed, batch.sampling).joined()


@dataclass(frozen=True)
class WholeSequences:
    """Every device has all tokens of a sequence."""

    def run_layers(
        self,
        params: Mapping[str, Any],
        kv: KVCache,
        tokens: StepInputs,
        context: StepContext,
        peers: Int32[Array, "one N 2"] | None,
        *,
        max_query_len: int | None = None,
        last_rows: Int32[Array, " B"] | None = None,
        part_sizes: Sequence[int] = (),
    ) -> tuple[KVCache, Float[Array, "_ E"]]:
        """Embed and run every layer; each writes its keys and values before it attends.

        With `last_rows`, only these tokens leave the last layer: the last of each row. With
        `part_sizes`, parts of so many tokens go through the layers in turn (`token_parts.py`).
        """
        config, model, axis = context.config, context.architecture, context.tensor_axis(peers)
        parts, sums = [tokens], axis
        if part_sizes and axis is not None:  # sums of parts do not depend on each other
            parts, sums = cut(tokens, part_sizes), axis.alone()
        residuals = [embedded(params, part, context, sums) for part in parts]
        rotations = [model.rotations(part.positions, config, context.dtype) for part in parts]
        # The barrier keeps XLA from computing cosines again inside every layer.
        rotations = jax.lax.optimization_barrier(rotations)
        step_of = cache(lambda kind: layer_function(kind, context, axis, max_query_len))
        return context.loop(
            params,
            model.layer_kinds(config),
            kv,
            Parts(residuals, rotations, parts),
            lambda _, kind: step_of(kind),
            whole=tokens,
            last_rows=last_rows,
        )

    def write_and_attend(
        self,
        attention: Mapping[str, Any],
        heads: tuple[Array, ...],
        rotation: Rotation,
        pages: Pages,
        tokens: StepInputs,
        context: StepContext,
        max_query_len: int | None = None,
        last_rows: Int32[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "_ H D"], Pages]:
        """Write one layer's keys and values to the pages, then attend; returns output and pages."""
        config, kernels = context.config, context.kernels
        q, pages = context.architecture.write_heads(
            attention, heads, rotation, pages, tokens.slot_mapping, config, kernels
        )
        cu_seqlens = tokens.cu_seqlens
        if last_rows is not None:  # each row is one query now, as in decoding
            q, max_query_len = q.at[last_rows].get(mode="clip"), 1
            cu_seqlens = jnp.arange(last_rows.shape[0] + 1, dtype=jnp.int32)
        mixed = paged_attention(
            q,
            pages,
            cu_seqlens,
            tokens.context_lens,
            tokens.block_tables,
            scale=config.head_dim**-0.5,
            max_query_len=max_query_len,
            shared=tokens.shared,
            kernels=kernels,
        )
        return mixed, pages


def layer_function(
    kind: LayerKind,
    context: StepContext,
    axis: TensorAxis | None,
    max_query_len: int | None = None,
) -> LayerStep:
    """The function of one kind of layer, traced and lowered once: a jit inside a jit is cached."""
    config, kernels, model = context.config, context.kernels, context.architecture

    def layer_step(
        layer: Mapping[str, Any],
        pages: Pages,
        residuals: Sequence[ResidualStream],
        rotations: Sequence[Rotation],
        tokens: Sequence[StepInputs],
        rows: Array | None,
        tap: Tap | None = None,
    ) -> tuple[Pages, Sequence[ResidualStream]]:
        def attend(
            part: StepInputs,
            rotation: Rotation,
            attention: Mapping[str, Any],
            heads: tuple[Array, ...],
        ) -> Array:
            nonlocal pages
            mixed, pages = context.sequences.write_and_attend(
                attention, heads, rotation, pages, part, context, max_query_len, rows
            )
            return mixed

        contexts = [
            LayerContext(config, kind, partial(attend, *of), axis, kernels, of[0], rows, tap=tap)
            for of in zip(tokens, rotations, strict=True)
        ]
        if len(contexts) == 1:
            behind = [model.decoder_layer(layer, residuals[0], contexts[0])]
        else:
            assert model.overlapped_layer is not None
            behind = model.overlapped_layer(layer, residuals, contexts)
        return pages, behind  # read after attention has replaced them

    return context.loop.layer(layer_step)


def embedded(
    params: Mapping[str, Any], tokens: StepInputs, context: StepContext, axis: TensorAxis | None
) -> ResidualStream:
    """The residual stream that the first layer reads."""
    model, kernels = context.architecture, context.kernels
    if axis is None:
        x = model.embed(params, tokens.token_ids)
        return begin(x.astype(context.dtype), kernels=kernels)
    share = model.embed_share(params, tokens.token_ids, axis)
    return begin_sum(share.astype(context.dtype), axis, kernels=kernels)
