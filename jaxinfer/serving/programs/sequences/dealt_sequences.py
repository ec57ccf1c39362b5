"""Context parallelism: the tokens of each sequence are dealt to the devices of a mesh axis in turn.

Position ``p`` lies on device ``p % C`` of the axis, as its key ``p // C``. A block of the host
counts ``C * S`` tokens, so that slot ``s`` of a step, ``block * C * S + offset``, is slot
``s // C`` of device ``s % C``: the same block id names a page of S tokens on every device, and
block tables are those of an engine on one device.

Prefill: the step's packed tokens are dealt in turn, too. Each device projects its own, then has the
projections of all (`all_gather`), writes the keys and values that are its own to lie, attends with
all queries over its own keys, and gets back the parts of its queries (`all_to_all`), which it puts
together (`partial.merged`). Of a row, one device's tokens have positions that are C apart, so that
each sees one key more than the one before it on every device: to the kernel they are a row of their
own with the ordinary causal mask (striped attention, Brandon et al. 2023, arXiv:2311.09431), and
all devices have equally much to do.

Decoding: every device computes all rows, attends over its own keys, and all exchange the parts.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.pages import PagedRows, Pages
from jaxinfer.kernels.attention.partial import merged, partial_attention
from jaxinfer.kernels.collectives.gather import gather_parts
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.model.layers.context import Rotation
from jaxinfer.serving.programs import steps
from jaxinfer.serving.programs.step_inputs import StepInputs


@dataclass(frozen=True)
class DealtSequences(steps.WholeSequences):
    """Each device of a mesh axis has some of the tokens of every sequence.

    Attributes:
        axis: the mesh axis's name.
        size: C, its length.
        exchange: the axis with a program's peer buffers; None outside of one.
    """

    axis: str
    size: int
    exchange: TensorAxis | None = None

    def run_layers(
        self,
        params: Any,
        kv: steps.KVCache,
        tokens: StepInputs,
        context: steps.StepContext,
        peers: Int32[Array, "one C 2"] | None,
        *,
        max_query_len: int | None = None,
        last_rows: Int32[Array, " B"] | None = None,
        part_sizes: Any = (),
    ) -> tuple[steps.KVCache, Float[Array, "_ E"]]:
        """As of `steps.WholeSequences`; rows leave all layers before the wanted ones are chosen."""
        del part_sizes  # the tokens are in parts already
        rank = lax.axis_index(self.axis)
        if max_query_len == 1:
            dealt = own_keys(tokens, self.size, rank)
            exchange = TensorAxis(self.axis, self._own_peers(context, peers))
            context = replace(context, sequences=replace(self, exchange=exchange))
            return super().run_layers(params, kv, dealt, context, peers, max_query_len=1)
        dealt = deal(tokens, self.size, rank)
        kv, x = super().run_layers(params, kv, dealt, context, peers)
        if last_rows is None:
            return kv, self._undealt(x)[: tokens.positions.shape[0]]
        return kv, self._rows(x, last_rows, rank)

    def write_and_attend(
        self,
        attention: Any,
        heads: tuple[Array, ...],
        rotation: Rotation,
        pages: Pages,
        tokens: StepInputs,
        context: steps.StepContext,
        max_query_len: int | None = None,
        last_rows: Int32[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "_ H D"], Pages]:
        """As of `steps.WholeSequences`: of this device's tokens, over the keys of all devices."""
        assert last_rows is None
        config, kernels = context.config, context.kernels
        decodes = max_query_len == 1
        if not decodes:
            heads = tuple(lax.all_gather(each, self.axis, tiled=True) for each in heads)
        q, pages = context.architecture.write_heads(
            attention, heads, rotation, pages, tokens.slot_mapping, config, kernels
        )
        cu_seqlens = None if decodes else tokens.cu_seqlens
        rows = PagedRows(tokens.context_lens, tokens.block_tables, cu_seqlens)
        parts = partial_attention(q, pages, rows, scale=config.head_dim**-0.5, kernels=kernels)
        if self.exchange is None:
            parts = [self._of_own(part) for part in parts]
        else:
            parts = gather_parts(*parts, self.exchange, q.dtype)
        return merged(*parts).astype(q.dtype), pages

    @staticmethod
    def _own_peers(context: steps.StepContext, peers: Array | None) -> Array | None:
        """The peer buffers, if they are this axis's and not the tensor axis's."""
        return None if peers is None or context.axis is not None else peers[0]

    def _of_own(self, part: Float[Array, "T *rest"]) -> Float[Array, "C t *rest"]:
        """The parts of all devices, of this one's tokens."""
        by_owner = part.reshape(self.size, -1, *part.shape[1:])
        return lax.all_to_all(by_owner, self.axis, split_axis=0, concat_axis=0)

    def _undealt(self, x: Float[Array, "t E"]) -> Float[Array, "T E"]:
        """All tokens in their order."""
        return lax.all_gather(x, self.axis, axis=1).reshape(-1, x.shape[1])

    def _rows(
        self, x: Float[Array, "t E"], rows: Int32[Array, " B"], rank: Array
    ) -> Float[Array, "B E"]:
        """These of all tokens: one device adds something other than zero, which rounds nothing."""
        found = x.at[rows // self.size].get(mode="clip")
        mine = rows % self.size == rank
        return lax.psum(jnp.where(mine[:, None], found, 0), self.axis)


def own_keys(tokens: StepInputs, size: int, rank: Array) -> StepInputs:
    """The rows of a decoding batch, with the keys that one of the devices holds.

    Args:
        tokens: of all devices, as of an engine on one.
        size: C, devices of the axis.
        rank: of this device.
    """
    return tokens._replace(
        slot_mapping=_own_slots(tokens.slot_mapping, size, rank),
        context_lens=_own_length(tokens.context_lens, size, rank),
    )


def deal(tokens: StepInputs, size: int, rank: Array) -> StepInputs:
    """A packed batch as one of the devices sees it; arguments as of `own_keys`.

    Returns:
        Ids of this device's tokens ``[T / C]``. Positions and slots of all tokens, device by
        device ``[T]``. And rows for the attention kernel ``[C * (B + 1)]``: for each device its
        tokens of every row, and its padding.
    """
    T = tokens.positions.shape[0]
    padded = -(-T // size) * size

    def by_device(array: Int32[Array, " T"]) -> Int32[Array, "C t"]:
        return jnp.pad(array, (0, padded - T)).reshape(-1, size).T

    # The first of a device's own tokens that are not before each offset: device d has d, d + C...
    devices = jnp.arange(size, dtype=jnp.int32)[:, None]
    offsets = -(-(tokens.cu_seqlens[None] - devices) // size)  # [C, B + 1]
    last = devices + size * (offsets[:, 1:] - 1)  # [C, B], packed index of the last one of a row
    has_tokens = (offsets[:, 1:] > offsets[:, :-1]) & (tokens.context_lens > 0)
    seen = tokens.context_lens - (tokens.cu_seqlens[1:] - last) + 1  # keys of all devices
    lengths = jnp.where(has_tokens, _own_length(seen, size, rank), 0)
    starts = (offsets + devices * (padded // size)).ravel()
    none = jnp.zeros((size, 1), jnp.int32)
    tables = jnp.pad(tokens.block_tables, ((0, 1), (0, 0)))
    return tokens._replace(
        token_ids=lax.dynamic_index_in_dim(by_device(tokens.token_ids), rank, keepdims=False),
        positions=by_device(tokens.positions).ravel(),
        slot_mapping=_own_slots(by_device(tokens.slot_mapping).ravel(), size, rank),
        cu_seqlens=jnp.append(starts, jnp.int32(padded)),
        context_lens=jnp.concatenate([lengths, none], axis=1).ravel(),
        block_tables=jnp.tile(tables, (size, 1)),
    )


def _own_slots(slots: Int32[Array, " T"], size: int, rank: Array) -> Int32[Array, " T"]:
    """Slots of this device's pages; 0, of the padding page, for tokens of another's."""
    return jnp.where(slots % size == rank, slots // size, 0)


def _own_length(lengths: Int32[Array, "*rows"], size: int, rank: Array) -> Int32[Array, "*rows"]:
    """How many of the first keys of a sequence this device holds."""
    return (lengths + size - 1 - rank) // size
