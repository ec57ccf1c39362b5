"""Copies between the pages and the tiers, as a schedule passes them to the device's side."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from jaxinfer.serving.prefix_tiers.block_rows import BlockRow
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts


@dataclasses.dataclass(slots=True, eq=False)
class Fetch:
    """A chain of blocks on its way from the tiers to fresh arrays on the devices.

    Attributes:
        keys: of the blocks, in the order of their positions.
        blocks: their contents in host memory; None where the next tier has them. Empty once they
            come.
        num_staged: rows that their arrays take on the devices.
        rows: the contents on the devices, of the leading blocks that were still there; what reads
            them before they are there waits for them.
        began: by `time.monotonic`.
        is_coming: whether the copies have begun, and not ended: `rows` is final unless they fail.
        is_done: whether a step may write the rows to pages: they are there, or no other step waits.
            A copy that fails after that fails the step.
        is_released: whether nobody waits for it any more.
    """

    keys: Sequence[bytes]
    blocks: list[BlockRow | None]
    num_staged: int = 0
    rows: list[BlockRow] = dataclasses.field(default_factory=list)
    began: float = dataclasses.field(default_factory=time.monotonic)
    is_coming: bool = False
    is_done: bool = False
    is_released: bool = False


class CopyBack(NamedTuple):
    """Fetched blocks that a step writes to the pages.

    Attributes:
        fetch: where they are from; released by the launch.
        rows: their contents on the devices; emptied by the launch.
        blocks: device blocks to write, one for each.
    """

    fetch: Fetch
    rows: list[BlockRow]
    blocks: Sequence[int]


class TierCopies(NamedTuple):
    """A step's copies: those out of the pages run before all else, those into them before its rows.

    Attributes:
        out: pairs (device block, its key).
        back: fetched blocks to write.
    """

    out: Sequence[tuple[int, bytes]]
    back: Sequence[CopyBack]


class BlockTransfers(Protocol):
    """What the scheduler asks of the tiers and of the threads that copy; never waits but in `wait`.

    Attributes:
        most_staged: blocks that a fetch brings at most.
        block_bytes: of a block in host memory.
    """

    most_staged: int
    block_bytes: int

    def __contains__(self, key: bytes) -> bool:
        """Whether a tier holds the block."""
        ...

    def holds(self, key: bytes) -> bool:
        """Whether the host tier holds the block, so that it need not be read from a file."""
        ...

    def expect(self, key: bytes) -> bool:
        """Whether a block is to be copied out, by the next launch; counts those that can't be."""
        ...

    def fetch(self, keys: Sequence[bytes]) -> Fetch:
        """Begin to bring a chain of blocks to the devices, or as many leading ones as fit there."""
        ...

    def release(self, fetch: Fetch) -> None:
        """Drop what was fetched, or call it off; may be called again."""
        ...

    def forget(self, keys: Sequence[bytes]) -> None:
        """Drop blocks from the host tier, copies on their way included."""
        ...

    def clear(self) -> None:
        """Drop all blocks of the host tier, and call off what is on its way."""
        ...

    def snapshot(self) -> TierCounts:
        """What was copied so far."""
        ...

    def settle(self) -> None:
        """Call off all fetches and return when no array of the devices is in use any more."""

    def close(self, last: Iterable[tuple[bytes, Any]]) -> None:
        """End the threads, and offer blocks to the tier behind host memory; may be called again.

        Args:
            last: keys and contents of blocks that are not in the tiers, the most valuable first.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Return once the copies of a fetch have begun or ended, or after some time."""
        ...


class SharedTransfers(BlockTransfers, Protocol):
    """Transfers of one of several engines that share a tier.

    Attributes:
        policy: is told how long copies take.
        on_stored: is given the keys of a copy out that has ended, whether they were kept or not.
        num_leaving: blocks that are on their way out, or will be launched.
    """

    policy: FetchPolicy
    on_stored: Callable[[Sequence[bytes]], None]

    @property
    def num_leaving(self) -> int:
        """See above."""
        ...

    def is_leaving(self, key: bytes) -> bool:
        """Whether the block is on its way out, or will be launched."""
        ...

    def call_off(self, keys: Sequence[bytes]) -> None:
        """Drop blocks whose launch has failed; those on their way end as if they were not kept."""
        ...
