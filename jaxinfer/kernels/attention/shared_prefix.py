"""Describes the rows of a decoding batch that begin with the same pages, cut into work items.

Rows that share a prompt (samples of a group, requests below one system prompt) name the same pages
first. Attention over the shared keys can be computed for all rows at once, each page read once, and
joined with the result over each row's own keys (Hydragen, Juravsky et al. 2024, arXiv:2402.05099;
cascade inference in FlashInfer, Ye et al. 2024). The host finds such rows, and a kernel computes
*work items*: up to `rows_in_item` neighbouring rows with a stretch of the keys that they share.
"""

from typing import NamedTuple

from jaxtyping import Array, Int32

KEYS = 64
"""Keys of a tile. Shared keys are counted in whole tiles, so that no tile needs a mask."""
MOST_ITEMS_OF_A_ROW = 4
"""Most work items that one row's shared keys are split into."""
QUERIES = 64
"""Queries of a work item and a kv head, which a warpgroup multiplies at once."""


class SharedPrefixes(NamedTuple):
    """The work items of a batch of B rows; U is the most there may be.

    Attributes:
        num_items: ``[1]`` number of work items.
        items: ``[U, 4]``, for each item: the first of its `rows_in_item` rows, which all lie in the
            batch, divided by 8; the row through whose block table keys are read; and the first and
            one past the last key, multiples of `KEYS`.
        rows: ``[B, 4]``, for each row: the number of its keys that work items cover, a multiple of
            `KEYS` that is less than its context; the first of its consecutive work items; their
            number, at most `MOST_ITEMS_OF_A_ROW`; and its place in them. Zeros for a row that
            shares nothing.
    """

    num_items: Int32[Array, " 1"]
    items: Int32[Array, "U 4"]
    rows: Int32[Array, "B 4"]


def rows_in_item(group_size: int) -> int:
    """Rows of a work item, given the query heads per kv head; 0 if it can't hold a row.

    Rows are copied in eights.
    """
    return QUERIES // group_size // 8 * 8
