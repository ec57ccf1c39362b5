"""Chooses a decode step that reads once the keys that rows share, where that is worth it."""

from collections.abc import Sequence

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.shared_prefixes import Group, find_groups
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.slots.step_rows import StepRows

# What reading shared keys once costs a layer, in keys that could be read meanwhile, measured with
# the 0.6B shape on an H200: a kernel's launch, and the products of each row of padding.
_KEYS_FOR_SHARING = 8192
_KEYS_FOR_PADDING = 256


def sharing_bucket(
    buckets: Buckets, step: StepRows, mode: SamplerMode, num_rows: int, *, block_size: int
) -> tuple[DecodeShape, Sequence[Group]] | None:
    """The bucket of a step that reads shared keys once, and its groups; None if not worth one.

    Args:
        buckets: the engine's.
        step: its rows.
        mode: of its sampler.
        num_rows: of the bucket without sharing.
        block_size: S.
    """
    sharing = buckets.sharing_shape(len(step.rows), mode=mode)
    if sharing is None:
        return None
    groups = find_groups(
        step.tables,
        step.context,
        block_size=block_size,
        batch_rows=sharing.rows,
        rows_in_item=buckets.rows_in_item,
    )
    cost = _KEYS_FOR_SHARING + _KEYS_FOR_PADDING * (sharing.rows - num_rows)
    if sum(group.saved_keys for group in groups) < cost:
        return None
    return sharing, groups
