"""Checks of single configuration values that strangers wrote, each naming the field it refuses."""

from typing import Any

_LARGEST_NUMBER = 1e9


def whole_number(name: str, value: Any, smallest: int, largest: int) -> int:
    """``value`` if it is an int (no bool) within the bounds.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ValueError(
            f"{name} must be a whole number from {smallest} to {largest}, got {shortened(value)}"
        )
    return value


def positive(name: str, value: Any) -> float:
    """``value`` as a float if it is a number above 0 and below a billion.

    Raises:
        ValueError: it is not.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < _LARGEST_NUMBER:
        raise ValueError(f"{name} must be a positive number below 1e9, got {shortened(value)}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """``value`` if it is true or false.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {shortened(value)}")
    return value


def shortened(value: Any) -> str:
    """A value as it may appear in a one-line message."""
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        text = "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
