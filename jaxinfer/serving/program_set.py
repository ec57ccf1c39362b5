"""Which programs an engine consists of: what is compiled ahead, and what bounds its memory."""

from collections.abc import Sequence
from typing import Any

from jaxinfer.kernels.attention import Backend
from jaxinfer.kernels.projections import MERGED_BELOW_ROWS
from jaxinfer.sampling_params import SamplingMode
from jaxinfer.serving.buckets import Buckets
from jaxinfer.serving.collectives import (
    OVERLAP_OPTIONS,
    choose_collectives,
    collective_options,
)
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs import (
    BurstKey,
    CountTokensKey,
    ProgramKey,
    PromptLogprobsKey,
    SamplerKey,
    SetEditsKey,
)
from jaxinfer.serving.sampling.layout import MODES
from jaxinfer.serving.slot_updates import SlotUpdates
from jaxinfer.serving.swap import HostBlocks
from jaxinfer.serving.token_parts import part_sizes


def all_programs(buckets: Buckets, *, swaps: bool) -> list[ProgramKey]:
    """Everything that can ever run, the slowest to compile first.

    Args:
        buckets: the shapes.
        swaps: whether blocks move to host memory.
    """
    keys: list[ProgramKey] = [*buckets.prefill_shapes(), *buckets.decode_shapes()][::-1]
    keys += [
        BurstKey(shape, mode, steps)
        for shape, steps in buckets.burst_shapes()
        for mode in burst_modes(shape, buckets)
    ]
    keys += [SamplerKey(rows, mode) for mode in MODES for rows in buckets.sampler_rows(mode)]
    keys += SlotUpdates.keys()
    keys += [PromptLogprobsKey(tokens) for tokens in sorted({t for t, _ in buckets.scored})]
    return keys + (HostBlocks.keys() if swaps else [])


def burst_modes(shape: DecodeShape, buckets: Buckets) -> Sequence[SamplingMode]:
    """Modes that bursts of this shape are compiled for; each also serves those before it.

    Mode "full" has few sizes. Steps of many rows of long contexts, or that read shared keys once,
    take long enough that drawing greedy rows, too, is nothing beside them.
    """
    takes_long = shape.units > 0 or buckets.is_wide(shape)
    takes_full = shape.units == 0 and shape.rows in buckets.full_rows
    return MODES[int(takes_long) : len(MODES) if takes_full else MODES.index("full")]


def largest_programs(buckets: Buckets, backend: Backend) -> list[ProgramKey]:
    """Those among which the one that needs most memory is, the slowest to compile first."""
    rows = buckets.rows[-1]
    keys: list[ProgramKey] = [
        SamplerKey(rows, "full"),
        SamplerKey(rows, "truncate"),
        PromptLogprobsKey(buckets.prefill[-1][0]),
        buckets.prefill_shapes()[-1],
    ]
    # Mosaic's kernels keep a decode's sums on the chip: a prefill of as many rows needs more.
    return keys if backend == "mosaic" else [*keys, buckets.decode_shapes()[-1]]


def uses_pages(key: ProgramKey) -> bool:
    """Whether a program's shapes depend on the number of KV blocks."""
    return not isinstance(key, SamplerKey | PromptLogprobsKey | SetEditsKey | CountTokensKey)


def options_of(
    key: ProgramKey, *, platform: str, num_devices: int, mailboxes: bool
) -> dict[str, Any]:
    """XLA's options for one program on a mesh of so many devices.

    On an H200, XLA's Triton matrix products lose 5% to cuBLAS at 256 rows and win 22% at 2. They
    read weights that XLA merges (q, k and v; gate and up) where they lie, but for cuBLAS it would
    copy them side by side in every step.
    """
    if platform == "cpu":
        return {}
    # Ways to compute a product are timed, but not checked against each other, which takes longer.
    options: dict[str, Any] = {"xla_gpu_autotune_level": 1}
    num_steps, num_parts = 1, 1
    match key:
        case PrefillShape():
            rows, num_parts = key.tokens, len(part_sizes(key.tokens, num_devices))
        case DecodeShape():
            rows = key.rows
        case BurstKey():
            rows, num_steps = key.shape.rows, key.num_steps
        case SamplerKey() | PromptLogprobsKey():
            # One product with the head: trying out Triton's would be most of their compiling.
            return options | {"xla_gpu_enable_triton_gemm": False}
        case _:
            return options
    # Launched through a slice of the batch vector, a kernel stays out of the CUDA graph.
    options["xla_gpu_enable_dynamic_slice_fusion"] = False
    if rows >= MERGED_BELOW_ROWS:
        options |= {"xla_gpu_enable_triton_gemm": False, "xla_gpu_dot_merger_threshold_mb": 0}
    if num_devices > 1:
        options |= collective_options(choose_collectives(num_steps, mailboxes=mailboxes))
    if num_parts > 1:
        options |= OVERLAP_OPTIONS
    return options
