"""Host memory for the KV blocks of preempted requests, and the copies in both directions."""

import mmap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import psutil
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.errors import CapacityError
from jaxinfer.serving.programs.kinds.copy_blocks import BLOCKS_A_COPY, SwapKey
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import KVCache
from jaxinfer.serving.programs.upload import upload


class HostBlocks:
    """A pool of KV blocks in host memory.

    All of its memory is committed at once; otherwise the operating system would commit it page by
    page, and could kill the process while it serves. Each of several processes keeps its own
    devices' part of a block.

    Args:
        gibibytes: host memory at most, of each process; 0 holds no block.

    Raises:
        CapacityError: the host has less memory available.
    """

    copy_size = BLOCKS_A_COPY

    def __init__(self, programs: Programs, gibibytes: float) -> None:
        cache = programs.cache
        self._parts = cache.blocks(BLOCKS_A_COPY)
        self._whole = NamedSharding(programs.context.mesh, PartitionSpec())
        self.num_blocks = int(gibibytes * 2**30) // cache.host_block_bytes
        _check_available(self.num_blocks * cache.host_block_bytes)
        self._memory = [self._host_memory(part) for part in jax.tree.leaves(self._parts)]

    def swap(
        self,
        kv: KVCache,
        out: Sequence[tuple[int, int]],
        back: Sequence[tuple[int, int]],
        program: Callable[[SwapKey], Callable[..., Any]],
    ) -> KVCache:
        """Copy device blocks out and then host blocks in.

        Args:
            kv: the pages; donated if any block comes in.
            out: pairs (device block, host block).
            back: pairs (device block, host block) to copy in.
        """
        if out:
            self.copy_out(kv, out, program(SwapKey(self.copy_size, to_host=True)))
        if back:
            kv = self.copy_in(kv, back, program(SwapKey(self.copy_size, to_host=False)))
        return kv

    def copy_out(
        self, kv: KVCache, pairs: Sequence[tuple[int, int]], gather: Callable[..., Any]
    ) -> None:
        """Copy device blocks to host blocks, by pairs, behind launched steps; `kv` stays valid."""
        for part in _chunks(pairs):
            ids = self._ids([device for device, _ in part])
            host = [host for _, host in part]
            for memory, blocks in zip(self._memory, jax.tree.leaves(gather(kv, ids)), strict=True):
                for shard in blocks.addressable_shards:
                    memory[str(shard.index)][host] = np.asarray(shard.data)[: len(part)]

    def copy_in(
        self, kv: KVCache, pairs: Sequence[tuple[int, int]], scatter: Callable[..., Any]
    ) -> KVCache:
        """Copy host blocks to device blocks, by (device, host) pairs; `kv` is donated."""
        for part in _chunks(pairs):
            host = [host for _, host in part] + [0] * (BLOCKS_A_COPY - len(part))
            likes, structure = jax.tree.flatten(self._parts)
            blocks = [
                jax.make_array_from_callback(
                    like.shape,
                    like.sharding,
                    lambda index, memory=memory, host=host: memory[str(index)][host],
                )
                for memory, like in zip(self._memory, likes, strict=True)
            ]
            ids = self._ids([device for device, _ in part])
            kv = scatter(kv, ids, jax.tree.unflatten(structure, blocks))
        return kv

    def _ids(self, ids: list[int]) -> jax.Array:
        padded = np.zeros(BLOCKS_A_COPY, np.int32)
        padded[: len(ids)] = ids
        return upload(padded, self._whole)

    def _host_memory(self, part: jax.ShapeDtypeStruct) -> dict[str, np.ndarray]:
        """Host memory for this process's part of a layer's keys or values."""
        shape = (self.num_blocks, *part.sharding.shard_shape(part.shape)[1:])
        places = part.sharding.addressable_devices_indices_map(part.shape).values()
        return {str(place): _resident_zeros(shape, part.dtype) for place in places}


def _check_available(num_bytes: int) -> None:
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise CapacityError(
            f"swap_space takes {num_bytes / 2**30:.2f} GiB of host memory, of which "
            f"{available / 2**30:.2f} GiB are available; lower swap_space"
        )


def _resident_zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros whose memory is committed: the operating system commits a page when it is written."""
    array = np.zeros(shape, dtype)
    array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE] = 0
    return array


def _chunks(pairs: Sequence[tuple[int, int]]) -> list[Sequence[tuple[int, int]]]:
    return [pairs[i : i + BLOCKS_A_COPY] for i in range(0, len(pairs), BLOCKS_A_COPY)]
