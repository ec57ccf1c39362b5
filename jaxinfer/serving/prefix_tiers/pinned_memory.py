"""Pinned host memory for KV blocks: checked, and taken at the start."""

import os

import jax
import numpy as np
import psutil

from jaxinfer.errors import CapacityError
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS
from jaxinfer.serving.prefix_tiers.transfers import sharding_of_rows

_PINNED_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
_PINNED_GIB = 64  # XLA's own limit
_OTHER_PINNED_GIB = 4


def check_memory(name: str, num_bytes: int, platform: str, more_pinned: int = 0) -> None:
    """Refuse more memory than the host has available, or than XLA pins of it on GPUs.

    Args:
        name: of the engine's argument that asks for it.
        num_bytes: of blocks.
        platform: of the devices.
        more_pinned: bytes of blocks on their way, and of preempted requests' blocks beside a tier.

    Raises:
        CapacityError: names both sizes, and the argument.
    """
    available = psutil.virtual_memory().available
    if num_bytes > available:
        raise CapacityError(
            f"{name} takes {num_bytes / 2**30:.2f} GiB of host memory, of which "
            f"{available / 2**30:.2f} GiB are available; lower {name}"
        )
    if platform == "gpu":
        check_pinned(name, num_bytes + more_pinned)


def check_pinned(name: str, num_bytes: int) -> None:
    """Refuse what XLA's pool of pinned memory doesn't hold, from which steps' inputs come, too.

    Raises:
        CapacityError: names both sizes, and the variable.
    """
    most = float(os.environ.get(_PINNED_LIMIT, _PINNED_GIB))
    if num_bytes / 2**30 + _OTHER_PINNED_GIB > most:
        raise CapacityError(
            f"{name} takes {num_bytes / 2**30:.2f} GiB of pinned memory with blocks on their way "
            f"and swap_space, and XLA pins {most:g} GiB of a process at most, {_OTHER_PINNED_GIB} "
            f"of them for all else; lower {name}, or set {_PINNED_LIMIT} before JAX starts"
        )


def pinned_arrays(name: str, row: jax.ShapeDtypeStruct, count: int) -> list[jax.Array]:
    """Arrays of `MOST_BLOCKS` zeroed blocks in pinned memory, which XLA keeps when they go.

    Taken at the start, because pinning stops all other work of a GPU. A device's pool grows by
    doubling, so that it may pin up to twice as much.

    Args:
        name: of the engine's argument that asks for them.
        row: of a block.
        count: of the arrays.

    Raises:
        CapacityError: the host can't pin as much.
    """
    if not count:
        return []
    sharding, shape = sharding_of_rows(row), (MOST_BLOCKS, *row.shape)
    of_device = np.zeros(sharding.shard_shape(shape), row.dtype)
    zeros = jax.make_array_from_callback(shape, sharding, lambda index: of_device)
    on_host = sharding.with_memory_kind("pinned_host")
    try:
        return jax.block_until_ready([jax.device_put(zeros, on_host) for _ in range(count)])
    except jax.errors.JaxRuntimeError as error:
        num_bytes = count * of_device.nbytes * len(zeros.addressable_shards)
        raise CapacityError(
            f"the host does not pin the {num_bytes / 2**30:.2f} GiB of {name}; lower it, or raise "
            f"{_PINNED_LIMIT} before JAX starts ({error})"
        ) from error
