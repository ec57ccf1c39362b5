"""The interface of a tier behind host memory, and the tier that holds nothing."""

from collections.abc import Iterable
from typing import Protocol

from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts


class NextTier(Protocol):
    """Holds the bytes of blocks by their keys; thread-safe, and free to lose any of them."""

    def __contains__(self, key: bytes) -> bool:
        """Whether `read` will probably find it."""
        ...

    def read(self, key: bytes) -> bytes | None:
        """The block's bytes; None if they are lost."""
        ...

    def wants(self, key: bytes) -> bool:
        """Whether `write` would keep the block now."""
        ...

    def write(self, key: bytes, data: bytes | memoryview) -> None:
        """Keep a block's bytes, or not; they must not change later."""
        ...

    def forget(self, keys: Iterable[bytes]) -> None:
        """Never find these blocks again."""
        ...

    def count(self, counts: TierCounts) -> None:
        """Write what happened so far into an engine's counts."""
        ...

    def close(self, leaving: Iterable[tuple[bytes, bytes | memoryview]]) -> None:
        """Keep of an engine's last blocks what time allows, the most valuable first, and end."""
        ...


class NoNextTier:
    """What lies behind host memory in an engine without further tiers."""

    def __contains__(self, key: bytes) -> bool:
        """It holds nothing."""
        return False

    def read(self, key: bytes) -> bytes | None:
        """Nothing was kept."""
        return None

    def wants(self, key: bytes) -> bool:
        """It wants nothing."""
        return False

    def write(self, key: bytes, data: bytes | memoryview) -> None:
        """The block is lost."""

    def forget(self, keys: Iterable[bytes]) -> None:
        """Nothing was kept."""

    def count(self, counts: TierCounts) -> None:
        """Nothing happened."""

    def close(self, leaving: Iterable[tuple[bytes, bytes | memoryview]]) -> None:
        """The blocks are lost."""
