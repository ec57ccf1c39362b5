"""Counts calls, for tests of how work grows that no clock can make flaky."""

import gc
import sys
from collections.abc import Callable
from typing import Any


def calls_of(function: Callable[[], Any]) -> int:
    """How many Python and C functions a call of `function` calls.

    No garbage is collected meanwhile, which would call finalizers of what other tests have left.
    """
    count, was_enabled = 0, gc.isenabled()

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        if was_enabled:
            gc.enable()
    return count
