"""Runs the programs that write the state of slots: logit edits, masks, token counts."""

from collections.abc import Callable, Iterable
from typing import Any

import jax

from jaxinfer.serving.compile.compilation import CompiledPrograms
from jaxinfer.serving.programs.kinds.count_tokens import CountTokensKey
from jaxinfer.serving.programs.kinds.set_edits import SetEditsKey, SetMasksKey
from jaxinfer.serving.programs.kinds.speculative_decode import WriteTextsKey
from jaxinfer.serving.programs.speculative.drafter import DraftState
from jaxinfer.serving.sampling.layout import SlotState
from jaxinfer.serving.slots.slot_updates import (
    CountsUpdate,
    DraftWrite,
    EditsUpdate,
    MasksUpdate,
)


class SlotWriter:
    """Writes updates into the state of slots, which is donated and returned.

    Args:
        upload: copies a pytree of NumPy arrays to all devices.
        settle: waits for an array if devices run one program at a time.
    """

    def __init__(
        self,
        compiled: CompiledPrograms,
        upload: Callable[[Any], Any],
        settle: Callable[[jax.Array], object],
    ) -> None:
        self._compiled, self._upload, self._settle = compiled, upload, settle

    def drafts(self, state: DraftState, writes: Iterable[DraftWrite]) -> DraftState:
        """Write texts that drafts are made from."""
        for write in writes:
            write_texts = self._compiled[WriteTextsKey(len(write.tokens))]
            state = write_texts(state, *self._upload(write))
            self._settle(state.lengths)
        return state

    def edits(self, state: SlotState, updates: Iterable[EditsUpdate]) -> SlotState:
        """Replace all logit edits of some slots, masks included."""
        for update in updates:
            set_edits = self._compiled[SetEditsKey(len(update.slots))]
            edits = set_edits(state.edits, *self._upload(update))
            self._settle(edits.ids)
            state = state._replace(edits=edits)
        return state

    def masks(self, state: SlotState, updates: Iterable[MasksUpdate]) -> SlotState:
        """Replace the masks of allowed tokens of some slots."""
        for update in updates:
            set_masks = self._compiled[SetMasksKey(len(update.slots))]
            allowed = set_masks(state.edits.allowed, *self._upload(update))
            self._settle(allowed)
            state = state._replace(edits=state.edits._replace(allowed=allowed))
        return state

    def counts(self, state: SlotState, updates: Iterable[CountsUpdate]) -> SlotState:
        """Count known tokens in some slots."""
        for update in updates:
            key = CountTokensKey(len(update.cleared), update.tokens.shape[1])
            counted = self._compiled[key](state.token_counts, *self._upload(update))
            self._settle(counted)
            state = state._replace(token_counts=counted)
        return state
