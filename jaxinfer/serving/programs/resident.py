"""The arrays that an engine keeps on its devices, and what a step's programs hand on."""

from typing import Any, NamedTuple

import jax


class Resident(NamedTuple):
    """The arrays that an engine keeps on its devices: one pytree, which each kind of program reads.

    What a program replaces of it is donated, so the tree that was handed to it is used no more.

    Attributes:
        params: the parameter tree; never donated.
        head: from `Architecture.head_params`: a part of the same.
        kv: the pages of each layer; None, as the next two, where no cache is allocated.
        last_tokens: newest token of each slot, int32 ``[slots]``.
        slots: the `SlotState` that samplers keep of each slot.
        peers: of `PeerBuffers`, on several devices that sum through them; never donated.
    """

    params: Any
    head: Any
    kv: Any = None
    last_tokens: Any = None
    slots: Any = None
    peers: tuple[jax.Array, ...] = ()


class StepOutputs(NamedTuple):
    """What the programs of a step have made so far, on the device; None for what it lacks.

    Attributes:
        hidden: final hidden states ``[B, E]`` of each row's last token.
        rows: `SampledRows.joined`, for the sampler.
        residual: the residual stream ``[T, E]`` of all tokens, where something reads it.
        sampled: what the host reads (`result.py`), in pinned host memory once it is there.
    """

    hidden: jax.Array | None = None
    rows: jax.Array | None = None
    residual: jax.Array | None = None
    sampled: jax.Array | None = None

    @property
    def newest(self) -> jax.Array:
        """An output of the last program."""
        output = self.hidden if self.sampled is None else self.sampled
        assert output is not None
        return output
