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


class SharedRows:
    """Finds the groups of rows that begin with the same blocks.

    Decoding rows begin with the same blocks for as long as they are the same rows, so that groups
    are found once.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._rows: tuple[bytes, int, int] | None = None
        self._groups: Sequence[Group] = ()

    def bucket(
        self, step: StepRows, buckets: Buckets, mode: SamplerMode, num_rows: int, num_loads: int
    ) -> tuple[DecodeShape, Sequence[Group]] | None:
        """The bucket of a step that reads shared keys once, and its groups; None if not worth one.

        Args:
            buckets: the shapes of such steps.
            num_rows: of the bucket without sharing.
            num_loads: another number after any slot has got another holder or other blocks.
        """
        sharing = buckets.sharing_shape(len(step.rows), mode=mode)
        if sharing is None:
            return None
        rows = step.slots.tobytes(), num_loads, sharing.rows
        if rows != self._rows:
            self._rows, self._groups = rows, self._find(step, sharing.rows, buckets.rows_in_item)
        cost = _KEYS_FOR_SHARING + _KEYS_FOR_PADDING * (sharing.rows - num_rows)
        if sum(group.saved_keys for group in self._groups) < cost:
            return None
        return sharing, self._groups

    def _find(self, step: StepRows, batch_rows: int, rows_in_item: int) -> Sequence[Group]:
        return find_groups(
            step.tables,
            step.context,
            block_size=self._block_size,
            batch_rows=batch_rows,
            rows_in_item=rows_in_item,
        )
