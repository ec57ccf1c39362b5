"""Chooses an engine's buckets: dense on a GPU, few on a CPU."""

import bisect
import dataclasses
from collections.abc import Sequence

from jaxinfer.planning.drafts import MOST_ROWS_WITH_DRAFTS
from jaxinfer.serving.programs.buckets import MOST_FULL_ROWS, MULTI_STEP_ROWS, Buckets, at_least
from jaxinfer.serving.programs.speculative.drafter import Drafter

# Contexts up to here take narrow tables where that saves enough: the tables of every row are
# uploaded with each step, 10 KB a row for contexts of 40,960. For few rows that is nothing, and a
# second width would cost a program for each number of rows, step and way of sampling.
_SHORT_TABLE_TOKENS = 4096

# Many rows of long contexts take long anyway: they are padded to one of few sizes.
_WIDE_ROWS = (64, 256, 1024)

# Most keys of a kernel's tile: tables of whole tiles are read without a check.
_TILE_KEYS = 128

# Steps that read shared keys once need a kernel more in each layer, so they are programs of their
# own, of few sizes: what they save is worth some rows of padding.
_SHARING_ROWS = (64, 256, 1024)

# An H200 takes a millisecond to read weights of this size, and with a few hundred tokens a step
# lasts as long as its products, padding included. So prompts of usual sizes find buckets with room
# for the decoding rows beside them.
_LONG_STEP_WEIGHT_BYTES = 4 << 30
_PADDED_TOKENS = (640, 1280, 2560)

_FULL_ROWS = 64

# A second launch takes the host about as long as a fifth of a short step, and steps of more rows
# are long enough to hide it. Those of few rows may be shorter than even one launch, which several
# of them then share.
_SAMPLED_ROWS = (2, 8, 16, 32)

# Drafts are rows too: with them a step has up to `MOST_ROWS_WITH_DRAFTS`, and reads weights for
# little more than the time of one.
_SPECULATIVE_ROWS = (1, 4, 16)

# Sampling for a full set of rows costs 0.3 ms, of the 16 that such a step takes.
_TOKENS_THAT_HIDE_ROWS = 8_192

# A row of a step that only reads prompts costs its block table alone. With few tokens even 256 of
# these, for contexts of 40,960, take long to upload. A step of 128 tokens would take little less
# than one of 256, and its program compiles twice as long as any other.
_FEWEST_POOLED_TOKENS, _POOLED_TOKENS_OF_FEW_ROWS = 256, 512


def choose_buckets(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_size: int,
    platform: str,
    num_decode_steps: int = 1,
    most_multi_step_rows: int = MULTI_STEP_ROWS,
    weight_bytes: int = 0,
    rows_in_item: int = 0,
    drafter: Drafter | None = None,
) -> Buckets:
    """Buckets for an engine: dense on a GPU, few on a CPU, where compiling is what start-up costs.

    Args:
        platform: "cpu" or that of an accelerator.
        num_decode_steps: decode steps of a launch of few rows.
        most_multi_step_rows: the most rows that are few.
        weight_bytes: of the parameters on a device; large ones get more buckets of tokens.
        rows_in_item: rows whose shared keys the decode kernel reads at once; 0 if it can't.
        drafter: how tokens are drafted, and how many at most; None drafts none.
    """
    most_rows = max(max_num_seqs, 2)
    most_tokens = max(max_num_batched_tokens, most_rows)
    full_width = -(-max_model_len // block_size)
    if platform == "cpu":
        # Products take most of a CPU's step and grow with the rows, padding included: sizes closer
        # than powers of two are worth their programs.
        rows = _up_to(most_rows, [4, 16, 32, 48, *_powers(64)])
        sampled_rows = _up_to(most_rows, [4, 16, 24, 32, 40, 48, 56, *_powers(64)])
        few, tokens = at_least(rows, min(16, most_rows)), _up_to(most_tokens, [64, 512, 1024])
        # One short prompt takes the smallest of everything, so that it waits for least to compile.
        prefill = [(tokens[0], rows[0])]
        prefill += [(n, few) for n in tokens[1:-1]] + [(n, most_rows) for n in tokens[1:]]
        widths, full_rows, mixed_rows = [full_width], rows, rows
    else:
        rows = _up_to(most_rows, [8, 64, 128, 192, 256, 384, *_powers(512)])
        sampled_rows = [size for size in _SAMPLED_ROWS if size < most_rows]
        sampled_rows += [most_rows] if most_rows <= _SAMPLED_ROWS[-1] else []
        # Up to some 128 tokens a step takes as long as reading the weights.
        few, tokens = at_least(rows, min(8, most_rows)), _up_to(most_tokens, _powers(128))
        # Many rows at once are mostly a large step's; a small one may as well be padded.
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
    # Scoring costs more than what surrounds it: few sizes, each for any number of rows.
    scored = [pair for pair in prefill if pair[1] == most_rows][-3:]
    return Buckets(
        prefill=tuple(prefill),
        scored=tuple(scored),
        rows=tuple(rows),
        sampled_rows=tuple(sampled_rows),
        multi_step_rows=_multi_step_rows(sampled_rows, most_multi_step_rows)
        if num_decode_steps > 1
        else (),
        num_steps=num_decode_steps,
        most_multi_step_rows=most_multi_step_rows,
        full_rows=tuple(full_rows),
        mixed_rows=tuple(size for size in mixed_rows if size > MOST_FULL_ROWS),
        widths=tuple(widths),
        wide_rows=tuple(_up_to(most_rows, list(_WIDE_ROWS))),
        sharing=tuple(
            size
            for size in _up_to(most_rows, list(_SHARING_ROWS))
            if rows_in_item and size >= _SHARING_ROWS[0]
        ),
        rows_in_item=rows_in_item,
        speculative=_speculative(drafter, max_num_seqs),
    )


def _speculative(drafter: Drafter | None, max_num_seqs: int) -> tuple[tuple[int, Drafter], ...]:
    """Sizes of steps with drafts, which are for few rows: of many, a step has rows enough."""
    if drafter is None:
        return ()
    sizes = [size for size in _SPECULATIVE_ROWS if size < max_num_seqs]
    if max_num_seqs <= _SPECULATIVE_ROWS[-1]:
        sizes.append(max_num_seqs)
    most = [max(1, min(drafter.num_tokens, MOST_ROWS_WITH_DRAFTS // rows - 1)) for rows in sizes]
    return tuple((rows, drafter.of_length(count)) for rows, count in zip(sizes, most, strict=True))


def for_pipeline(buckets: Buckets) -> Buckets:
    """The shapes of a pipeline, whose last stage samples in a program of its own."""
    rows = sorted({*buckets.rows, *buckets.sampled_rows})
    return dataclasses.replace(
        buckets,
        rows=tuple(rows),
        sampled_rows=(),
        multi_step_rows=(),
        num_steps=1,
        mixed_rows=tuple(size for size in rows if size > MOST_FULL_ROWS),
    )


def for_pooling(buckets: Buckets, platform: str) -> Buckets:
    """The shapes of an engine that reads prompts, and samples and scores nothing.

    On an accelerator, which compiles all of them at start, these are fewer sizes of prefills.

    Args:
        buckets: of the same engine if it sampled.
        platform: "cpu" or that of an accelerator.
    """
    return dataclasses.replace(
        buckets,
        prefill=buckets.prefill if platform == "cpu" else _pooled(buckets.prefill),
        scored=(),
        rows=(),
        sampled_rows=(),
        multi_step_rows=(),
        num_steps=1,
        full_rows=(),
        mixed_rows=(),
        widths=buckets.widths[-1:],
        wide_rows=(),
        sharing=(),
        speculative=(),
        generates=False,
    )


def _pooled(prefill: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Powers of two of tokens: few rows with few tokens, and as many as there are with more."""
    few, (most_tokens, most_rows) = prefill[0][1], prefill[-1]
    pairs = [(most_tokens, most_rows)]
    for tokens in _powers(_FEWEST_POOLED_TOKENS):
        rows = few if tokens <= _POOLED_TOKENS_OF_FEW_ROWS else most_rows
        if rows <= tokens < most_tokens:
            pairs.append((tokens, rows))
    return tuple(sorted(pairs))


def _multi_step_rows(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """The sizes up to the first that holds all rows of the largest multi-step decode."""
    return tuple(sizes[: bisect.bisect_left(sizes, most) + 1])


def _powers(first: int) -> list[int]:
    return [first * 2**i for i in range(24)]


def _up_to(most: int, sizes: list[int]) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [size for size in sizes if size < most] + [most]
