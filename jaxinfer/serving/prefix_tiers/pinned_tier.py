"""A host tier that several engines share, some of whose blocks must stay until they are taken."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from jaxinfer.serving.prefix_tiers.block_rows import BlockRow
from jaxinfer.serving.prefix_tiers.host_tier import HostTier
from jaxinfer.serving.prefix_tiers.next_tier import NextTier, NoNextTier


class PinnedTier(HostTier):
    """A `HostTier` whose pinned blocks make room for no others.

    Who pins blocks reserves room for them before, block by block: what pads their arrays may be as
    much again, and takes the room of others.

    Args:
        num_blocks: capacity, for all engines together.
        num_engines: that close it; the last one ends it.
        next_tier: see `HostTier`.
        **codec: its `pack` and `unpack`.
    """

    def __init__(
        self,
        num_blocks: int,
        num_engines: int,
        next_tier: NextTier | None = None,
        **codec: Any,
    ) -> None:
        super().__init__(num_blocks, next_tier, **codec)
        self._num_open = num_engines
        self._pinned: dict[bytes, BlockRow] = {}
        self._pins: Counter[bytes] = Counter()
        self._num_reserved = 0

    def __len__(self) -> int:
        return len(self._blocks) + len(self._pinned)

    def __contains__(self, key: bytes) -> bool:
        """Whether the block is here, or probably in the next tier."""
        return self.holds(key) or key in self._next

    @property
    def num_pins(self) -> int:
        """Pins that were not taken back; for tests."""
        return self._pins.total()

    @property
    def num_reserved(self) -> int:
        """Blocks that room is kept for."""
        return self._num_reserved

    def holds(self, key: bytes) -> bool:
        """Whether the block is here; another thread may be pinning it."""
        with self._lock:
            return key in self._pinned or key in self._blocks

    def reserve(self, count: int) -> int:
        """Keep room for at most `count` pinned blocks; returns for how many there is some."""
        with self._lock:
            granted = min(count, self.num_blocks - self._num_reserved)
            self._num_reserved += granted
            return granted

    def pin(self, keys: Iterable[bytes]) -> None:
        """Have blocks stay, whether they are here or still to come; room for them is reserved."""
        with self._lock:
            for key in keys:
                self._pins[key] += 1
                if key in self._blocks:
                    self._pinned[key] = self._blocks.pop(key)

    def unpin(self, keys: Iterable[bytes], num_reserved: int) -> None:
        """Take pins and reserved room back; the blocks are now the most recently used."""
        with self._lock:
            self._num_reserved -= num_reserved
            for key in keys:
                self._pins[key] -= 1
                if self._pins[key]:
                    continue
                del self._pins[key]
                if key in self._pinned:
                    self._blocks[key] = self._pinned.pop(key)

    def clear(self) -> None:
        """Drop all blocks here, pinned ones too; the next tier keeps its own."""
        with self._lock:
            self._drop(list(self._pinned))
        super().clear()

    def close(self, last: Iterable[tuple[bytes, BlockRow]] = ()) -> None:
        """Hand an engine's last blocks to the next tier; the last engine's call ends the tier."""
        self._num_open -= 1
        if self._num_open > 0:
            if isinstance(self._next, NoNextTier):  # nothing is read for nobody
                return
            for key, block in last:
                if self._next.wants(key):
                    self._next.write(key, self._pack(block))
            return
        with self._lock:
            self._blocks.update(self._pinned)
            self._pinned = {}
        super().close(last)

    def _find(self, key: bytes) -> BlockRow | None:
        return self._pinned[key] if key in self._pinned else super()._find(key)

    def _hold(self, key: bytes, block: BlockRow) -> None:
        if key not in self._pins:
            return super()._hold(key, block)
        self._drop([key])
        self._pinned[key] = block
        self._rows.add(block)

    def _drop(self, keys: Sequence[bytes]) -> None:
        self._rows.drop([self._pinned.pop(key) for key in keys if key in self._pinned])
        super()._drop(keys)
