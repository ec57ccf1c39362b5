"""Counts calls, for tests of how work grows that no clock can make flaky."""

import sys
from collections.abc import Callable
from typing import Any


def calls_of(function: Callable[[], Any]) -> int:
    """How many Python and C functions a call of `function` calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
