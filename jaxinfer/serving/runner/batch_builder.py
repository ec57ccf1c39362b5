"""Packs a schedule into the int32 arrays that a step uploads, with NumPy alone."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.shared_prefixes import write_items
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner import prefill_batch
from jaxinfer.serving.runner.batch import Batch, pack
from jaxinfer.serving.runner.draft_texts import DraftTexts
from jaxinfer.serving.runner.prefill_batch import ChooseMode
from jaxinfer.serving.runner.shared_rows import SharedRows
from jaxinfer.serving.runner.slot_edits import SlotEdits
from jaxinfer.serving.sampling.layout import MODES, Column
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.mode_inputs import MORE_INPUTS
from jaxinfer.serving.slots.row_sampling import RowSampling
from jaxinfer.serving.slots.slot_mirror import SlotMirror
from jaxinfer.serving.slots.step_rows import StepRows


class BatchBuilder:
    """Builds a `Batch` from each `Schedule`, with one NumPy row per slot kept between steps.

    Args:
        max_num_seqs: slots; the slot of that number takes padding rows.
        prepare: turns a request into what its sampling takes at each step (`prepare_row`).
    """

    def __init__(
        self,
        buckets: Buckets,
        *,
        max_num_seqs: int,
        block_size: int,
        vocab_size: int,
        prepare: Callable[[Request], RowSampling],
        draft_texts: DraftTexts,
    ) -> None:
        self._buckets = buckets
        self._block_size = block_size
        self._padding_slot = max_num_seqs
        self._mirror = SlotMirror(max_num_seqs, buckets.widths[-1], prepare)
        self._shared_rows = SharedRows(block_size)
        self._draft_texts = draft_texts
        self.slot_edits = SlotEdits(self._mirror, vocab_size)

    def clear(self) -> None:
        """Forget all sequences, after the cache was rebuilt."""
        self._mirror.clear()
        self.slot_edits.clear()
        self._draft_texts.clear()

    def build(self, schedule: Schedule) -> Batch:
        """Pack a step.

        Raises:
            ValueError: the step fits no bucket, or is of several for rows that need one at a time.
        """
        rows = schedule.rows
        ends = [row.start + row.num_fed for row in rows]
        moved = schedule.moved
        if moved is None or self._mirror.is_changing:
            moved = range(len(rows))
        for i in moved:
            self._mirror.update(rows[i].request, ends[i])
        slots = np.array([row.request.slot for row in rows], np.int32)
        context = np.array(ends, np.int32)
        # Rows that do not sample are sampled like padding: greedily, and discarded.
        samples = schedule.is_decode or np.array([row.samples for row in rows])
        sample_slots = np.where(samples, slots, np.int32(self._padding_slot))
        levels = self._mirror.levels[sample_slots]
        special = np.flatnonzero(levels == MODES.index("full"))
        choose_mode = functools.partial(
            self._buckets.sampler_mode,
            special=len(special),
            mode=MODES[int(levels.max())],
            truncates=bool(self._mirror.truncates[sample_slots].any()),
        )
        table_slots = slots if schedule.is_decode else prefill_batch.read_tables(rows, slots)
        last = context + schedule.num_steps * (schedule.num_drafts + 1) - 1
        step = self._step_rows(rows, slots, sample_slots, context, table_slots, last)
        buckets = self._buckets.of_step(step)
        batch = self._packer(schedule)(schedule, step, buckets, choose_mode)
        shape = batch.shape
        sampling = shape.sampling(shape.arrays(batch.packed))
        self._write_scalars(sampling.scalars, sample_slots, context)
        if (more := MORE_INPUTS.get(batch.mode)) is not None:
            labels = more(shape.rows, sampling.special, special, rows)
            batch = dataclasses.replace(batch, labels=labels)
        if self._mirror.new_holders:
            edits, counts = self.slot_edits.of_new_holders()
            batch = dataclasses.replace(batch, edits=edits, counts=counts)
        return batch

    def _packer(self, schedule: Schedule) -> Callable[..., Batch]:
        """What packs rows of the schedule's kind, but for their scalars of sampling."""
        if not schedule.is_decode:
            return prefill_batch.pack_prefill
        return self._draft_texts.pack if schedule.num_drafts else self._pack_decode

    def _pack_decode(
        self, schedule: Schedule, step: StepRows, buckets: Buckets, choose_mode: ChooseMode
    ) -> Batch:
        rows, num_steps = schedule.rows, schedule.num_steps
        mode = choose_mode(len(rows))
        at_once = not schedule.host_dependent and buckets.samples_at_once(len(rows), mode)
        if num_steps > 1 and not at_once:
            raise ValueError(f"several steps were planned for rows sampled in mode {mode!r}")
        if at_once:
            shape = buckets.sampled_decode_shape(*step.tables.shape)
        else:
            shape = buckets.decode_shape(*step.tables.shape, mode=mode)
        if num_steps == 1 and buckets.sharing:
            found = self._shared_rows.bucket(
                step, buckets, mode, shape.rows, self._mirror.num_loads
            )
            if found is not None:
                shape, groups = found
                packed = pack(shape, step)
                shared = shape.shared(shape.arrays(packed))
                assert shared is not None  # a sharing bucket has work items
                write_items(shared, groups)
                return Batch(shape, packed, mode, shape, SamplerKey(shape.rows, mode))
        packed = pack(shape, step)
        if at_once:
            return Batch(shape, packed, mode, SampledDecodeKey(shape, mode, num_steps))
        return Batch(shape, packed, mode, shape, SamplerKey(shape.rows, mode))

    def _step_rows(
        self,
        rows: Sequence[ScheduledRow],
        slots: np.ndarray,
        sample_slots: np.ndarray,
        context: np.ndarray,
        table_slots: np.ndarray,
        last: np.ndarray,
    ) -> StepRows:
        """A step's rows, with tables as wide as the longest needs; `last` is where rows end."""
        width = min(-(-int(last.max()) // self._block_size), self._buckets.widths[-1])
        tables = self._mirror.tables[table_slots, :width]
        return StepRows(
            rows, slots, sample_slots, context, tables, self._padding_slot, self._block_size
        )

    def _write_scalars(
        self, scalars: np.ndarray, sample_slots: np.ndarray, context: np.ndarray
    ) -> None:
        """Fill `SamplingArrays.scalars` for rows of these slots, and for padding after them."""
        count = len(sample_slots)
        scalars[:count] = self._mirror.scalars[sample_slots]
        scalars[count:] = self._mirror.scalars[self._padding_slot]
        scalars[:count, Column.POSITION] = context
