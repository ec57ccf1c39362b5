"""The type of spans: a context entered around each named part of a step on the host."""

from collections.abc import Callable
from contextlib import AbstractContextManager

EnterSpan = Callable[[str], AbstractContextManager[object]]
"""Called with the part's name; `contextlib.nullcontext` is the one that does nothing."""
