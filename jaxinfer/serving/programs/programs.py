"""Shared by all of an engine's device programs: the arrays that they take."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from jaxinfer.kernels.attention.kv_cache_spec import KVCacheSpec, LayerPages
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.model.families.table import family_of
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.sharding import kv_pages_spec, logits_spec, num_page_heads
from jaxinfer.serving.programs.peer_buffers import describe_peers
from jaxinfer.serving.programs.sharded import WHOLE, Program, host_sharding, sharded
from jaxinfer.serving.programs.speculative.drafter import DraftState, DraftTextSizes
from jaxinfer.serving.programs.steps import Forward, KVCache, StepContext, feed_last_tokens
from jaxinfer.serving.sampling.layout import (
    EDIT_WIDTH,
    LogitEdits,
    SlotState,
)

_CACHE_DTYPES = {"fp8_e4m3": FP8, "int8": jnp.dtype(jnp.int8)}


@dataclass(frozen=True)
class Programs:
    """Describes an engine's programs; `program_set.program_of` has one of them.

    Attributes:
        context: the static settings of every step.
        params: tree of ``jax.ShapeDtypeStruct`` with the shardings of the real parameters.
        num_blocks: P.
        num_slots: length of last_tokens, max_num_seqs + 1.
        texts: sizes of the texts that drafts are made from; None without drafts.
        is_eager: functions are called on one device without compiling, by `EagerProgram`.
        samples: whether the engine samples, for which it keeps a state of each slot.
    """

    context: StepContext
    params: Mapping[str, Any]
    num_blocks: int
    num_slots: int
    forward: Forward = feed_last_tokens
    texts: DraftTextSizes | None = None
    is_eager: bool = False
    samples: bool = True

    def program(self, kind: Any, key: Any) -> Program:
        """The program of a key of this kind."""
        return kind.program(self, key)

    @property
    def mesh(self) -> Mesh:
        """All devices."""
        return self.context.mesh

    @property
    def stages(self) -> "tuple[Programs, ...]":
        """The programs of each stage of a pipeline; these alone without one."""
        return (self,)

    @property
    def started_later(self) -> Any:
        """Shapes of what takes memory beside weights and pages; None for what is not there."""
        return self.kept_slots, self.draft_state

    @property
    def head_of(self) -> Callable[[Any], Any]:
        """From a tree to the part that the head reads, where samplers run; None of None."""
        head_params = self.context.architecture.head_params
        return lambda params: None if params is None else head_params(params)

    def with_layers(self, count: int) -> "Programs":
        """These programs with at most `count` of the model's layers of each kind, in their order.

        Raises:
            ValueError: a model of only these layers would have other kinds of layers.
        """
        config, seen = self.context.config, Counter[LayerKind]()
        family, kept = family_of(config.model_type), []
        kinds = family.layer_kinds(config)
        for index, kind in enumerate(kinds):
            seen[kind] += 1
            if seen[kind] <= count:
                kept.append(index)
        config = family.with_layers(config, kept)
        if family_of(config.model_type).layer_kinds(config) != tuple(kinds[i] for i in kept):
            raise ValueError(f"a {config.model_type} of layers {kept} alone has other layers")
        model = self.params["model"]
        layers = {str(i): model["layers"][str(index)] for i, index in enumerate(kept)}
        params = {**self.params, "model": {**model, "layers": layers}}
        return replace(self, context=replace(self.context, config=config), params=params)

    @property
    def cache(self) -> KVCacheSpec:
        """The layout of the KV cache."""
        config = self.context.config
        layer = LayerPages(num_page_heads(config, self.context.num_devices), config.head_dim)
        return KVCacheSpec(
            (layer,) * config.num_hidden_layers,
            self.num_blocks,
            self.context.block_size,
            _CACHE_DTYPES.get(self.context.kv_cache_dtype, self.dtype),
            NamedSharding(self.context.mesh, kv_pages_spec(self.context.rules)),
            self.context.loop.beside(self.dtype),
        )

    @property
    def kv(self) -> KVCache:
        """Shapes of the whole KV cache."""
        return self.cache.kv

    @property
    def last_tokens(self) -> jax.ShapeDtypeStruct:
        """Shape of the newest token of each slot, and of the padding slot."""
        return self.whole((self.num_slots,))

    @property
    def slot_state(self) -> SlotState:
        """Shapes of the state that mode "full" keeps of each slot, and of the padding slot."""
        vocab_size = self.context.config.vocab_size
        sharding = NamedSharding(self.context.mesh, logits_spec(self.context.rules))
        counts = jax.ShapeDtypeStruct((self.num_slots, vocab_size), jnp.int32, sharding=sharding)
        return SlotState(counts, self.edits(self.num_slots))

    @property
    def kept_slots(self) -> SlotState | None:
        """The slots' state as far as the engine keeps it; None in one that samples nothing."""
        return self.slot_state if self.samples else None

    @property
    def draft_state(self) -> DraftState | None:
        """Shapes of the texts that drafts are made from; None in an engine without drafts."""
        if self.texts is None:
            return None
        shape = (self.num_slots, self.texts.history)
        history = self.whole(shape) if self.texts.history else None
        corpus = self.whole((self.texts.corpus,)) if self.texts.corpus else None
        return DraftState(history, self.whole((self.num_slots,)), corpus)

    @property
    def peers(self) -> tuple[()] | tuple[jax.ShapeDtypeStruct]:
        """Steps' last argument, `PeerBuffers.peers`, where devices sum through peer buffers."""
        axis = self.context.axis or self.context.rules.context
        if axis is None or not self.context.peer_buffers:
            return ()
        return (describe_peers(self.context.mesh, axis),)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of hidden states."""
        return jnp.dtype(self.context.dtype)

    def whole(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """Shape of an array that every device holds whole."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.context.mesh, WHOLE))

    def on_host(self, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        """Shape of an int32 array in pinned host memory, whole for every device.

        Programs copy it to their devices themselves, so that the host writes each batch to the same
        place, and all addresses in a CUDA graph stay the same.
        """
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=host_sharding(self.context.mesh))

    def edits(self, slots: int) -> LogitEdits:
        """Shapes of the logit edits of a number of slots."""
        ids = self.whole((slots, EDIT_WIDTH))
        values = self.whole((slots, EDIT_WIDTH), jnp.float32)
        words = -(-self.context.config.vocab_size // 32)
        return LogitEdits(ids, values, ids, self.whole((slots, words)))

    def sharded(
        self,
        name: str,
        run: Callable[..., Any],
        arguments: tuple[Any, ...],
        results: Any,
        *,
        donate: tuple[int, ...],
        to_host: tuple[int, ...] = (),
    ) -> Program:
        """A program that runs a function on every device of the mesh.

        Arguments in pinned host memory (`on_host`) are copied to the devices first.

        Args:
            name: its name in profiles and in the compilation cache.
            run: on each device's part of the arguments.
            arguments: trees of ``jax.ShapeDtypeStruct``.
            results: a tree of arguments whose placement the results share, or of partitions.
            donate: indices of arguments whose memory the results take.
            to_host: results that the program copies to pinned host memory.
        """
        return sharded(
            name,
            run,
            arguments,
            results,
            mesh=self.context.mesh,
            donate=donate,
            to_host=to_host,
            is_eager=self.is_eager,
        )
