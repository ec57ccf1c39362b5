"""Peer buffers: memory of each GPU into which the others write their shares of a sum.

A program is given addresses, as one small array: the memory itself is not an argument, lives as
    long as the engine, and must be allocated anew after a failed step, when some GPUs may have
    counted more sums than others.
"""

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.kernels.collectives.tensor_axis import MeshAxes
from jaxinfer.kernels.policy import Kernels

_MOST_DEVICES = 4  # numbers for which `all_reduce.supports_devices` is True


class PeerBuffers(NamedTuple):
    """Arrays to be freed together, the first one last needed.

    Attributes:
        memory: int32 ``[N, words]``, a row on each device; only its addresses are used.
        peers: int32 ``[N, N, 2]``, a row on each device: see `all_reduce`.
    """

    memory: jax.Array
    peers: jax.Array


def have_peer_buffers(mesh: Mesh, num_devices: int, kernels: Kernels) -> bool:
    """True if the devices of a mesh are to sum through each other's memory, if they can reach it.

    They must be the GPUs of one process; in another process an address means nothing.
    """
    if kernels.backend != "mosaic" or mesh.devices.size != num_devices:
        return False
    processes = {device.process_index for device in mesh.devices.flat}
    return len(processes) == 1 < num_devices <= _MOST_DEVICES


def reach_each_other(mesh: Mesh) -> bool:
    """True if CUDA lets the GPUs of this process access each other's memory.

    JAX enables that access wherever possible, but does not report it.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    ordinals = [device.local_hardware_id for device in mesh.devices.flat]
    return all(_can_access(cuda, *pair) for pair in itertools.permutations(ordinals, 2))


def _can_access(cuda: Any, device: int, peer: int) -> bool:
    answer = ctypes.c_int(0)
    failed = cuda.cuDeviceCanAccessPeer(ctypes.byref(answer), device, peer)
    return not failed and answer.value == 1


def describe_peers(mesh: Mesh, axis: MeshAxes) -> jax.ShapeDtypeStruct:
    """The shape of the programs' argument `PeerBuffers.peers`."""
    count = mesh.size
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    return jax.ShapeDtypeStruct((count, count, 2), jnp.int32, sharding=sharding)


def allocate(peers: jax.ShapeDtypeStruct) -> PeerBuffers:
    """Empty peer buffers, and for each device the addresses by distance."""
    from jaxinfer.kernels.collectives.mosaic import all_reduce

    count, sharding = peers.shape[0], peers.sharding
    words = all_reduce.peer_buffer_bytes(count) // 4
    memory = _maker(count, words, sharding)()
    shards = sorted(memory.addressable_shards, key=_row)
    jax.block_until_ready(memory)  # no device may be written to before it has cleared its memory
    addresses = np.array([shard.data.unsafe_buffer_pointer() for shard in shards], np.uint64)
    ranks = np.arange(count)
    by_distance = addresses[ranks[:, None] ^ ranks]
    return PeerBuffers(
        memory, jax.device_put(by_distance.view(np.int32).reshape(peers.shape), sharding)
    )


@functools.lru_cache(maxsize=16)
def _maker(count: int, words: int, sharding: Any) -> Callable[[], jax.Array]:
    """A compiled function that makes the buffers' memory; cached for when they are rebuilt."""
    return jax.jit(lambda: jnp.zeros((count, words), jnp.int32), out_shardings=sharding)


def _row(shard: Any) -> int:
    return shard.index[0].start or 0
