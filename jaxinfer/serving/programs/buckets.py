"""Buckets: the few shapes that steps are compiled for, and the choice of one for a batch."""

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxinfer.sampling_params import FULL, SamplingMode
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.shared_prefixes import most_items
from jaxinfer.serving.programs.speculative.drafter import Drafter
from jaxinfer.serving.sampling.layout import SamplerMode, num_special_rows
from jaxinfer.serving.slots.step_data import Datum
from jaxinfer.serving.slots.step_rows import StepRows

# Few rows have one width: see `choose_buckets`.
_MOST_ROWS_OF_ONE_WIDTH = 32

MULTI_STEP_ROWS = 8
"""Most rows of a multi-step decode of any model."""

PLAIN_MODES: tuple[SamplerMode, ...] = ("temperature", "truncate")
"""Modes of batches that need nothing of their slots but a mask."""

MOST_FULL_ROWS = 32
"""Up to this many rows, all may as well be sampled in full where one must be; of more, the few that
need it are picked out (mode "mixed")."""


@dataclass(frozen=True)
class Buckets:
    """All shapes of an engine.

    Attributes:
        prefill: (tokens, rows) pairs in the order in which they are tried; the last fits any step.
        scored: the prefill buckets for steps whose prompt tokens are scored; the last is the same.
        rows: sizes of decode steps without their samplers, ascending. Here and in `sampled_rows`
            the smallest is at least 2, because XLA compiles a product with one row into slow code.
        sampled_rows: sizes of decode steps that sample in the same program, ascending.
        multi_step_rows: the first of `sampled_rows`, for which a launch may have several steps.
        num_steps, most_multi_step_rows: steps of a multi-step launch, 1 without, and its most rows.
        full_rows: the sizes that also have sampler mode "full", whose programs are large.
        mixed_rows: the sizes that also have sampler mode "mixed".
        widths: blocks of a block table, ascending; the last fits a full-length sequence. If there
            are two, batches of few rows have only the last.
        wide_rows: sizes of larger batches that have the last width, too; the last is the most.
        sharing: sizes of decode steps that read keys shared by rows only once. Their tables are
            always full width. Empty if kernels treat each row separately.
        rows_in_item: number of rows whose shared keys are read at once.
        speculative: sizes of decode steps with drafts, ascending, each with its rule. Tables are
            always full width. Empty without drafts.
        generates: whether steps sample; if not, there are prefill buckets only (`for_pooling`).
        has_tiers: whether blocks that leave the prefix cache are copied to prefix tiers.
        extra: data of rows and tokens that this engine's steps take beyond `STEP_DATA`.
    """

    prefill: tuple[tuple[int, int], ...]
    scored: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    sampled_rows: tuple[int, ...]
    multi_step_rows: tuple[int, ...]
    num_steps: int
    full_rows: tuple[int, ...]
    mixed_rows: tuple[int, ...]
    widths: tuple[int, ...]
    wide_rows: tuple[int, ...]
    sharing: tuple[int, ...] = ()
    rows_in_item: int = 0
    speculative: tuple[tuple[int, Drafter], ...] = ()
    generates: bool = True
    has_tiers: bool = False
    extra: tuple[Datum, ...] = ()
    most_multi_step_rows: int = MULTI_STEP_ROWS

    @functools.cached_property
    def variants(self) -> "tuple[Buckets, ...]":
        """These shapes, and those without the data that some steps don't need."""
        always = tuple(datum for datum in self.extra if datum.is_needed is None)
        return (self,) if always == self.extra else (self, replace(self, extra=always))

    def of_step(self, step: StepRows) -> "Buckets":
        """These shapes, without the data that a step's rows don't need."""
        *_, least = self.variants
        is_needed = (datum.is_needed and datum.is_needed(step) for datum in self.extra)
        return self if any(is_needed) else least

    def samples_at_once(self, rows: int, mode: SamplerMode) -> bool:
        """True if a decode step of that many rows has its sampler in the same program."""
        return mode in PLAIN_MODES and rows <= max(self.sampled_rows, default=0)

    def steps_of_launches(self, rows: int) -> Sequence[int]:
        """The numbers of steps that a launch of this size of `sampled_rows` may have."""
        return (1, self.num_steps) if rows in self.multi_step_rows else (1,)

    def steps_with_drafts(self, rows: int) -> Sequence[int]:
        """The numbers of steps that a launch of this size of `speculative` may have.

        Those of a launch without drafts, where the size is the least for some rows of such a one.
        There padding costs a single step nothing that the host would notice, so the smallest size
        leaves that step to the next.
        """
        smaller = [size for size, _ in self.speculative if size < rows]
        if self.num_steps == 1 or max(smaller, default=0) >= self.most_multi_step_rows:
            return (1,)
        has_next = rows < self.speculative[-1][0]
        return (self.num_steps,) if has_next and not smaller else (1, self.num_steps)

    def sampled_decode_shape(self, rows: int, width: int) -> DecodeShape:
        """The smallest bucket of a step with its sampler for a number of rows and blocks."""
        return self._smallest(self.sampled_rows, rows, width)

    def decode_shape(
        self, rows: int, width: int, *, mode: SamplerMode = "temperature"
    ) -> DecodeShape:
        """The smallest bucket for a number of rows, the blocks of the longest and their sampler."""
        return self._smallest(
            [size for size in self.rows if self._samples(size, mode)], rows, width
        )

    def sampler_mode(
        self, rows: int, special: int, mode: SamplingMode, *, truncates: bool
    ) -> SamplerMode:
        """The sampler mode of a batch.

        Args:
            rows: number of rows of the batch, or of its bucket.
            special: number of rows that need mode "full".
            mode: the most general that a row needs.
            truncates: whether a row has `top_k` or `top_p`.
        """
        if (
            mode != "full"
            or truncates
            or rows <= MOST_FULL_ROWS
            or rows > max(self.mixed_rows, default=0)
        ):
            return mode
        return "mixed" if special <= num_special_rows(at_least(self.mixed_rows, rows)) else mode

    def sharing_shape(self, rows: int, *, mode: SamplerMode = "temperature") -> DecodeShape | None:
        """The smallest bucket for a number of rows that share keys; None if there is none."""
        fitting = (size for size in self.sharing if rows <= size and self._samples(size, mode))
        return next((self._sharing_shape(size) for size in fitting), None)

    def prefill_shape(self, tokens: int, rows: int, *, all_tokens: bool = False) -> PrefillShape:
        """The smallest bucket for a number of tokens and rows; tables are always full width."""
        for bucket_tokens, bucket_rows in self.scored if all_tokens else self.prefill:
            if tokens <= bucket_tokens and rows <= bucket_rows:
                width = self.widths[-1]
                return PrefillShape(bucket_tokens, bucket_rows, width, all_tokens, self.extra)
        raise ValueError(
            f"a step of {tokens} tokens in {rows} rows exceeds the largest, {self.prefill[-1]}"
        )

    def prefill_shapes(self) -> list[PrefillShape]:
        """Every prefill bucket, the largest last; then the buckets that score."""
        pairs = [(pair, False) for pair in self.prefill] + [(pair, True) for pair in self.scored]
        return [PrefillShape(*pair, self.widths[-1], every, self.extra) for pair, every in pairs]

    def decode_shapes(self) -> list[DecodeShape]:
        """Every bucket of a decode step without its sampler, the largest last."""
        return self._shapes(self.rows) + [self._sharing_shape(rows) for rows in self.sharing]

    def sampled_decode_shapes(self) -> list[DecodeShape]:
        """Every bucket of a decode step with its sampler, the largest last."""
        return self._shapes(self.sampled_rows)

    def _shapes(self, sizes: Sequence[int]) -> list[DecodeShape]:
        return [
            DecodeShape(rows, width, extra=self.extra)
            for width in self.widths
            for rows in sizes
            if width in self._widths_of(rows)
        ]

    def _smallest(self, sizes: Sequence[int], rows: int, width: int) -> DecodeShape:
        """The smallest of these sizes that has a width for so many blocks."""
        at_least(self.widths, width)
        fitting = sizes[bisect.bisect_left(sizes, at_least(sizes, rows)) :]
        shapes = ((size, each) for size in fitting for each in self._widths_of(size))
        found = next(shape for shape in shapes if shape[1] >= width)
        return DecodeShape(*found, extra=self.extra)

    def _samples(self, rows: int, mode: SamplerMode) -> bool:
        return rows in self.sampler_rows(mode)

    def _widths_of(self, rows: int) -> Sequence[int]:
        """The widths of block tables for a decode batch of one size."""
        if rows <= _MOST_ROWS_OF_ONE_WIDTH:
            return self.widths[-1:]
        return self.widths if rows in self.wide_rows else self.widths[:-1] or self.widths

    def _sharing_shape(self, rows: int) -> DecodeShape:
        return DecodeShape(rows, self.widths[-1], most_items(rows), self.extra)

    def sampler_rows(self, mode: SamplerMode) -> list[int]:
        """Every number of rows for which a separate sampler program exists in that mode."""
        decode, prefill = set(self.rows), {rows for _, rows in self.prefill}
        if mode == "mixed":
            return sorted((decode | prefill) & set(self.mixed_rows))
        return sorted((decode & set(self.full_rows) if mode in FULL else decode) | prefill)


def at_least(sizes: Sequence[int], needed: int) -> int:
    """The first of ascending sizes that is large enough."""
    index = bisect.bisect_left(sizes, needed)
    if index == len(sizes):
        raise ValueError(f"{needed} exceeds the largest bucket, {sizes[-1]}")
    return sizes[index]
