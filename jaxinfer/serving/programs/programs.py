"""Shared by all of an engine's device programs: the arrays that they take, and their form.

All run under ``shard_map`` over the mesh, also on one device, so that there is one code path. The
pages are donated and have the same sharding going in and coming out, hence are updated in place.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.kernels.attention.kv_cache_spec import KVCacheSpec, LayerPages
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.model.families.family import family_of
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.sharding import kv_pages_spec, logits_spec, num_page_heads
from jaxinfer.serving.programs.peer_buffers import describe_peers
from jaxinfer.serving.programs.steps import Forward, StepContext, feed_last_tokens
from jaxinfer.serving.sampling.layout import (
    EDIT_WIDTH,
    LogitEdits,
    SlotState,
)

WHOLE = PartitionSpec()
"""The partition of arrays that every device holds whole."""


@dataclass(frozen=True)
class Program:
    """A function to compile, with jit's settings for it.

    Attributes:
        name: its name in profiles and in the compilation cache.
        function: on arrays of all devices.
        arguments: trees of ``jax.ShapeDtypeStruct``.
        donate: indices of arguments whose memory the results take.
        out_shardings: of the results.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...]
    out_shardings: Any

    def lower(self) -> jax.stages.Lowered:
        """Trace and lower."""
        return self.jit().lower(*self.arguments)

    def jit(self) -> Any:
        """The jitted function."""

        def program(*args: Any) -> Any:
            return self.function(*args)

        program.__name__ = self.name
        return jax.jit(program, donate_argnums=self.donate, out_shardings=self.out_shardings)


@dataclass(frozen=True)
class Programs:
    """Describes an engine's programs; `program_set.program_of` has one of them.

    Attributes:
        context: the static settings of every step.
        params: tree of ``jax.ShapeDtypeStruct`` with the shardings of the real parameters.
        num_blocks: P.
        num_slots: length of last_tokens, max_num_seqs + 1.
        forward: `feed_last_tokens`, or its replacement.
        is_eager: functions are called on one device without compiling, by `EagerProgram`.
    """

    context: StepContext
    params: Mapping[str, Any]
    num_blocks: int
    num_slots: int
    forward: Forward = feed_last_tokens
    is_eager: bool = False

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
            self.dtype if self.context.kv_cache_dtype == "auto" else jnp.dtype(jnp.int8),
            NamedSharding(self.context.mesh, kv_pages_spec(self.context.rules)),
        )

    @property
    def kv(self) -> tuple[Pages, ...]:
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
    def peers(self) -> tuple[()] | tuple[jax.ShapeDtypeStruct]:
        """Steps' last argument, `PeerBuffers.peers`, where devices sum through peer buffers."""
        axis = self.context.axis
        if axis is None or not self.context.peer_buffers:
            return ()
        return (describe_peers(self.context.mesh, axis),)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of hidden states, which is the parameters'."""
        return self.params["model"]["embed_tokens"].dtype

    def whole(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        """Shape of an array that every device holds whole."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.context.mesh, WHOLE))

    def on_host(self, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        """Shape of an int32 array in pinned host memory, whole for every device.

        Programs copy it to their devices themselves, so that the host writes each batch to the same
        place, and all addresses in a CUDA graph stay the same.
        """
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._on_host)

    @property
    def _on_host(self) -> NamedSharding:
        return NamedSharding(self.context.mesh, WHOLE, memory_kind="pinned_host")

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
        mesh = self.context.mesh
        out_specs = _specs(results)
        # Kernels can't declare the mesh axes that their results vary over.
        sharded = run
        if not self.is_eager:
            sharded = jax.shard_map(
                run, mesh=mesh, in_specs=_specs(arguments), out_specs=out_specs, check_vma=False
            )
        out_shardings = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), out_specs, is_leaf=_is_spec
        )
        if to_host:
            out_shardings = tuple(
                self._on_host if i in to_host else each for i, each in enumerate(out_shardings)
            )
        copies_in = [i for i, each in enumerate(arguments) if _is_on_host(each)]
        if not copies_in and not to_host:
            return Program(name, sharded, arguments, donate, out_shardings)

        def program(*given: Any) -> Any:
            given = tuple(_on_device(x, mesh) if i in copies_in else x for i, x in enumerate(given))
            results = sharded(*given)
            return tuple(
                jax.device_put(x, self._on_host) if i in to_host else x
                for i, x in enumerate(results)
            )

        return Program(name, program, arguments, donate, out_shardings)


def _specs(tree: Any) -> Any:
    """The partition of every leaf, which is a ``ShapeDtypeStruct`` or a partition itself."""
    return jax.tree.map(
        lambda leaf: leaf if _is_spec(leaf) else leaf.sharding.spec, tree, is_leaf=_is_spec
    )


def _is_on_host(argument: Any) -> bool:
    is_array = isinstance(argument, jax.ShapeDtypeStruct)
    return is_array and argument.sharding.memory_kind == "pinned_host"


def _on_device(array: jax.Array, mesh: Mesh) -> jax.Array:
    """A copy on the devices, made by a kernel of its own.

    Otherwise XLA lets the step's kernels read host memory, or gives them slices of the argument,
    whose address changes from launch to launch.
    """
    copied = jax.device_put(array, NamedSharding(mesh, WHOLE, memory_kind="device"))
    return (copied & 1) + (copied & ~1)  # which XLA does not simplify


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
