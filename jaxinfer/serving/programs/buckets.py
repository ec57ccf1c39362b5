"""Buckets: the few shapes that steps are compiled for, and the choice of one for a batch."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.sampling_params import SamplingMode
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.shared_prefixes import most_items
from jaxinfer.serving.sampling.layout import SamplerMode, num_special_rows

# Contexts up to here take narrow tables where that saves enough: the tables of every row are
# uploaded with each step, 10 KB a row for contexts of 40,960. For few rows that is nothing, and a
# second width would cost a program for each number of rows, step and way of sampling.
_SHORT_TABLE_TOKENS = 4096
_MOST_ROWS_OF_ONE_WIDTH = 32

MULTI_STEP_ROWS = 8
"""Most rows of a multi-step decode."""

PLAIN_MODES: tuple[SamplerMode, ...] = ("temperature", "truncate")
"""Modes of batches that need nothing of their slots but a mask."""

# Steps of many rows with long contexts are slow anyway: rows are padded to one of few sizes.
_WIDE_ROWS = (64, 256, 1024)

# Most keys of a kernel's tile: tables of whole tiles are read without a check.
_TILE_KEYS = 128

# Steps that read shared keys once need one more kernel in each layer, so they are programs of their
# own, of few sizes: their savings are worth some rows of padding.
_SHARING_ROWS = (64, 256, 1024)

# An H200 takes a millisecond to read weights of this size, and with a few hundred tokens a step
# lasts as long as its products, padding included. So prompts of usual sizes find buckets with room
# for the decoding rows beside them.
_LONG_STEP_WEIGHT_BYTES = 4 << 30
_PADDED_TOKENS = (640, 1280, 2560)

# Up to this many rows, all are sampled in full if one needs it; in larger batches, the few that
# need it are picked out (mode "mixed").
_MOST_FULL_ROWS = 32
_FULL_ROWS = 64

# A second launch takes the host about as long as a fifth of a short step, and steps of more rows
# are long enough to hide it. Those of few rows may be shorter than even one launch, which several
# of them then share.
_SAMPLED_ROWS = (2, 8, 16, 32)

# Sampling for a full set of rows costs 0.3 ms, of the 16 that such a step takes.
_TOKENS_THAT_HIDE_ROWS = 8_192


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
        num_steps: decode steps of a multi-step launch; 1 if there are none.
        full_rows: the sizes that also have sampler mode "full", whose programs are large.
        mixed_rows: the sizes that also have sampler mode "mixed".
        widths: blocks of a block table, ascending; the last fits a full-length sequence. If there
            are two, batches of few rows have only the last.
        wide_rows: sizes of larger batches that have the last width, too; the last is the most.
        sharing: sizes of decode steps that read keys shared by rows only once. Their tables are
            always full width. Empty if kernels treat each row separately.
        rows_in_item: number of rows whose shared keys are read at once.
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

    def samples_at_once(self, rows: int, mode: SamplerMode) -> bool:
        """True if a decode step of that many rows has its sampler in the same program."""
        return mode in PLAIN_MODES and rows <= max(self.sampled_rows, default=0)

    def steps_of_launches(self, rows: int) -> Sequence[int]:
        """The numbers of steps that a launch of this size of `sampled_rows` may have."""
        return (1, self.num_steps) if rows in self.multi_step_rows else (1,)

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
            or rows <= _MOST_FULL_ROWS
            or rows > max(self.mixed_rows, default=0)
        ):
            return mode
        return "mixed" if special <= num_special_rows(_at_least(self.mixed_rows, rows)) else mode

    def sharing_shape(self, rows: int, *, mode: SamplerMode = "temperature") -> DecodeShape | None:
        """The smallest bucket for a number of rows that share keys; None if there is none."""
        fitting = (size for size in self.sharing if rows <= size and self._samples(size, mode))
        return next((self._sharing_shape(size) for size in fitting), None)

    def prefill_shape(self, tokens: int, rows: int, *, all_tokens: bool = False) -> PrefillShape:
        """The smallest bucket for a number of tokens and rows; tables are always full width."""
        for bucket_tokens, bucket_rows in self.scored if all_tokens else self.prefill:
            if tokens <= bucket_tokens and rows <= bucket_rows:
                return PrefillShape(bucket_tokens, bucket_rows, self.widths[-1], all_tokens)
        raise ValueError(
            f"a step of {tokens} tokens in {rows} rows exceeds the largest, {self.prefill[-1]}"
        )

    def prefill_shapes(self) -> list[PrefillShape]:
        """Every prefill bucket, the largest last; then the buckets that score."""
        pairs = [(pair, False) for pair in self.prefill] + [(pair, True) for pair in self.scored]
        return [PrefillShape(*pair, self.widths[-1], every) for pair, every in pairs]

    def decode_shapes(self) -> list[DecodeShape]:
        """Every bucket of a decode step without its sampler, the largest last."""
        return self._shapes(self.rows) + [self._sharing_shape(rows) for rows in self.sharing]

    def sampled_decode_shapes(self) -> list[DecodeShape]:
        """Every bucket of a decode step with its sampler, the largest last."""
        return self._shapes(self.sampled_rows)

    def _shapes(self, sizes: Sequence[int]) -> list[DecodeShape]:
        return [
            DecodeShape(rows, width)
            for width in self.widths
            for rows in sizes
            if width in self._widths_of(rows)
        ]

    def _smallest(self, sizes: Sequence[int], rows: int, width: int) -> DecodeShape:
        _at_least(self.widths, width)
        fitting = sizes[bisect.bisect_left(sizes, _at_least(sizes, rows)) :]
        shapes = (DecodeShape(size, each) for size in fitting for each in self._widths_of(size))
        return next(shape for shape in shapes if shape.width >= width)

    def _samples(self, rows: int, mode: SamplerMode) -> bool:
        return rows in self.sampler_rows(mode)

    def _widths_of(self, rows: int) -> Sequence[int]:
        """The widths of block tables for a decode batch of one size."""
        if rows <= _MOST_ROWS_OF_ONE_WIDTH:
            return self.widths[-1:]
        return self.widths if rows in self.wide_rows else self.widths[:-1] or self.widths

    def _sharing_shape(self, rows: int) -> DecodeShape:
        return DecodeShape(rows, self.widths[-1], most_items(rows))

    def sampler_rows(self, mode: SamplerMode) -> list[int]:
        """Every number of rows for which a separate sampler program exists in that mode."""
        decode, prefill = set(self.rows), {rows for _, rows in self.prefill}
        if mode == "mixed":
            return sorted((decode | prefill) & set(self.mixed_rows))
        return sorted((decode & set(self.full_rows) if mode == "full" else decode) | prefill)


def choose_buckets(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_size: int,
    platform: str,
    num_decode_steps: int = 1,
    weight_bytes: int = 0,
    rows_in_item: int = 0,
) -> Buckets:
    """Choose an engine's buckets: many on a GPU, few on a CPU, where start-up is mostly compiling.

    Args:
        max_num_seqs: most rows of a step.
        max_num_batched_tokens: most tokens of a step.
        max_model_len: most tokens of a sequence.
        block_size: S.
        platform: "cpu" or that of an accelerator.
        num_decode_steps: decode steps of a launch of few rows.
        weight_bytes: of the parameters on a device; large ones get more buckets of tokens.
        rows_in_item: number of rows whose shared keys the decode kernel reads at once; 0 if it
            can't.
    """
    most_rows = max(max_num_seqs, 2)
    most_tokens = max(max_num_batched_tokens, most_rows)
    full_width = -(-max_model_len // block_size)
    if platform == "cpu":
        # Products take most of a CPU's step and grow with the rows, padding included: sizes closer
        # than powers of two are worth their programs.
        rows = _up_to(most_rows, [4, 16, 32, 48, *_powers(64)])
        sampled_rows = _up_to(most_rows, [4, 16, 24, 32, 40, 48, 56, *_powers(64)])
        few, tokens = _at_least(rows, min(16, most_rows)), _up_to(most_tokens, [64, 512, 1024])
        # One short prompt takes the smallest of everything, so that the least is compiled for it.
        prefill = [(tokens[0], rows[0])]
        prefill += [(n, few) for n in tokens[1:-1]] + [(n, most_rows) for n in tokens[1:]]
        widths, full_rows, mixed_rows = [full_width], rows, rows
    else:
        rows = _up_to(most_rows, [8, 64, 128, 192, 256, 384, *_powers(512)])
        sampled_rows = [size for size in _SAMPLED_ROWS if size < most_rows]
        sampled_rows += [most_rows] if most_rows <= _SAMPLED_ROWS[-1] else []
        # Up to some 128 tokens a step takes as long as reading the weights.
        few, tokens = _at_least(rows, min(8, most_rows)), _up_to(most_tokens, _powers(128))
        # Many rows mostly come in large steps; a small step is padded.
        small = [n for n in tokens if n < _TOKENS_THAT_HIDE_ROWS]
        prefill = [(n, few) for n in small]
        crowded = small[::-2]
        if weight_bytes > _LONG_STEP_WEIGHT_BYTES:
            crowded = [*small[1:], *(n for n in _PADDED_TOKENS if n < most_tokens)]
        prefill += [(n, most_rows) for n in [*crowded, *tokens[len(small) :]]]
        full_rows = [size for size in rows if size in (few, _FULL_ROWS, most_rows)]
        mixed_rows = rows
        tile = max(1, _TILE_KEYS // block_size)
        full_width = -(-full_width // tile) * tile
        short = -(-_SHORT_TABLE_TOKENS // block_size)
        widths = [short, full_width] if 2 * short <= full_width else [full_width]
    prefill = sorted({pair for pair in [*prefill, (most_tokens, most_rows)] if pair[1] <= pair[0]})
    # Scoring is the most expensive part of its step: few sizes, each for any number of rows.
    scored = [pair for pair in prefill if pair[1] == most_rows][-3:]
    return Buckets(
        prefill=tuple(prefill),
        scored=tuple(scored),
        rows=tuple(rows),
        sampled_rows=tuple(sampled_rows),
        multi_step_rows=_multi_step_rows(sampled_rows) if num_decode_steps > 1 else (),
        num_steps=num_decode_steps,
        full_rows=tuple(full_rows),
        mixed_rows=tuple(size for size in mixed_rows if size > _MOST_FULL_ROWS),
        widths=tuple(widths),
        wide_rows=tuple(_up_to(most_rows, list(_WIDE_ROWS))),
        sharing=tuple(
            size
            for size in _up_to(most_rows, list(_SHARING_ROWS))
            if rows_in_item and size >= _SHARING_ROWS[0]
        ),
        rows_in_item=rows_in_item,
    )


def _multi_step_rows(sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes up to the first that holds all rows of the largest multi-step decode."""
    return tuple(sizes[: bisect.bisect_left(sizes, MULTI_STEP_ROWS) + 1])


def _powers(first: int) -> list[int]:
    return [first * 2**i for i in range(24)]


def _up_to(most: int, sizes: list[int]) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [size for size in sizes if size < most] + [most]


def _at_least(sizes: Sequence[int], needed: int) -> int:
    index = bisect.bisect_left(sizes, needed)
    if index == len(sizes):
        raise ValueError(f"{needed} exceeds the largest bucket, {sizes[-1]}")
    return sizes[index]
