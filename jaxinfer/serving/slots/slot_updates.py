"""Updates of slots on the device before their rows are sampled: logit edits, token counts."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.sampling.layout import EDIT_WIDTH, LogitEdits
from jaxinfer.serving.slots.row_edits import RowEdits
from jaxinfer.serving.slots.step_masks import MASK_ROWS

SLOTS_AN_UPDATE = 8
"""Slots that one update names at most."""

MASKS_AN_UPDATE = (8, MASK_ROWS)
"""Slots of the updates that set masks alone; the larger for more rows than the smaller takes."""

TOKENS_AN_UPDATE = 2048
"""Tokens that one update counts at most."""


class EditsUpdate(NamedTuple):
    """Arguments of `slot_state.set_edits`: int32 slots ``[N]`` and the edits they get."""

    slots: np.ndarray
    edits: LogitEdits


class MasksUpdate(NamedTuple):
    """Arguments of `slot_state.set_masks`: int32 slots ``[N]`` and ``[N, ceil(V / 32)]`` bits."""

    slots: np.ndarray
    allowed: np.ndarray


class CountsUpdate(NamedTuple):
    """Arguments of `slot_state.count_tokens`: int32 ``[N]`` and ``[3, T]``."""

    cleared: np.ndarray
    tokens: np.ndarray


class DraftWrite(NamedTuple):
    """Arguments of `write_texts`: int32 ``[4]`` and tokens ``[TOKENS_A_WRITE]``."""

    where: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class SlotUpdates:
    """Makes updates of fixed sizes, filled up with a slot that does not exist."""

    num_slots: int
    vocab_size: int

    def edits(self, rows: Iterable[tuple[int, RowEdits, TokenEdits]]) -> Iterator[EditsUpdate]:
        """Updates that give slots these edits, lasting ones and the current step's."""
        for batch in itertools.batched(rows, SLOTS_AN_UPDATE):
            slots = self._nowhere(SLOTS_AN_UPDATE)
            edits = LogitEdits(
                np.full((SLOTS_AN_UPDATE, EDIT_WIDTH), -1, np.int32),
                np.zeros((SLOTS_AN_UPDATE, EDIT_WIDTH), np.float32),
                np.zeros((SLOTS_AN_UPDATE, EDIT_WIDTH), np.int32),
                np.full((SLOTS_AN_UPDATE, -(-self.vocab_size // 32)), -1, np.int32),
            )
            for i, (slot, row, more) in enumerate(batch):
                slots[i] = slot
                row.write(LogitEdits(*(array[i] for array in edits)), more)
            yield EditsUpdate(slots, edits)

    def masks(self, slots: Sequence[int], allowed: np.ndarray) -> Iterator[MasksUpdate]:
        """Updates that set which tokens slots allow; their masks are views, not copies.

        Args:
            slots: of the first rows of `allowed`; `num_slots` for a row that is not needed.
            allowed: int32 ``[rows, at least ceil(V / 32)]``; as many rows as the updates have.
        """
        small, large = MASKS_AN_UPDATE
        num_words = -(-self.vocab_size // 32)
        for start in range(0, len(slots), large):
            some = slots[start : start + large]
            count = small if len(some) <= small else large
            padded = self._nowhere(count)
            padded[: len(some)] = some
            yield MasksUpdate(padded, allowed[start : start + count, :num_words])

    def counts(self, holders: Iterable[tuple[int, Request]]) -> Iterator[CountsUpdate]:
        """Updates that count all known tokens of new holders, and no others, in their slots."""
        for batch in itertools.batched(holders, SLOTS_AN_UPDATE):
            cleared = self._nowhere(SLOTS_AN_UPDATE)
            cleared[: len(batch)] = [slot for slot, _ in batch]
            tokens = np.concatenate([_known_tokens(*each) for each in batch], axis=1)
            for start in range(0, tokens.shape[1], TOKENS_AN_UPDATE):
                part = np.zeros((3, TOKENS_AN_UPDATE), np.int32)
                part[0] = self.num_slots
                some = tokens[:, start : start + TOKENS_AN_UPDATE]
                part[:, : some.shape[1]] = some
                yield CountsUpdate(cleared, part)
                cleared = self._nowhere(SLOTS_AN_UPDATE)

    def _nowhere(self, count: int) -> np.ndarray:
        return np.full(count, self.num_slots, np.int32)


def _known_tokens(slot: int, request: Request) -> np.ndarray:
    """int32 ``[3, n]``: the slot, prompt and read output, and whether a token was generated."""
    prompt = np.frombuffer(request.new.prompt.packed, np.int32)
    output: Sequence[int] = request.output_token_ids
    tokens = np.concatenate([prompt, np.asarray(output, np.int32)])
    generated = np.arange(len(tokens)) >= len(prompt)
    return np.stack([np.full_like(tokens, slot), tokens, generated.astype(np.int32)])
