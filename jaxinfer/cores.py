"""How many processor cores this process may use: in a container often fewer than there are."""

import os


def usable_cores() -> int:
    """Cores that the operating system lets this process run on; all where it does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
