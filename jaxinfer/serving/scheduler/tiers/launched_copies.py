"""Callables of the device's side that schedulers of several engines are given."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxinfer.serving.prefix_tiers.block_copies import TierCopies

LaunchCopies = Callable[[TierCopies, Callable[[], None]], None]
"""Launches copies behind all launched steps, and returns at once. The callable is called, in any
thread, if that raises; where blocks were to be written, all later steps raise then, too."""

ReadRows = Callable[[Sequence[int]], Iterator[Any]]
"""Reads the contents of blocks from the devices, one after the other."""
