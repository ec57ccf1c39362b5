"""Counts the processor cores that this process may use; containers often limit it."""

import os


def usable_cores() -> int:
    """Cores that the operating system lets this process run on; all cores if it does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
