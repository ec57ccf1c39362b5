"""The table that a check of a GPU prints, a line for each thing that was looked at."""

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        name: what was looked at.
        what: what was seen.
        good: whether that is as it should be.
    """

    name: str
    what: str
    good: bool


def print_table(rows: Sequence[Row]) -> None:
    """Print what was checked, a line each."""
    width = max(len(row.name) for row in rows)
    print()
    for row in rows:
        print(f"{'ok ' if row.good else 'BAD'}  {row.name:<{width}}  {row.what}")
