"""Host memory for the KV blocks of preempted requests, and the copies in both directions."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.serving.programs import Programs, SwapKey
from jaxinfer.serving.steps import KVCache

_BLOCKS_A_COPY = 16  # blocks that travel together, so that one program serves any number


class HostBlocks:
    """A pool of KV blocks in host memory.

    Memory is taken from the operating system when a block is first written.

    Args:
        programs: gives the shape of a block and the mesh.
        gibibytes: host memory at most; 0 holds no block.

    Attributes:
        num_blocks: host blocks.
        copy_size: blocks in one copy.
    """

    copy_size = _BLOCKS_A_COPY

    def __init__(self, programs: Programs, gibibytes: float) -> None:
        self._parts = programs.blocks(_BLOCKS_A_COPY)
        self._whole = NamedSharding(programs.context.mesh, PartitionSpec())
        block_bytes = sum(
            math.prod(part.shape[1:]) * part.dtype.itemsize for part in jax.tree.leaves(self._parts)
        )
        self.num_blocks = num_blocks = int(gibibytes * 2**30) // block_bytes
        self._memory = jax.tree.map(
            lambda part: np.zeros((num_blocks, *part.shape[1:]), part.dtype), self._parts
        )

    @staticmethod
    def keys() -> list[SwapKey]:
        """The programs that copying needs."""
        return [SwapKey(_BLOCKS_A_COPY, to_host=True), SwapKey(_BLOCKS_A_COPY, to_host=False)]

    def copy_out(
        self, kv: KVCache, pairs: Sequence[tuple[int, int]], gather: Callable[..., Any]
    ) -> None:
        """Copy device blocks to host blocks; waits for the steps that were launched before.

        Args:
            kv: the pages, which stay valid.
            pairs: (device block, host block).
            gather: the compiled `gather_blocks`.
        """
        for part in _chunks(pairs):
            ids = self._ids([device for device, _ in part])
            host = [host for _, host in part]
            for memory, blocks in zip(
                jax.tree.leaves(self._memory), jax.tree.leaves(gather(kv, ids)), strict=True
            ):
                memory[host] = np.asarray(blocks)[: len(part)]

    def copy_in(
        self, kv: KVCache, pairs: Sequence[tuple[int, int]], scatter: Callable[..., Any]
    ) -> KVCache:
        """Copy host blocks to device blocks.

        Args:
            kv: the pages; donated.
            pairs: (device block, host block).
            scatter: the compiled `scatter_blocks`.

        Returns:
            The new pages.
        """
        for part in _chunks(pairs):
            host = [host for _, host in part] + [0] * (_BLOCKS_A_COPY - len(part))
            blocks = jax.tree.map(
                lambda memory, like, host=host: jax.device_put(memory[host], like.sharding),
                self._memory,
                self._parts,
            )
            kv = scatter(kv, self._ids([device for device, _ in part]), blocks)
        return kv

    def _ids(self, ids: list[int]) -> jax.Array:
        padded = np.zeros(_BLOCKS_A_COPY, np.int32)
        padded[: len(ids)] = ids
        return jax.device_put(padded, self._whole)


def _chunks(pairs: Sequence[tuple[int, int]]) -> list[Sequence[tuple[int, int]]]:
    return [pairs[i : i + _BLOCKS_A_COPY] for i in range(0, len(pairs), _BLOCKS_A_COPY)]
