"""The plan of a small product whose weights are codes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import override

import jax

from jaxinfer.kernels.matmul.mosaic.small_plan import (
    SHARED_BYTES,
    Kind,
    Plan,
    SmallConfig,
    are_whole,
    possible_splits,
    power_of_two,
)
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE, WeightForm

_WIDENING = 96  # blocks that widen codes about as fast as the memory gives them
_WIDENING_SHORT = 80  # the same, where a contraction is too short for that speed
_SHORT = 2048  # inputs of such a contraction
_MOST_CONSUMERS = 4  # with the producer's, 640 threads of 96 registers
_LARGE_STAGE_BYTES = 8 * 1024
_PIECE = 1024  # activations in registers at once, beside a widened tile
_CHUNKS_ALONE = 4  # the same, of rows by themselves
_ROUNDING = 4 * 1024  # of what lies beside their operands: arrays begin at whole KiB


@dataclasses.dataclass(frozen=True)
class CodesPlan(Plan):
    """A `Plan` of a product of codes.

    Attributes:
        form: of the weights.
        has_norm: whether the activations are normalised first.
    """

    form: WeightForm
    has_norm: bool

    @property
    @override
    def normed(self) -> bool:
        return self.has_norm

    @property
    def consumers(self) -> int:
        """Warpgroups of a block that multiply."""
        return self.config.consumers

    @property
    @override
    def unrolled(self) -> int:
        """None: a loop needs the registers of one widened tile."""
        return 0

    @property
    @override
    def chunks_at_once(self) -> int:
        if self.has_rows_alone:
            return power_of_two(_CHUNKS_ALONE, self.chunks)
        return max(1, min(_PIECE // (self.columns * self.chunk), self.chunks))

    @property
    @override
    def kept_chunks(self) -> int:
        """Those of the piece that is multiplied and, where it is stored then, of the next one."""
        return self.chunks_at_once if self.has_rows_alone else 2 * self.chunks_at_once

    @property
    def scales(self) -> int:
        """Scales of an output that a warpgroup reads: one, or one of each group in its slice."""
        return self.slice // GROUP if self.form.is_grouped else 1

    @property
    @override
    def shared_bytes(self) -> int:
        tile = self.matrices * TILE
        weights = self.consumers * self.stages * tile * self.width(self.chunk)
        kept = self.consumers * self.kept_chunks
        input_bytes = self.chunk + 4 if self.form.multiplies_codes else 2 * self.chunk
        activations = self.columns * (kept * input_bytes + 2 * TILE)
        if self.has_rows_alone:
            activations += _ROUNDING + self.consumers * self.B * self.parts * (2 * self.chunk + 8)
        scales = self.consumers * self.scales * tile * 4 * (1 + self.form.has_zeros)
        others = self.splits + self.consumers - 2
        sums = (self.matrices + 1) * others * TILE * self.columns * 4
        return weights + activations + scales + sums + self.consumers * self.columns * 4

    @override
    def width(self, inputs: int) -> int:
        return self.form.width(inputs)


def supports_codes(
    B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike, form: WeightForm
) -> bool:
    """`supports` for weights of a form."""
    alone = len(shapes) == 1 or not form.has_own_inputs
    known = form.is_known and alone and shapes[0][1] % GROUP == 0
    if not (known and are_whole(B, shapes, dtype)):
        return False
    kind: Kind = "gated" if len(shapes) == 2 else "bare"
    return bool(_fitting(kind, B, shapes[0][1], (shapes[0][0],), 0.0, form, True))


def plan_codes(
    kind: Kind,
    B: int,
    shapes: Sequence[tuple[int, ...]],
    eps: float,
    config: SmallConfig | None,
    form: WeightForm,
    *,
    has_norm: bool,
) -> CodesPlan:
    """Cuts a product that `supports_codes` accepts, with sizes of its own if `config` is None.

    As few blocks share a tile as keep most multiprocessors busy, since clusters need room: on an
    H100 8B's products took longer the more did.
    """
    outputs = tuple(shape[0] for shape in shapes[: 1 if kind == "gated" else None])
    problem = (kind, B, shapes[0][1], outputs, eps)
    if config is not None:
        return CodesPlan(*problem, config, form, has_norm)
    fitting = _fitting(*problem, form, has_norm)
    fewest = _WIDENING if shapes[0][1] > _SHORT else _WIDENING_SHORT
    busy = (plan for plan in fitting if plan.tiles * plan.splits >= fewest)
    return next(busy, fitting[-1])


def _fitting(
    kind: Kind,
    B: int,
    size: int,
    outputs: tuple[int, ...],
    eps: float,
    form: WeightForm,
    has_norm: bool,
) -> list[CodesPlan]:
    """Plans for which shared memory suffices, the fewest splits first."""
    matrices = 2 if kind == "gated" else 1
    configs = (_sizes(size, n, matrices, form) for n in possible_splits(size, GROUP))
    plans = (CodesPlan(kind, B, size, outputs, eps, each, form, has_norm) for each in configs)
    return [plan for plan in plans if plan.shared_bytes <= SHARED_BYTES]


def _sizes(size: int, splits: int, matrices: int, form: WeightForm) -> SmallConfig:
    """As many warpgroups as registers suffice for, and few stages for each.

    What is asked for before the activations delays them, so longer rings made blocks slower. Where
    a stage is one tile of four bits, three of which are too few bytes, down of 8B took 19.2 us on
    an H200 with six and 23.4 with three.
    """
    chunks = size // splits // GROUP
    consumers = next(n for n in (_MOST_CONSUMERS, 2, 1) if chunks % n == 0)
    stages = 6 if matrices * TILE * form.width(GROUP) < _LARGE_STAGE_BYTES else 2
    return SmallConfig(splits, min(stages, chunks // consumers), GROUP, consumers)
