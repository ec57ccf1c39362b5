"""Arrays of several KV blocks: a copy of one array takes the host as long as of one block."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

MOST_BLOCKS = 16
"""Blocks of an array at most."""


class BlockRow(NamedTuple):
    """A block that is a row of an array.

    Attributes:
        rows: the array, of one block or of `MOST_BLOCKS`, some of which may be padding.
        place: of the row in it.
    """

    rows: Any
    place: int


def in_groups[T](values: Sequence[T], most: int) -> Iterator[tuple[int, Sequence[T]]]:
    """Consecutive groups of values, each with its size: `most`, or one.

    The last group may have fewer values than its size, but at least half as many.
    """
    start = 0
    while start < len(values):
        size = most if 2 * (len(values) - start) >= most else 1
        yield size, values[start : start + size]
        start += size


def arrays_of(blocks: Iterable[BlockRow]) -> list[Any]:
    """The arrays that hold some blocks, each once, in the order of the blocks."""
    return list({id(block.rows): block.rows for block in blocks}.values())


def num_rows(blocks: Iterable[BlockRow]) -> int:
    """Rows of all arrays that hold some blocks."""
    return sum(map(len, arrays_of(blocks)))


class HeldRows:
    """The memory of blocks that are added and dropped: an array goes with the last of its blocks.

    Attributes:
        count: rows of all arrays of which a block is held.
    """

    def __init__(self) -> None:
        self.count = 0
        self._blocks: Counter[int] = Counter()

    def add(self, block: BlockRow) -> None:
        """Hold a block."""
        self.count += 0 if self._blocks[id(block.rows)] else len(block.rows)
        self._blocks[id(block.rows)] += 1

    def drop(self, blocks: Sequence[BlockRow]) -> None:
        """Hold some blocks no more."""
        for block in blocks:
            self._blocks[id(block.rows)] -= 1
            if not self._blocks[id(block.rows)]:
                del self._blocks[id(block.rows)]
                self.count -= len(block.rows)
