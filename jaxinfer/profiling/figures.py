"""Figures as text: aligned tables, and percentages that never round to 0% or 100%."""

from collections.abc import Sequence


def share_text(share: float, digits: int = 0) -> str:
    """A share as a percentage, such as "50%"; ">99%" and "<1%" where rounding says 100% or 0%."""
    text, step = f"{share:.{digits}%}", 10**-digits
    if share < 1 and text == f"{1:.{digits}%}":
        return f">{100 - step:.{digits}f}%"
    if share > 0 and text == f"{0:.{digits}%}":
        return f"<{step:.{digits}f}%"
    return text


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1, last_left: bool = False) -> list[str]:
    """The lines of a table, without white space at their ends.

    Args:
        left: number of leading columns that are aligned to the left.
        last_left: whether the last column is aligned to the left, too.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_left = [i < left or (last_left and i == len(widths) - 1) for i in range(len(widths))]
    return [
        "  ".join(
            cell.ljust(width) if to_left else cell.rjust(width)
            for cell, width, to_left in zip(row, widths, is_left, strict=True)
        ).rstrip()
        for row in rows
    ]
