"""Tells the device the texts that drafts are made from: those of slots, and of a corpus."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.speculative_decode import TOKENS_A_WRITE, speculative_key
from jaxinfer.serving.programs.speculative.drafter import CORPUS
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.batch import Batch, pack
from jaxinfer.serving.runner.prefill_batch import ChooseMode
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.slot_updates import DraftWrite
from jaxinfer.serving.slots.step_rows import StepRows
from jaxinfer.speculative_config import SpeculativeConfig

_END = -1  # of a text in the corpus


def draft_texts(config: SpeculativeConfig | None, tokenizer: Tokenizer | None) -> "DraftTexts":
    """The texts of an engine, with the files of its corpus.

    Raises:
        ValueError: a file can't be read as text.
    """
    if config is not None and config.model is not None:
        return DraftTexts(reads_texts=False)
    if config is None or tokenizer is None:
        return DraftTexts(config.corpus_size if config else 0)
    texts = [tokenizer.encode(_read(path)) for path in config.corpus]
    return DraftTexts(config.corpus_size, texts)


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"speculative_config: corpus: {path!r} is no text: {error}") from None


class _Holder(NamedTuple):
    """A sequence whose tokens a slot has.

    Attributes:
        request: the sequence.
        num_admissions: tells its stays on the device apart.
        num_written: leading tokens that the host has written.
    """

    request: Request
    num_admissions: int
    num_written: int


class DraftTexts:
    """What the device knows of sequences that draft, and which answers it drafts from besides.

    A slot's sequence is written when its drafts begin, and what it has gained without them when
    they begin again; the steps between write it themselves. The answer of each sequence joins the
    corpus once it has ended, in the place of the oldest.

    Args:
        corpus_size: C; 0 without a corpus.
        texts: the corpus to begin with, as token ids; the last of them, if they are too many.
        reads_texts: whether drafts are made from tokens; if not, the device is told lengths alone.
    """

    def __init__(
        self,
        corpus_size: int = 0,
        texts: Iterable[Sequence[int]] = (),
        *,
        reads_texts: bool = True,
    ) -> None:
        self._corpus_size, self._reads_texts = corpus_size, reads_texts
        self._first_texts = _latest(texts, corpus_size)
        self.clear()

    def clear(self) -> None:
        """Forget what the device knows, after its arrays were made anew."""
        self._holders: dict[int, _Holder] = {}
        self._next_place = 0
        self._texts = list(self._first_texts)

    def pack(
        self, schedule: Schedule, step: StepRows, buckets: Buckets, choose_mode: ChooseMode
    ) -> Batch:
        """A batch of decoding rows whose drafts the device makes, but for its scalars of sampling.

        Args:
            schedule: a step with drafts.
            step: its rows, with tables that have room for the drafts.
            buckets: the engine's.
            choose_mode: of its sampler.
        """
        mode = choose_mode(len(schedule.rows))
        key = speculative_key(buckets, len(schedule.rows), mode, schedule.num_steps)
        writes = self.writes(schedule)
        return Batch(key.shape, pack(key.shape, step), mode, key, draft_writes=writes)

    def writes(self, schedule: Schedule) -> list[DraftWrite]:
        """What the device must be told before a step with drafts."""
        for slot, holder in list(self._holders.items()):
            if holder.request.is_finished:
                self._end(slot)
        writes = [write for i in schedule.unknown for write in self._of_row(schedule.rows[i])]
        texts, self._texts = self._texts, []
        return writes + [write for text in texts for write in self._of_text(text)]

    def _of_row(self, row: ScheduledRow) -> list[DraftWrite]:
        request, slot = row.request, row.request.slot
        if slot is None:
            raise ValueError(f"request {request.request_id!r} holds no slot: it is not running")
        num_admissions, start = request.blocks.num_admissions, 0
        holder = self._holders.get(slot)
        if holder is not None and holder.request is not request:
            self._end(slot)
        elif holder is not None and holder.num_admissions == num_admissions:
            start = holder.num_written
        length = row.start + row.num_fed
        stop = min(request.num_known_tokens, length)
        self._holders[slot] = _Holder(request, num_admissions, stop)
        tokens = request.tokens(start, stop) if self._reads_texts else ()
        return _writes(slot, start, tokens, length)

    def _end(self, slot: int) -> None:
        """Let a slot's sequence go; its answer is to join the corpus."""
        request = self._holders.pop(slot).request
        if self._corpus_size and request.output_token_ids:
            self._texts.append(request.output_token_ids)

    def _of_text(self, token_ids: Sequence[int]) -> list[DraftWrite]:
        """Append a text to the corpus, over the oldest."""
        tokens = [*token_ids[-(self._corpus_size - 1) :], _END]
        start, size = self._next_place, self._corpus_size
        behind = max(start + len(tokens) - size, 0)
        first = len(tokens) - behind
        self._next_place = behind or start + first
        return _writes(CORPUS, start, tokens[:first]) + _writes(CORPUS, 0, tokens[first:])


def _latest(texts: Iterable[Sequence[int]], most: int) -> list[Sequence[int]]:
    """The last of texts that have together at most so many tokens, and the end of one before."""
    kept: list[Sequence[int]] = []
    for text in reversed(list(texts)):
        if most <= 1:
            break
        kept.append(text[-(most - 1) :])
        most -= len(kept[-1]) + 1
    return kept[::-1]


def _writes(slot: int, start: int, tokens: Sequence[int], length: int = 0) -> list[DraftWrite]:
    """Writes of tokens to one place; at least one, for a slot's length."""
    writes = []
    for first in range(0, max(len(tokens), int(slot != CORPUS)), TOKENS_A_WRITE):
        part = tokens[first : first + TOKENS_A_WRITE]
        padded = np.zeros(TOKENS_A_WRITE, np.int32)
        padded[: len(part)] = part
        where = np.array([slot, start + first, len(part), length], np.int32)
        writes.append(DraftWrite(where, padded))
    return writes
