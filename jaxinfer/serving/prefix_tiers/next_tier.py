"""The interface of a tier behind host memory, and the tier that holds nothing."""

from typing import Protocol


class NextTier(Protocol):
    """Holds the bytes of blocks by their keys; thread-safe, and free to lose any of them."""

    def __contains__(self, key: bytes) -> bool:
        """Whether `read` will probably find it."""
        ...

    def read(self, key: bytes) -> bytes | None:
        """The block's bytes; None if they are lost."""
        ...

    def write(self, key: bytes, data: bytes | memoryview) -> None:
        """Keep a block's bytes, or not."""
        ...


class NoNextTier:
    """What lies behind host memory in an engine without further tiers."""

    def __contains__(self, key: bytes) -> bool:
        """It holds nothing."""
        return False

    def read(self, key: bytes) -> bytes | None:
        """Nothing was kept."""
        return None

    def write(self, key: bytes, data: bytes | memoryview) -> None:
        """The block is lost."""
