"""The few shapes that steps are compiled for, and which of them a batch takes."""

import bisect
from dataclasses import dataclass

from jaxinfer.sampling_params import SamplingMode
from jaxinfer.serving.layout import DecodeShape, PrefillShape

_SHORT_TABLE_TOKENS = 4096  # contexts up to here take narrow tables, where that saves enough

# A launch costs the host 1.5 to 3 ms, by the machine, and a step of an 0.6B model the device about
# 1 ms and 0.02 ms a row: the host is the slower one up to some 64 rows, and with each further
# replica, whose launches share the host, up to about as many more.
_MOST_BURST_ROWS_A_REPLICA = 64
_BURST_ROWS = (2, 8, 32, 64, 128)

# Sampling for a full set of rows costs 0.3 ms: less than a hundredth of such a step.
_TOKENS_THAT_HIDE_ROWS = 16_384


@dataclass(frozen=True)
class Buckets:
    """All shapes of an engine.

    Attributes:
        prefill: (tokens, rows) pairs in the order in which they are tried; the last holds any
            step.
        scored: the few of these for steps whose prompt tokens are scored; the last is the same.
        rows: sizes of decode batches, ascending; the smallest is at least 2, because XLA turns a
            product with one row into something slow.
        full_rows: the few of these that also take sampler mode "full", whose programs are large.
        burst_rows: those for which bursts are worth their programs: with one device a replica the
            small ones, where the launches of all replicas cost the host about as much as a step
            costs each device; with several, sizes up to the largest. Empty if there are no bursts.
        burst_length: decode steps of a burst.
        widths: blocks of a block table, ascending; the last holds a full-length sequence.
        histories: lengths of the full sampler's token history, ascending from 0.
    """

    prefill: tuple[tuple[int, int], ...]
    scored: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    full_rows: tuple[int, ...]
    burst_rows: tuple[int, ...]
    burst_length: int
    widths: tuple[int, ...]
    histories: tuple[int, ...]

    def decode_shape(
        self, rows: int, width: int, *, mode: SamplingMode = "greedy", num_steps: int = 1
    ) -> DecodeShape:
        """The smallest bucket for so many rows and blocks of the longest."""
        sizes = self.full_rows if mode == "full" else self.rows
        if num_steps > 1:
            sizes = self.burst_rows
        return DecodeShape(_at_least(sizes, rows), _at_least(self.widths, width))

    def prefill_shape(self, tokens: int, rows: int, *, all_tokens: bool = False) -> PrefillShape:
        """The smallest bucket for so many tokens and rows; tables are always full width."""
        for bucket_tokens, bucket_rows in self.scored if all_tokens else self.prefill:
            if tokens <= bucket_tokens and rows <= bucket_rows:
                return PrefillShape(bucket_tokens, bucket_rows, self.widths[-1], all_tokens)
        raise ValueError(
            f"a step of {tokens} tokens in {rows} rows exceeds the largest, {self.prefill[-1]}"
        )

    def history_width(self, tokens: int) -> int:
        """The shortest history for so many tokens."""
        return _at_least(self.histories, tokens)

    def prefill_shapes(self) -> list[PrefillShape]:
        """Every prefill bucket, the largest last; then those that score."""
        pairs = [(pair, False) for pair in self.prefill] + [(pair, True) for pair in self.scored]
        return [PrefillShape(*pair, self.widths[-1], every) for pair, every in pairs]

    def decode_shapes(self) -> list[DecodeShape]:
        """Every decode bucket, the largest last."""
        return [DecodeShape(rows, width) for width in self.widths for rows in self.rows]

    def burst_shapes(self) -> list[DecodeShape]:
        """Every bucket of a burst."""
        return [DecodeShape(rows, width) for width in self.widths for rows in self.burst_rows]

    def sampler_rows(self, mode: SamplingMode) -> list[int]:
        """Every number of rows that a sampler in that mode meets."""
        decode = self.full_rows if mode == "full" else self.rows
        return sorted({*decode, *(rows for _, rows in self.prefill)})


def choose_buckets(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_size: int,
    burst_length: int,
    platform: str,
    num_replicas: int = 1,
    num_devices: int = 1,
) -> Buckets:
    """Buckets for an engine: dense on a GPU, few on a CPU, where compiling is what start-up costs.

    Args:
        max_num_seqs: most rows of a step.
        max_num_batched_tokens: most tokens of a step.
        max_model_len: most tokens of a sequence.
        block_size: S.
        burst_length: decode steps of a burst, the last of which may lie beyond max_model_len; 1
            for no bursts.
        platform: "cpu" or that of an accelerator.
        num_replicas: engines that one process runs side by side.
        num_devices: N, devices that share a step.
    """
    most_rows = max(max_num_seqs, 2)
    most_tokens = max(max_num_batched_tokens, most_rows)
    full_width = -(-(max_model_len + burst_length - 1) // block_size)
    if platform == "cpu":
        # Products take most of a CPU's step and grow with the rows, padding included: sizes closer
        # than powers of two are worth their programs, the more so in bursts, which small models
        # make, whose programs compile fast.
        rows = _up_to(most_rows, [4, 16, 32, 48, *_powers(64)])
        bursts = _up_to(most_rows, [4, 16, 24, 32, 40, 48, 56, *_powers(64)])
        few, tokens = _at_least(rows, min(16, most_rows)), _up_to(most_tokens, [64, 512, 1024])
        # One short prompt takes the smallest of everything, so that it waits for least to compile.
        prefill = [(tokens[0], rows[0])]
        prefill += [(n, few) for n in tokens[1:-1]] + [(n, most_rows) for n in tokens[1:]]
        widths, full_rows = [full_width], rows
    else:
        sizes = [2, 8, 32, 64, 96, 128, 192, 256, 384, 512]
        rows = _up_to(most_rows, sizes + [1024 * 2**i for i in range(7)])
        # Up to some 128 tokens a step takes as long as reading the weights.
        few, tokens = _at_least(rows, min(8, most_rows)), _up_to(most_tokens, _powers(128))
        # Many rows at once are mostly a large step's; a small one may as well be padded.
        prefill = [(n, few) for n in tokens if n < _TOKENS_THAT_HIDE_ROWS]
        prefill += [(n, most_rows) for n in tokens[::-1][::2]]
        full_rows = sorted({few, most_rows})
        bursts = _gpu_burst_rows(rows, num_replicas, num_devices)
        short = -(-_SHORT_TABLE_TOKENS // block_size)
        widths = [short, full_width] if 2 * short <= full_width else [full_width]
    prefill = sorted({pair for pair in [*prefill, (most_tokens, most_rows)] if pair[1] <= pair[0]})
    # Scoring costs more than what surrounds it: few sizes, each for any number of rows.
    scored = [pair for pair in prefill if pair[1] == most_rows][-3:]
    return Buckets(
        prefill=tuple(prefill),
        scored=tuple(scored),
        rows=tuple(rows),
        full_rows=tuple(full_rows),
        burst_rows=tuple(bursts) if burst_length > 1 else (),
        burst_length=burst_length,
        widths=tuple(widths),
        histories=(0, max_model_len),
    )


def _gpu_burst_rows(rows: list[int], num_replicas: int, num_devices: int) -> list[int]:
    """Sizes of bursts.

    Where devices share a step, it falls apart into a CUDA graph between each two all-reduces, 73 a
    step of Qwen3-8B's shape on jax 0.11.2, but in a burst each step is one graph
    (`collectives.py`): on two H200s 3.9 ms instead of 4.4 at 2 rows and 5.6 instead of 6.1 at 64.
    At 256 rows it takes 10.9 instead of 10.3 ms.
    """
    longest = max(_BURST_ROWS[0], _MOST_BURST_ROWS_A_REPLICA * num_replicas)
    if num_devices > 1:
        longest = _BURST_ROWS[-1]
    return [n for n in rows if n in _BURST_ROWS and n <= longest] or rows[:1]


def _powers(first: int) -> list[int]:
    return [first * 2**i for i in range(24)]


def _up_to(most: int, sizes: list[int]) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [size for size in sizes if size < most] + [most]


def _at_least(sizes: tuple[int, ...] | list[int], needed: int) -> int:
    index = bisect.bisect_left(sizes, needed)
    if index == len(sizes):
        raise ValueError(f"{needed} exceeds the largest bucket, {sizes[-1]}")
    return sizes[index]
