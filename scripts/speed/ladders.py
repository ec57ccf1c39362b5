"""Ladders: the sizes of an engine's programs, with some of them removed, and what steps then take.

A size that is removed saves its programs; steps that took it are padded to the next larger one.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxinfer.serving.programs.buckets import MOST_FULL_ROWS, Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKey
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.sampling.layout import AHEAD, SamplerMode


class Size(NamedTuple):
    """A size of programs: a field of `Buckets` and one of its values."""

    field: str
    value: Any

    def __str__(self) -> str:
        """As the table has it."""
        value = "x".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"{self.field} {value}"


_FEWER = (
    Size("rows", 192),
    Size("mixed_rows", 128),
    Size("sampled_rows", 16),
    Size("prefill", (4096, 8)),
    Size("scored", (8192, 256)),
)
_SMALL = (*_FEWER, Size("rows", 128), Size("prefill", (256, 8)), Size("prefill", (1024, 8)))
_SMALLEST = (
    *_SMALL,
    Size("sampled_rows", 2),
    Size("sampled_rows", 32),
    Size("scored", (4096, 256)),
    Size("full_rows", 64),
    *(Size("prefill", (tokens, 256)) for tokens in (512, 1280, 2048)),  # of large weights
)
LADDERS: Mapping[str, Sequence[Size]] = {
    "fewer": _FEWER,
    "small": _SMALL,
    "smallest": _SMALLEST,
}
"""The sizes that each ladder removes from the default one, by its name."""

# Fields whose sizes are among another's, and go with it.
_PARTS = {"rows": ("full_rows", "mixed_rows", "wide_rows"), "sampled_rows": ("multi_step_rows",)}
# Fields of sizes that may be removed one by one.
_FIELDS = (
    *("rows", "full_rows", "mixed_rows", "wide_rows", "sharing"),
    *("sampled_rows", "prefill", "scored"),
)


@dataclasses.dataclass(frozen=True)
class StepBatch:
    """A batch of a step, as far as it decides the programs.

    Attributes:
        rows: its number of sequences.
        mode: of the sampler; "mixed" of many rows of which one needs everything.
        tokens: of a step that reads prompts; 0 of a decode step.
        scored: whether the prompts' tokens are scored.
        is_long: whether a context needs the last of two widths of block tables.
        shares: whether its rows share keys that are read once.
        num_steps: decode steps of the launch.
    """

    rows: int
    mode: SamplerMode = "temperature"
    tokens: int = 0
    scored: bool = False
    is_long: bool = False
    shares: bool = False
    num_steps: int = 1


class Padding(NamedTuple):
    """A step that other programs run after sizes were removed.

    Attributes:
        batch: one of those for which it is so.
        before: the programs that ran it.
        after: the programs that run it now.
    """

    batch: StepBatch
    before: tuple[ProgramKey, ...]
    after: tuple[ProgramKey, ...]


def without(buckets: Buckets, sizes: Sequence[Size]) -> Buckets:
    """The buckets without some sizes, and without what consists of them; absent ones are ignored.

    Raises:
        ValueError: some steps fit no other.
    """
    for size in sizes:
        if size.value in _indispensable(buckets, size.field):
            raise ValueError(f"some steps fit no other size than {size}, so it has to stay")
        changed = {
            field: tuple(each for each in getattr(buckets, field) if each != size.value)
            for field in (size.field, *_PARTS.get(size.field, ()))
        }
        buckets = dataclasses.replace(buckets, **changed)
    return buckets


def removable(buckets: Buckets) -> list[Size]:
    """Every size without which any step still fits one, if its programs are fewer then."""
    sizes = [
        Size(field, value)
        for field in _FIELDS
        for value in getattr(buckets, field)
        if value not in _indispensable(buckets, field)
    ]
    most = num_programs(buckets)
    return [size for size in sizes if num_programs(without(buckets, [size])) < most]


def _indispensable(buckets: Buckets, field: str) -> Sequence[Any]:
    """The largest size; of steps with their samplers, which others can run, of multi-step ones."""
    field = "multi_step_rows" if field == "sampled_rows" else field
    return getattr(buckets, field)[-1:]


def num_programs(buckets: Buckets) -> int:
    """Programs of an engine of these buckets, without memory's probe and allocations."""
    return len(all_programs(buckets, swaps=False))


def paddings(buckets: Buckets, fewer: Buckets) -> list[Padding]:
    """Every change of a step's programs from `buckets` to `fewer`, once."""
    found: dict[tuple[Any, Any], Padding] = {}
    for batch in _batches(buckets):
        before, after = programs_of(buckets, batch), programs_of(fewer, batch)
        if before != after:
            found.setdefault((before, after), Padding(batch, before, after))
    return list(found.values())


def programs_of(buckets: Buckets, batch: StepBatch) -> tuple[ProgramKey, ...]:
    """The programs that run a batch, as `BatchBuilder` chooses them."""
    rows, mode = batch.rows, batch.mode
    if batch.tokens:
        shape = buckets.prefill_shape(batch.tokens, rows, all_tokens=batch.scored)
        scores = (PromptLogprobsKey(shape.tokens),) if batch.scored else ()
        return (shape, SamplerKey(shape.rows, mode), *scores)
    sharing = buckets.sharing_shape(rows, mode=mode) if batch.shares else None
    if sharing is not None:
        return sharing, SamplerKey(sharing.rows, mode)
    width = buckets.widths[-1 if batch.is_long else 0]
    if buckets.samples_at_once(rows, mode):
        shape = buckets.sampled_decode_shape(rows, width)
        return (SampledDecodeKey(shape, mode, batch.num_steps),)
    shape = buckets.decode_shape(rows, width, mode=mode)
    return shape, SamplerKey(shape.rows, mode)


def _batches(buckets: Buckets) -> Iterator[StepBatch]:
    """Batches for which, together, any programs of steps are chosen."""
    for rows, mode in itertools.product(range(1, buckets.rows[-1] + 1), AHEAD):
        if mode == "mixed" and rows <= MOST_FULL_ROWS:
            continue
        yield StepBatch(rows, mode)
        if len(buckets.widths) > 1:
            yield StepBatch(rows, mode, is_long=True)
        if buckets.sharing:
            yield StepBatch(rows, mode, is_long=True, shares=True)
        if rows <= max(buckets.multi_step_rows, default=0) and buckets.samples_at_once(rows, mode):
            yield StepBatch(rows, mode, num_steps=buckets.num_steps)
    sizes = sorted({tokens for tokens, _ in buckets.prefill})
    for tokens, scored in itertools.product(sizes, (False, True)):
        for rows in sorted({rows for _, rows in buckets.prefill if rows <= tokens}):
            yield StepBatch(rows, tokens=tokens, scored=scored)


def step_name(programs: Sequence[ProgramKey]) -> str:
    """A step's programs in a few words: "decode 64, sample 64 (temperature)"."""
    return ", ".join(map(program_name, programs))


def program_name(key: ProgramKey) -> str:
    """A program in a few words; no two of an engine have the same."""
    match key:
        case DecodeShape(rows, width, items):
            return f"decode {rows}" + (" sharing" if items else f" of {width} blocks")
        case PrefillShape(tokens, rows, all_tokens=scored):
            return f"prefill {tokens}x{rows}" + (" all" if scored else "")
        case SampledDecodeKey(shape, mode, steps):
            return f"decode and sample {shape.rows} ({mode})" + (f" {steps}x" if steps > 1 else "")
        case SamplerKey(rows, mode):
            return f"sample {rows} ({mode})"
        case PromptLogprobsKey(tokens):
            return f"score {tokens}"
        case _:
            return str(key)
