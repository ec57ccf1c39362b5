"""Checks of a model's values and sizes, each naming the field it refuses."""

from typing import Any

from jaxinfer.checks import show

_LARGEST_NUMBER = 1e9


def whole_number(name: str, value: Any, smallest: int, largest: int) -> int:
    """``value`` if it is an int (no bool) within the bounds; else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ValueError(
            f"{name} must be a whole number from {smallest} to {largest}, got {show(value)}"
        )
    return value


def positive(name: str, value: Any) -> float:
    """``value`` as a float if it is a number above 0 and below a billion; else ValueError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < _LARGEST_NUMBER:
        raise ValueError(f"{name} must be a positive number below 1e9, got {show(value)}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """``value`` if it is true or false; else ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {show(value)}")
    return value
