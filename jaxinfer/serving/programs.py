"""Every device program of an engine: its name, its argument shapes, what it donates.

All run under ``shard_map`` over the mesh, also on one device, so that there is one code path. The
pages are donated and have the same sharding going in and coming out, hence are updated in place.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.model.sharding import kv_pages_spec, logits_spec, num_page_heads
from jaxinfer.sampling_params import SamplingMode
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.mailboxes import describe_peers
from jaxinfer.serving.sample_steps import (
    decode_burst,
    decode_full_burst,
    head_params,
    prompt_logprobs_step,
    sample_full_step,
    sample_step,
)
from jaxinfer.serving.sampling.layout import (
    EDIT_WIDTH,
    Column,
    LogitEdits,
    SamplingArrays,
    SlotState,
)
from jaxinfer.serving.sampling.slot_state import count_tokens, set_edits
from jaxinfer.serving.steps import (
    Forward,
    StepContext,
    decode_step,
    feed_last_tokens,
    prefill_step,
)
from jaxinfer.serving.swap_steps import gather_blocks, scatter_blocks

WHOLE = PartitionSpec()


@dataclass(frozen=True)
class SamplerKey:
    """A sampler for so many rows."""

    rows: int
    mode: SamplingMode


@dataclass(frozen=True)
class SetEditsKey:
    """Replaces the logit edits of some slots."""

    slots: int


@dataclass(frozen=True)
class CountTokensKey:
    """Counts known tokens of new holders of some slots."""

    slots: int
    tokens: int


@dataclass(frozen=True)
class BurstKey:
    """Several decode steps in one program."""

    shape: DecodeShape
    mode: SamplingMode
    num_steps: int


@dataclass(frozen=True)
class PromptLogprobsKey:
    """Log-probabilities of a prefill step's tokens."""

    tokens: int


@dataclass(frozen=True)
class SwapKey:
    """Copies of whole blocks between the pages and host memory."""

    num_blocks: int
    to_host: bool


ProgramKey = (
    PrefillShape
    | DecodeShape
    | SamplerKey
    | BurstKey
    | PromptLogprobsKey
    | SwapKey
    | SetEditsKey
    | CountTokensKey
)


@dataclass(frozen=True)
class Program:
    """A function and all that jit needs to know of it.

    Attributes:
        name: in profiles and in the compilation cache.
        function: on arrays of all devices.
        arguments: trees of ``jax.ShapeDtypeStruct``.
        donate: which arguments' memory the results take.
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
    """Describes an engine's programs.

    Attributes:
        context: what is static in every step.
        params: tree of ``jax.ShapeDtypeStruct`` with the shardings of the real parameters.
        num_blocks: P.
        num_slots: length of last_tokens, max_num_seqs + 1.
        forward: `feed_last_tokens`, or what takes its place.
    """

    context: StepContext
    params: Mapping[str, Any]
    num_blocks: int
    num_slots: int
    forward: Forward = feed_last_tokens

    def lower(self, key: ProgramKey) -> jax.stages.Lowered:
        """Trace and lower one program for the engine's mesh."""
        return self.program(key).lower()

    def program(self, key: ProgramKey) -> Program:
        """One program for the engine's mesh."""
        match key:
            case PrefillShape():
                return self._forward("prefill_step", prefill_step, key, num_outputs=3)
            case DecodeShape():
                step = functools.partial(decode_step, forward=self.forward)
                return self._forward("decode_step", step, key, num_outputs=2)
            case SamplerKey():
                return self._sampler(key)
            case BurstKey():
                return self._burst(key)
            case PromptLogprobsKey():
                return self._prompt_logprobs(key)
            case SwapKey():
                return self._swap(key)
            case SetEditsKey():
                return self._set_edits(key)
            case CountTokensKey():
                return self._count_tokens(key)

    def with_layers(self, count: int) -> "Programs":
        """Those of the same model with its first layers only, at most so many."""
        config = self.context.config
        config = replace(config, num_hidden_layers=min(count, config.num_hidden_layers))
        model = self.params["model"]
        layers = {str(i): model["layers"][str(i)] for i in range(config.num_hidden_layers)}
        params = {**self.params, "model": {**model, "layers": layers}}
        return replace(self, context=replace(self.context, config=config), params=params)

    @property
    def pages(self) -> jax.ShapeDtypeStruct:
        """One layer's key (or value) pages over all devices."""
        config = self.context.config
        heads = num_page_heads(config, self.context.num_devices)
        shape = (self.num_blocks, self.context.block_size, heads, config.head_dim)
        sharding = NamedSharding(self.context.mesh, kv_pages_spec(self.context.rules))
        return jax.ShapeDtypeStruct(shape, self._dtype, sharding=sharding)

    @property
    def kv(self) -> tuple[tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct], ...]:
        """The whole cache."""
        return ((self.pages, self.pages),) * self.context.config.num_hidden_layers

    @property
    def last_tokens(self) -> jax.ShapeDtypeStruct:
        """Newest token of each slot, and of the slot that nobody holds."""
        return self._whole((self.num_slots,))

    @property
    def slot_state(self) -> SlotState:
        """What mode "full" keeps of each slot, and of the slot that nobody holds."""
        vocab_size = self.context.config.vocab_size
        sharding = NamedSharding(self.context.mesh, logits_spec(self.context.rules))
        counts = jax.ShapeDtypeStruct((self.num_slots, vocab_size), jnp.int32, sharding=sharding)
        return SlotState(counts, self._edits(self.num_slots))

    @property
    def peers(self) -> tuple[()] | tuple[jax.ShapeDtypeStruct]:
        """Steps' last argument, `Mailboxes.peers`, where devices sum through mailboxes."""
        axis = self.context.axis
        if axis is None or not self.context.mailboxes:
            return ()
        return (describe_peers(self.context.mesh, axis),)

    @property
    def _dtype(self) -> jnp.dtype:
        return self.params["model"]["embed_tokens"].dtype

    def _whole(self, shape: tuple[int, ...], dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.context.mesh, WHOLE))

    def _forward(
        self,
        name: str,
        step: Callable[..., Any],
        shape: PrefillShape | DecodeShape,
        *,
        num_outputs: int,
    ) -> Program:
        run = functools.partial(step, context=self.context, shape=shape)
        packed = self._whole((shape.size,))
        arguments = (self.params, self.kv, packed, self.last_tokens, *self.peers)
        outputs = (_specs(self.kv), *[WHOLE] * num_outputs)
        return self._sharded(name, run, arguments, outputs, donate=(1,))

    def _sampler(self, key: SamplerKey) -> Program:
        hidden = self._whole((key.rows, self.context.config.hidden_size), self._dtype)
        rows = self._whole((2, key.rows))
        arrays = self._sampling(key.rows)
        arguments = (head_params(self.params), hidden, rows, arrays, self.last_tokens)
        if key.mode == "full":
            run = functools.partial(sample_full_step, context=self.context)
            outputs = (WHOLE, _specs(self.slot_state), WHOLE)
            arguments = (*arguments, self.slot_state)
            return self._sharded("sample_full", run, arguments, outputs, donate=(4, 5))
        run = functools.partial(sample_step, context=self.context, mode=key.mode)
        return self._sharded(f"sample_{key.mode}", run, arguments, (WHOLE, WHOLE), donate=(4,))

    def _set_edits(self, key: SetEditsKey) -> Program:
        edits = self.slot_state.edits
        arguments = (edits, self._whole((key.slots,)), self._edits(key.slots))
        return self._sharded("set_edits", set_edits, arguments, _specs(edits), donate=(0,))

    def _count_tokens(self, key: CountTokensKey) -> Program:
        run = functools.partial(count_tokens, axis=self.context.axis)
        counts = self.slot_state.token_counts
        arguments = (counts, self._whole((key.slots,)), self._whole((3, key.tokens)))
        return self._sharded("count_tokens", run, arguments, _specs(counts), donate=(0,))

    def _burst(self, key: BurstKey) -> Program:
        fixed = {
            "context": self.context,
            "shape": key.shape,
            "num_steps": key.num_steps,
            "forward": self.forward,
        }
        arrays = self._sampling(key.shape.rows)
        packed = self._whole((key.shape.size,))
        arguments = (self.params, self.kv, packed, arrays, self.last_tokens)
        if key.mode == "full":
            run = functools.partial(decode_full_burst, **fixed)
            arguments = (*arguments, self.slot_state, *self.peers)
            outputs = (_specs(self.kv), WHOLE, _specs(self.slot_state), WHOLE)
            return self._sharded("decode_full_burst", run, arguments, outputs, donate=(1, 4, 5))
        run = functools.partial(decode_burst, mode=key.mode, **fixed)
        outputs = (_specs(self.kv), WHOLE, WHOLE)
        return self._sharded("decode_burst", run, (*arguments, *self.peers), outputs, donate=(1, 4))

    def _prompt_logprobs(self, key: PromptLogprobsKey) -> Program:
        run = functools.partial(prompt_logprobs_step, context=self.context)
        residual = self._whole((key.tokens, self.context.config.hidden_size), self._dtype)
        arguments = (head_params(self.params), residual, self._whole((key.tokens,)))
        return self._sharded("prompt_logprobs_step", run, arguments, WHOLE, donate=())

    def _swap(self, key: SwapKey) -> Program:
        ids = self._whole((key.num_blocks,))
        if key.to_host:
            return self._sharded(
                "gather_blocks", gather_blocks, (self.kv, ids), _specs(self.kv), donate=()
            )
        arguments = (self.kv, ids, self.blocks(key.num_blocks))
        return self._sharded(
            "scatter_blocks", scatter_blocks, arguments, _specs(self.kv), donate=(0,)
        )

    def blocks(self, count: int) -> tuple[tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct], ...]:
        """So many blocks of every layer, as they travel to and from the host."""
        pages = self.pages
        part = jax.ShapeDtypeStruct((count, *pages.shape[1:]), pages.dtype, sharding=pages.sharding)
        return ((part, part),) * self.context.config.num_hidden_layers

    def _sampling(self, rows: int) -> SamplingArrays:
        return SamplingArrays(self._whole((rows, len(Column))))

    def _edits(self, slots: int) -> LogitEdits:
        ids = self._whole((slots, EDIT_WIDTH))
        values = self._whole((slots, EDIT_WIDTH), jnp.float32)
        words = -(-self.context.config.vocab_size // 32)
        return LogitEdits(ids, values, ids, self._whole((slots, words)))

    def _sharded(
        self,
        name: str,
        run: Callable[..., Any],
        arguments: tuple[Any, ...],
        out_specs: Any,
        *,
        donate: tuple[int, ...],
    ) -> Program:
        mesh = self.context.mesh
        # Kernels can't say which mesh axes their results vary over.
        sharded = jax.shard_map(
            run, mesh=mesh, in_specs=_specs(arguments), out_specs=out_specs, check_vma=False
        )
        out_shardings = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec),
            out_specs,
            is_leaf=lambda node: isinstance(node, PartitionSpec),
        )
        return Program(name, sharded, arguments, donate, out_shardings)


def _specs(structs: Any) -> Any:
    """The partition of every leaf of a tree of ``ShapeDtypeStruct``."""
    return jax.tree.map(lambda leaf: leaf.sharding.spec, structs)
