"""The table that a GPU check prints, a row for each check."""

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        name: of the check.
        what: its result, in words.
        good: whether that is as it should be.
    """

    name: str
    what: str
    good: bool


def say(*rows: Row) -> None:
    """Print checks as soon as they are known: a check that is killed has told what it found."""
    for row in rows:
        print(f"{'ok ' if row.good else 'BAD'}  {row.name}  {row.what}", flush=True)


def print_table(rows: Sequence[Row]) -> None:
    """Print the checks, a line each."""
    width = max(len(row.name) for row in rows)
    print()
    for row in rows:
        print(f"{'ok ' if row.good else 'BAD'}  {row.name:<{width}}  {row.what}")
