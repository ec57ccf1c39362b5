"""Brings blocks to an engine's devices that lie in host memory which other devices have pinned."""

import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

logger = logging.getLogger("jaxinfer")


class ForeignBlocks:
    """Copies blocks of any engine of a group to the devices of one; used by one thread.

    The first foreign block is read back. If it did not arrive as it was, which depends on drivers
    and on XLA, foreign blocks go through memory that is not pinned, which is slower.
    """

    def __init__(self) -> None:
        self._is_direct: bool | None = None

    def __call__(self, blocks: Sequence[Any], sharding: jax.sharding.Sharding) -> list[jax.Array]:
        """Rows on the devices of `sharding`, whose shape is that of `blocks`."""
        devices = sharding.device_set
        is_foreign = [each.sharding.device_set != devices for each in blocks]
        if self._is_direct is None and any(is_foreign):
            self._is_direct = _arrives(blocks[is_foreign.index(True)], sharding)
            if not self._is_direct:
                logger.warning("KV blocks go from GPU to GPU through memory that is not pinned")
        if self._is_direct is False:
            pairs = zip(blocks, is_foreign, strict=True)
            blocks = [np.asarray(each) if foreign else each for each, foreign in pairs]
        return jax.device_put(list(blocks), sharding)


def _arrives(block: Any, sharding: jax.sharding.Sharding) -> bool:
    try:
        copied = np.asarray(jax.device_put(block, sharding))
    except Exception as error:
        logger.warning("a KV block of another GPU's pinned memory can't be copied: %s", error)
        return False
    return np.array_equal(copied, np.asarray(block))
