"""The arrays that an engine keeps on its devices, and those that a step's programs pass on."""

from typing import Any, NamedTuple

import jax


class Resident(NamedTuple):
    """The arrays that an engine keeps on its devices: one pytree, which each kind of program reads.

    Arrays that a program replaces are donated, so the tree passed to it must not be used again.

    Attributes:
        params: the parameter tree; never donated.
        head: from `Architecture.head_params`: a part of the same.
        kv: the pages of each layer; None, like the next three, if no cache is allocated.
        last_tokens: newest token of each slot, int32 ``[slots]``.
        slots: the `SlotState` that samplers keep of each slot; None also in an engine without them.
        drafts: the `DraftState`; None also in an engine without drafts.
        peers: of `PeerBuffers`, on several devices that sum through them; never donated.
    """

    params: Any
    head: Any
    kv: Any = None
    last_tokens: Any = None
    slots: Any = None
    drafts: Any = None
    peers: tuple[jax.Array, ...] = ()


class StepOutputs(NamedTuple):
    """The outputs of a step's programs so far, on the device; None for those not computed.

    Attributes:
        hidden: final hidden states ``[B, E]`` of each row's last token.
        rows: `SampledRows.joined`, for the sampler.
        residual: the residual stream ``[T, E]`` of all tokens, if a later program reads it.
        sampled: the results for the host (`result.py`), copied to pinned host memory.
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
