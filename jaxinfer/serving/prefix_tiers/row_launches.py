"""Launches the copies of a step between the pages and the rows that travel to the tiers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.prefix_tiers.block_copies import TierCopies
from jaxinfer.serving.prefix_tiers.transfers import Transfers


class RowLaunches:
    """Gathers blocks that leave the prefix cache and scatters those that come back.

    Args:
        transfers: takes and gives the rows.
        num_rows: blocks of a program; fewer are padded with block 0.
        gather: the program `(kv, ids) -> rows`, one for each id.
        scatter: the program `(kv, ids, rows) -> kv`; `kv` is donated.
        upload: from ids on the host to every device.
        settle: is given arrays of a launch: waits for them where devices get one at a time.
    """

    def __init__(
        self,
        transfers: Transfers,
        num_rows: int,
        gather: Callable[[], Callable[..., Any]],
        scatter: Callable[[], Callable[..., Any]],
        upload: Callable[[np.ndarray], jax.Array],
        settle: Callable[[Any], Any],
    ) -> None:
        self._transfers = transfers
        self._num_rows = num_rows
        self._gather, self._scatter = gather, scatter
        self._upload, self._settle = upload, settle

    def copy_out(self, kv: Any, copies: TierCopies) -> None:
        """Gather blocks before anything overwrites them; `kv` stays valid."""
        for pairs in itertools.batched(copies.out, self._num_rows):
            rows = self._gather()(kv, self._ids([block for block, _ in pairs]))
            self._settle(rows)
            self._transfers.copy_out([key for _, key in pairs], rows)

    def copy_back(self, kv: Any, copies: TierCopies) -> Any:
        """The pages with fetched blocks; `kv` is donated if there are some."""
        for back in copies.back:
            pairs = zip(back.blocks, back.rows, strict=True)
            for part in itertools.batched(pairs, self._num_rows):
                rows = [row for _, row in part]
                rows += rows[:1] * (self._num_rows - len(rows))
                kv = self._scatter()(kv, self._ids([block for block, _ in part]), tuple(rows))
                self._settle(kv)
        for back in copies.back:
            self._transfers.release(back.fetch)
        return kv

    def _ids(self, blocks: Sequence[int]) -> jax.Array:
        ids = np.zeros(self._num_rows, np.int32)
        ids[: len(blocks)] = blocks
        return self._upload(ids)
