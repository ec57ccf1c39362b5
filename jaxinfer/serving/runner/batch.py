"""Packs a schedule into the int32 arrays that a step uploads, with NumPy alone."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.shared_prefixes import Group, find_groups, write_items
from jaxinfer.serving.programs.verify.verify_kind import VerifyKey
from jaxinfer.serving.programs.verify.verify_step import VerifyArrays
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.runner.readouts.registry import READOUTS
from jaxinfer.serving.sampling.layout import (
    MODES,
    WITH_SLOTS,
    Column,
    SamplerMode,
)
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.row_edits import RowEdits
from jaxinfer.serving.slots.row_sampling import RowSampling
from jaxinfer.serving.slots.slot_mirror import SlotMirror
from jaxinfer.serving.slots.slot_updates import (
    CountsUpdate,
    EditsUpdate,
    MasksUpdate,
    SlotUpdates,
)
from jaxinfer.serving.slots.step_masks import StepConstraints
from jaxinfer.serving.slots.step_rows import StepRows

# The cost a layer of reading shared keys once, in keys that could be read in the same time,
# measured with the 0.6B shape on an H200: a kernel's launch, and the products of each row of
# padding.
_KEYS_FOR_SHARING = 8192
_KEYS_FOR_PADDING = 256


@dataclass(frozen=True)
class Batch:
    """One step, ready for its programs.

    Attributes:
        shape: the bucket that the arrays fill.
        packed: int32 ``[shape.size]``, laid out by `shape`.
        mode: the sampler's mode.
        forward: the program of the forward pass.
        draw: the program that then samples; None if `forward` does.
        edits: updates of slots' logit edits to write first.
        counts: updates of slots' token counts to write first.
        readouts: readouts that rows ask for beside tokens, each with its input array for the
            device.
        verify: the positions to sample; None if every row is sampled only after its last token.
    """

    shape: PrefillShape | DecodeShape
    packed: np.ndarray
    mode: SamplerMode
    forward: ProgramKey
    draw: ProgramKey | None = None
    edits: Sequence[EditsUpdate] = ()
    counts: Sequence[CountsUpdate] = ()
    readouts: Mapping[Readout, np.ndarray | None] = field(default_factory=dict)
    verify: VerifyArrays | None = None

    @property
    def programs(self) -> list[ProgramKey]:
        """The programs that the step consists of."""
        return [self.forward] if self.draw is None else [self.forward, self.draw]


class BatchBuilder:
    """Builds a `Batch` from each `Schedule`, with one NumPy row per slot kept between steps.

    Args:
        buckets: the shapes there are.
        max_num_seqs: slots; the slot of that number takes padding rows.
        block_size: S.
        vocab_size: V.
        prepare: computes a request's sampling inputs once for all steps (`prepare_row`).
    """

    def __init__(
        self,
        buckets: Buckets,
        *,
        max_num_seqs: int,
        block_size: int,
        vocab_size: int,
        prepare: Callable[[Request], RowSampling],
    ) -> None:
        self._buckets = buckets
        self._block_size = block_size
        self._padding_slot = max_num_seqs
        self._updates = SlotUpdates(max_num_seqs + 1, vocab_size)
        self._edits: dict[int, TokenEdits] = {}
        self._mirror = SlotMirror(max_num_seqs, buckets.widths[-1], prepare)

    def clear(self) -> None:
        """Forget all sequences, after the cache was rebuilt."""
        self._mirror.clear()
        self._edits.clear()

    def build(self, schedule: Schedule) -> Batch:
        """Pack a step.

        Args:
            schedule: from the scheduler, nothing scheduled since.

        Raises:
            ValueError: the step fits no bucket, or is a multi-step decode with rows that need
                single steps.
        """
        rows = schedule.rows
        ends = [row.start + row.num_fed for row in rows]
        sampled_first = ends
        if schedule.num_proposed:
            sampled_first = [
                end - len(row.proposed_token_ids) for row, end in zip(rows, ends, strict=True)
            ]
        update = self._mirror.update
        slots = np.array(
            [update(row.request, end) for row, end in zip(rows, sampled_first, strict=True)],
            np.int32,
        )
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
        verify, at_once = None, False
        readouts: dict[Readout, np.ndarray | None] = {}
        if schedule.is_decode:
            mode = choose_mode(len(rows))
            at_once = not schedule.host_dependent and self._buckets.samples_at_once(len(rows), mode)
            if schedule.num_steps > 1 and not at_once:
                raise ValueError(f"several steps were planned for rows sampled in mode {mode!r}")
            last = context + (schedule.num_steps - 1)
            step = self._step_rows(rows, slots, sample_slots, context, slots, last)
            groups: Sequence[Group] = []
            if at_once:
                shape = self._buckets.sampled_decode_shape(*step.tables.shape)
            else:
                shape = self._buckets.decode_shape(*step.tables.shape, mode=mode)
            if schedule.num_steps == 1 and (shared := self._sharing(step, mode, shape.rows)):
                (shape, groups), at_once = shared, False
            packed, arrays = _pack_decode(shape, step, groups)
            forward, draw = shape, SamplerKey(shape.rows, mode)
            if at_once:
                forward, draw = SampledDecodeKey(shape, mode, schedule.num_steps), None
        else:
            wanted = [each for each in READOUTS if any(map(each.wants, rows))]
            verifies = schedule.num_proposed > 0
            total = sum(row.num_fed for row in rows)
            all_tokens = verifies or any(each.needs_all_tokens for each in wanted)
            shape = self._buckets.prefill_shape(total, len(rows), all_tokens=all_tokens)
            step = self._step_rows(rows, slots, sample_slots, context, _read_tables(rows, slots))
            packed, arrays = _pack(shape, step)
            readouts = {each: each.pack(rows, shape.tokens) for each in wanted}
            mode = choose_mode(shape.rows)
            forward, draw = shape, SamplerKey(shape.rows, mode)
            if verifies:
                verify = _verified(rows, shape.rows, schedule.num_proposed)
                draw = _verify_key(shape.tokens, verify, mode, schedule)
        sampling = shape.sampling(arrays)
        self._write_scalars(sampling.scalars, sample_slots, context)
        if mode == "mixed":
            _fill_up(sampling.special, special, shape.rows)
        edits: Sequence[EditsUpdate] = ()
        counts: Sequence[CountsUpdate] = ()
        if self._mirror.new_holders:
            edits, counts = self._updates_of_new_holders()
        return Batch(shape, packed, mode, forward, draw, edits, counts, readouts, verify)

    def constrain(
        self, schedule: Schedule, constraints: StepConstraints
    ) -> tuple[list[EditsUpdate], list[MasksUpdate]]:
        """The updates of slots of host-dependent rows whose edits or masks have changed.

        Args:
            schedule: of the last `build`; all earlier tokens of its host-dependent rows are read.
            constraints: of these rows; a row's bans are taken from its mask.
        """
        changed = []
        for i, wanted in constraints.edits:
            slot, own = self._holder(schedule.rows[i])
            if own is not None and wanted != self._edits.get(slot):
                self._edits[slot] = wanted
                changed.append((slot, own, wanted))
        edits = list(self._updates.edits(changed))
        if constraints.allowed is None:
            return edits, []
        slots = []
        for i, mask in zip(constraints.masked, constraints.allowed, strict=False):
            slot, own = self._holder(schedule.rows[i])
            slots.append(slot)
            if own is not None:
                own.restrict(mask)
        return edits, list(self._updates.masks(slots, constraints.allowed))

    def _holder(self, row: ScheduledRow) -> tuple[int, RowEdits | None]:
        """A row's slot and its edits; an out-of-range slot if the tokens read have ended it."""
        if (slot := row.request.slot) is None:
            return self._updates.num_slots, None
        return slot, self._mirror.sampling[slot].edits

    def _updates_of_new_holders(self) -> tuple[list[EditsUpdate], list[CountsUpdate]]:
        edits, penalised = [], []
        for slot, request in self._mirror.take_new_holders().items():
            sampling = self._mirror.sampling[slot]
            if sampling.edits is not None:
                self._edits[slot] = TokenEdits()
                edits.append((slot, sampling.edits, self._edits[slot]))
            if sampling.params.has_penalties:
                penalised.append((slot, request))
        return list(self._updates.edits(edits)), list(self._updates.counts(penalised))

    def _sharing(
        self, step: StepRows, mode: SamplerMode, num_rows: int
    ) -> tuple[DecodeShape, Sequence[Group]] | None:
        """The bucket of a step that reads shared keys once, and its groups; None if not worth it.

        Args:
            step: its rows.
            mode: of its sampler.
            num_rows: rows of the bucket without sharing.
        """
        sharing = self._buckets.sharing_shape(len(step.rows), mode=mode)
        if sharing is None:
            return None
        groups = find_groups(
            step.tables,
            step.context,
            block_size=self._block_size,
            batch_rows=sharing.rows,
            rows_in_item=self._buckets.rows_in_item,
        )
        cost = _KEYS_FOR_SHARING + _KEYS_FOR_PADDING * (sharing.rows - num_rows)
        if sum(group.saved_keys for group in groups) < cost:
            return None
        return sharing, groups

    def _step_rows(
        self,
        rows: Sequence[ScheduledRow],
        slots: np.ndarray,
        sample_slots: np.ndarray,
        context: np.ndarray,
        table_slots: np.ndarray,
        last: np.ndarray | None = None,
    ) -> StepRows:
        """A step's rows, with block tables as wide as the longest of them needs.

        A multi-step decode's are as wide as for `last`, each row's context in its last step.
        """
        longest = int((context if last is None else last).max())
        width = min(-(-longest // self._block_size), self._buckets.widths[-1])
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


def _read_tables(rows: Sequence[ScheduledRow], slots: np.ndarray) -> np.ndarray:
    """Slots int32 ``[n]`` of the tables that rows read: a fork reads that of the row it follows.

    A fork's own last block is filled after the step.
    """
    leaders = [i if row.num_fed else 0 for i, row in enumerate(rows)]
    return slots[np.maximum.accumulate(leaders)]


def _fill_up(into: np.ndarray, special: np.ndarray, num_rows: int) -> None:
    """Fill `SamplingArrays.special` with the places of special rows."""
    into[:] = num_rows
    into[: len(special)] = special


def _pack(shape: PrefillShape | DecodeShape, step: StepRows) -> tuple[np.ndarray, list[np.ndarray]]:
    """The packed vector ``[shape.size]``, and the arrays in it."""
    packed = shape.blank()
    arrays = shape.arrays(packed)
    for datum, array in zip(shape.data, arrays, strict=False):  # others come after
        datum.write(array, step)
    return packed, arrays


def _pack_decode(
    shape: DecodeShape, step: StepRows, groups: Sequence[Group]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Pack a decode batch, with the groups of rows that share keys; see `_pack`."""
    packed, arrays = _pack(shape, step)
    shared = shape.shared(arrays)
    if shared is not None:
        write_items(shared, groups)
    return packed, arrays


def _verify_key(
    num_tokens: int, verify: VerifyArrays, mode: SamplerMode, schedule: Schedule
) -> VerifyKey:
    if mode in WITH_SLOTS or schedule.host_dependent:
        raise ValueError(
            "tokens were proposed in a step with logit edits, penalties or log-probabilities "
            "of likeliest tokens, which are sampled one at a time: propose none"
        )
    num_rows, num_positions = verify.fed.shape
    return VerifyKey(num_tokens, num_rows, num_positions, mode)


def _verified(rows: Sequence[ScheduledRow], num_rows: int, num_proposed: int) -> VerifyArrays:
    """The positions to sample in each row, padded to a power of two."""
    ends = np.zeros(num_rows, np.int32)
    ends[: len(rows)] = np.cumsum([row.num_fed for row in rows]) - 1
    fed = np.full((num_rows, 1 << num_proposed.bit_length()), -1, np.int32)
    for i, row in enumerate(rows):
        count = len(row.proposed_token_ids)
        if count:
            fed[i, : count + 1] = np.frombuffer(row.packed_tokens(), np.int32)[-count - 1 :]
    return VerifyArrays(ends, fed)
