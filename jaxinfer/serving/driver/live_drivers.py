"""A process's drivers that have not ended: a new engine waits for those that close, and so does
Python's end.
"""

import atexit
import weakref
from typing import Protocol

from jaxinfer.serving.driver.owner_thread import OwnerThread


class LiveDriver(Protocol):
    """What is asked of a `Driver` here."""

    is_closing: bool
    owner: OwnerThread

    def close(self) -> None:
        """Close the engine and wait for it."""
        ...


_live: "weakref.WeakSet[LiveDriver]" = weakref.WeakSet()  # each kept alive by its thread


def note_driver(driver: LiveDriver) -> None:
    """Have a driver waited for until it has ended."""
    _live.add(driver)
    # Before the hooks that are there by now. That of `weakref` would break JAX's traces in other
    # threads, by finalizing their constants.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def wait_for_closing() -> None:
    """Wait until engines that were dropped or closed have released their device memory."""
    for driver in list(_live):
        if driver.is_closing:
            driver.owner.join()


def _close_all() -> None:
    """At interpreter exit: killing a thread inside a step may crash the process."""
    for driver in list(_live):
        driver.close()
