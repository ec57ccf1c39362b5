"""The host tier: KV blocks in host memory by their keys, the least recently used leave first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from jaxinfer.serving.prefix_tiers.next_tier import NextTier, NoNextTier


class HostTier:
    """Blocks of a fixed size in host memory, at most `num_blocks`; thread-safe.

    A block that has to leave is handed to the next tier by the thread that puts another one.

    Args:
        num_blocks: capacity.
        next_tier: what takes blocks that leave, and is asked for those that are not here.
        pack: a block's bytes.
        unpack: the block of these bytes, in host memory; raises ValueError if they are none.
    """

    def __init__(
        self,
        num_blocks: int,
        next_tier: NextTier | None = None,
        pack: Callable[[Any], bytes | memoryview] = bytes,
        unpack: Callable[[bytes], Any] = bytes,
    ) -> None:
        self.num_blocks = num_blocks
        self._next: NextTier = NoNextTier() if next_tier is None else next_tier
        self._pack, self._unpack = pack, unpack
        self._blocks: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        """Whether the block is here, or probably in the next tier."""
        return key in self._blocks or key in self._next

    def holds(self, key: bytes) -> bool:
        """Whether the block is here."""
        return key in self._blocks

    def take(self, key: bytes) -> Any | None:
        """The block, now the most recently used; None if it is not here."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def take_next(self, key: bytes) -> Any | None:
        """The block from the next tier, which is put here, too; None if it is lost."""
        data = self._next.read(key)
        if data is None:
            return None
        try:
            block = self._unpack(data)
        except ValueError:  # the bytes of another layout
            return None
        self.put(key, block)
        return block

    def put(self, key: bytes, block: Any) -> None:
        """Keep a block; what has to leave for it goes to the next tier."""
        evicted: list[tuple[bytes, Any]] = []
        with self._lock:
            self._blocks[key] = block
            self._blocks.move_to_end(key)
            while len(self._blocks) > self.num_blocks:
                evicted.append(self._blocks.popitem(last=False))
        for old, gone in evicted:
            if old not in self._next:
                self._next.write(old, self._pack(gone))

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop blocks; they go nowhere."""
        with self._lock:
            for key in keys:
                self._blocks.pop(key, None)

    def clear(self) -> None:
        """Drop all blocks, and leave the next tier alone from now on.

        Its keys are those of an engine as it started: chains that begin later have other roots, so
        that no key of them would ever be asked for by another process.
        """
        with self._lock:
            self._blocks.clear()
            self._next = NoNextTier()
