"""Finds the rows of a decoding batch whose block tables begin alike, and plans their work items.

Rows are batched in the order in which they were admitted, so samples of one prompt are neighbours,
as are requests that begin with the same system prompt. Only neighbours are compared. Shared
prefixes stay the same for many steps, so the last plans are cached.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.kernels.attention.shared_prefix import KEYS, MOST_ITEMS_OF_A_ROW, SharedPrefixes

# Fewer keys are not worth a partial output. And keys that few rows share are mostly in the chip's
# cache when the others read them: on an H200 attention of pairs took 14% longer, of fours 15% less.
_FEWEST_KEYS, _FEWEST_ROWS = 128, 4
# The target number of work items: times 8 kv heads, one for each block that runs at a time; and the
# least keys of an item to reach it.
_WANTED_ITEMS, _SHORTEST_ITEM = 32, 256


class Group(NamedTuple):
    """Neighbouring rows and the keys that all of them see first.

    Attributes:
        window: the first row of its work items, a multiple of 8.
        first: its own first row.
        rows: its number of rows, at least `_FEWEST_ROWS`.
        keys: a multiple of `KEYS`.
    """

    window: int
    first: int
    rows: int
    keys: int

    @property
    def saved_keys(self) -> int:
        """Keys that are read once and not for each row."""
        return (self.rows - 1) * self.keys


def most_items(rows: int) -> int:
    """U, the most work items of a batch, by its number of rows."""
    return rows // _FEWEST_ROWS + _WANTED_ITEMS


def find_groups(
    block_tables: np.ndarray,
    context_lens: np.ndarray,
    *,
    block_size: int,
    batch_rows: int,
    rows_in_item: int,
) -> Sequence[Group]:
    """Groups of rows that begin with the same blocks.

    Args:
        block_tables: ``[n, W]``; entries past a context may be anything.
        context_lens: ``[n]`` tokens of each context, the one being fed included.
        block_size: S, `KEYS` or a divisor or a multiple of it.
        batch_rows: B, n or more.
        rows_in_item: rows of a work item, a multiple of 8 that is not more than B.
    """
    keys = _shared_with_previous(block_tables, context_lens, block_size)
    last_window = (batch_rows - rows_in_item) // 8 * 8
    return _groups(keys.tobytes(), last_window, rows_in_item) if keys.any() else ()


def write_items(into: SharedPrefixes, groups: Sequence[Group]) -> None:
    """Write the work items of `groups` that fit into int32 arrays."""
    into.num_items[0], into.items[:], into.rows[:] = _items(
        tuple(groups), len(into.items), len(into.rows)
    )


@functools.lru_cache(maxsize=4)
def _items(
    groups: tuple[Group, ...], most: int, batch_rows: int
) -> tuple[int, np.ndarray, np.ndarray]:
    """`SharedPrefixes` of groups: its number of items, the items ``[most, 4]`` and its rows."""
    items, of_rows = np.zeros((most, 4), np.int32), np.zeros((batch_rows, 4), np.int32)
    length = max(_SHORTEST_ITEM, sum(group.keys for group in groups) // _WANTED_ITEMS)
    count = 0
    for group in groups:
        parts = min(-(-group.keys // length), MOST_ITEMS_OF_A_ROW)
        if count + parts > most:
            break
        borders = np.arange(parts + 1) * (group.keys // KEYS) // parts * KEYS
        of_group = items[count : count + parts]
        of_group[:, 0], of_group[:, 1] = group.window // 8, group.first
        of_group[:, 2], of_group[:, 3] = borders[:-1], borders[1:]
        rows = of_rows[group.first : group.first + group.rows]
        rows[:] = (group.keys, count, parts, group.first - group.window)
        rows[:, 3] += np.arange(group.rows, dtype=np.int32)
        count += parts
    return count, items, of_rows


def _shared_with_previous(
    block_tables: np.ndarray, context_lens: np.ndarray, block_size: int
) -> np.ndarray:
    """``[n]`` keys that each row and the one before it both see first; 0 for too few of them."""
    keys = np.zeros(len(context_lens), np.int64)
    # Whole blocks before the token that is fed.
    whole = (context_lens - 1) // block_size
    whole = np.minimum(whole[1:], whole[:-1])
    fewest = -(-_FEWEST_KEYS // block_size)
    if block_tables.shape[1] < fewest:
        return keys
    # Comparing one column nearly always shows that nothing is shared.
    alike = block_tables[1:, fewest - 1] == block_tables[:-1, fewest - 1]
    rows = 1 + np.flatnonzero(alike & (whole >= fewest))
    if len(rows):
        differs = block_tables[rows] != block_tables[rows - 1]
        blocks = np.where(differs.any(1), differs.argmax(1), block_tables.shape[1])
        blocks = np.minimum(blocks, whole[rows - 1])
        keys[rows] = np.where(blocks >= fewest, blocks * block_size // KEYS * KEYS, 0)
    return keys


@functools.lru_cache(maxsize=4)
def _groups(keys: bytes, last_window: int, rows_in_item: int) -> tuple[Group, ...]:
    return tuple(_split(np.frombuffer(keys, np.int64), last_window, rows_in_item))


def _split(keys: np.ndarray, last_window: int, rows_in_item: int) -> Iterator[Group]:
    """Groups; each has the largest saving among all that begin with its first row.

    Args:
        keys: ``[n]`` keys that each row shares with the one before it.
        last_window: the last row that a work item may begin with, a multiple of 8.
        rows_in_item: rows of a work item.
    """
    row = 0
    while row < len(keys) - 1:
        window = min(row // 8 * 8, last_window)
        seen_by_all = np.minimum.accumulate(keys[row + 1 : window + rows_in_item])
        saved = seen_by_all * np.arange(1, len(seen_by_all) + 1)
        saved[: _FEWEST_ROWS - 2] = 0
        if saved.any():
            others = int(saved.argmax()) + 1
            yield Group(window, row, others + 1, int(seen_by_all[others - 1]))
            row += others + 1
        elif len(sharing := np.flatnonzero(keys[row + 2 :])):
            row += 1 + int(sharing[0])  # the next row that shares with the one after it
        else:
            return
