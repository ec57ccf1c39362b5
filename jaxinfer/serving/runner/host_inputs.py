"""Pinned host memory that steps read their batches from, written in place from step to step."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Sharding

from jaxinfer.serving.programs.upload import upload

_IN_TURN = 4  # one more than there are steps in flight, so that no write waits for the device


@dataclass
class _Slab:
    """One array, the host's views of it, and a result of the last program that read it."""

    array: jax.Array
    views: list[np.ndarray]
    reader: jax.Array | None = None


class HostInputs:
    """Passes batches to programs at addresses that stay the same.

    Uploading each batch would cost the host the upload, a wait for the thread that does it, and,
    because the device's allocator then moves temporaries, an update of every node of the program's
    CUDA graph: together more than all the rest of a launch of few rows.

    JAX's arrays are immutable, and these are written to: no program may still read one, which
    `read_by` ensures, and no other code may hold one.

    Args:
        sharding: of the arrays: whole for every device, in pinned host memory.
        in_turn: arrays of a size that are written in turn.
    """

    def __init__(self, sharding: Sharding, in_turn: int = _IN_TURN) -> None:
        self._sharding, self._in_turn = sharding, in_turn
        self._slabs: dict[int, list[_Slab]] = {}
        self._latest: _Slab | None = None

    def write(self, packed: np.ndarray) -> jax.Array:
        """An int32 array ``[size]`` with these values, until two more of its size are written.

        Raises:
            Exception: the device's own, of the program that read the array before.
        """
        slabs = self._slabs.setdefault(packed.size, [])
        if len(slabs) < self._in_turn:
            array = upload(packed.copy(), self._sharding)  # a CPU keeps the array that it is given
            array.block_until_ready()
            slab = _Slab(array, _views(array))
        else:
            slab = slabs.pop(0)
            if slab.reader is not None:
                slab.reader.block_until_ready()
            for view in slab.views:
                view[:] = packed
        slabs.append(slab)
        self._latest = slab
        return slab.array

    def read_by(self, result: jax.Array) -> None:
        """Register a result of the program that reads the latest array."""
        if self._latest is not None:
            self._latest.reader = result

    def clear(self) -> None:
        """Forget all arrays, after a step that raised."""
        self._slabs.clear()
        self._latest = None


def _views(array: jax.Array) -> list[np.ndarray]:
    """Each device's array as NumPy memory."""
    view: Callable[[int], ctypes.Array[ctypes.c_int32]] = (ctypes.c_int32 * array.size).from_address
    shards = array.addressable_shards
    return [np.ctypeslib.as_array(view(shard.data.unsafe_buffer_pointer())) for shard in shards]
