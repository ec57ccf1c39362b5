"""The host tier: KV blocks in host memory by their keys, the least recently used leave first."""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from jaxinfer.serving.prefix_tiers.block_rows import BlockRow, HeldRows
from jaxinfer.serving.prefix_tiers.next_tier import NextTier, NoNextTier
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts


class HostTier:
    """Blocks of a fixed size in host memory, whose arrays have at most `num_blocks` rows.

    Those being fetched may have more. Thread-safe.

    A block that has to leave is handed to the next tier by the thread that puts another one.

    Args:
        num_blocks: capacity.
        next_tier: what takes blocks that leave, and is asked for those that are not here.
        pack: a block's bytes.
        unpack: the blocks of these bytes each, in host memory; raises ValueError if some are none.
    """

    def __init__(
        self,
        num_blocks: int,
        next_tier: NextTier | None = None,
        pack: Callable[[BlockRow], bytes | memoryview] = lambda block: block.rows[block.place],
        unpack: Callable[[Sequence[bytes]], Sequence[BlockRow]] = lambda data: [
            BlockRow([each], 0) for each in data
        ],
    ) -> None:
        self.num_blocks = num_blocks
        self._next: NextTier = NoNextTier() if next_tier is None else next_tier
        self._pack, self._unpack = pack, unpack
        self._blocks: OrderedDict[bytes, BlockRow] = OrderedDict()
        self._rows = HeldRows()
        self._lock = threading.Lock()
        self._num_forgotten = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        """Whether the block is here, or probably in the next tier."""
        return key in self._blocks or key in self._next

    def holds(self, key: bytes) -> bool:
        """Whether the block is here."""
        return key in self._blocks

    def take(self, key: bytes) -> BlockRow | None:
        """The block, now the most recently used; None if it is not here."""
        with self._lock:
            return self._find(key)

    def take_next(self, keys: Sequence[bytes]) -> Sequence[BlockRow]:
        """The leading blocks from the next tier, which are put here, too: until one is lost."""
        so_far, data = self._num_forgotten, []
        for key in keys:
            each = self._next.read(key)
            if each is None:
                break
            data.append(each)
        try:
            blocks = self._unpack(data)
        except ValueError:  # the bytes of another layout
            return []
        for key, block in zip(keys, blocks, strict=False):
            self.put(key, block)
        with self._lock:
            if self._num_forgotten != so_far:  # which these may have been
                self._drop(keys)
        return blocks

    def put(self, key: bytes, block: BlockRow) -> None:
        """Keep a block; what has to leave for it goes to the next tier."""
        evicted: list[tuple[bytes, BlockRow]] = []
        with self._lock:
            self._hold(key, block)
            while self._blocks and self._rows.count > self.num_blocks:
                evicted.append(self._blocks.popitem(last=False))
                self._rows.drop([evicted[-1][1]])
        for old, gone in evicted:
            if self._next.wants(old):
                self._next.write(old, self._pack(gone))

    def forget(self, keys: Sequence[bytes]) -> None:
        """Drop blocks, in the next tier too."""
        with self._lock:
            self._num_forgotten += 1
            self._drop(keys)
        self._next.forget(keys)

    def drop(self, keys: Sequence[bytes]) -> None:
        """Drop blocks here; the next tier keeps its own."""
        with self._lock:
            self._drop(keys)

    def clear(self) -> None:
        """Drop all blocks here; the next tier keeps its own."""
        with self._lock:
            self._drop(list(self._blocks))

    def count(self, counts: TierCounts) -> None:
        """Write what both tiers hold into an engine's counts."""
        counts.held_blocks, counts.capacity_blocks = len(self), self.num_blocks
        self._next.count(counts)

    def close(self, last: Iterable[tuple[bytes, BlockRow]] = ()) -> None:
        """Hand blocks to the next tier, as many as it takes; may be called again.

        No other thread may put blocks any more.

        Args:
            last: keys and blocks that come before those held here, of which the most recently used
                comes first.
        """
        blocks, self._blocks = self._blocks, OrderedDict()
        self._rows = HeldRows()
        leaving = itertools.chain(last, ((key, blocks[key]) for key in reversed(blocks)))
        self._next.close((key, self._pack(block)) for key, block in leaving)
        self._next = NoNextTier()

    def _find(self, key: bytes) -> BlockRow | None:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def _hold(self, key: bytes, block: BlockRow) -> None:
        self._drop([key])
        self._blocks[key] = block
        self._rows.add(block)

    def _drop(self, keys: Sequence[bytes]) -> None:
        self._rows.drop([self._blocks.pop(key) for key in keys if key in self._blocks])
