"""Sizes of files as people read them: "16.4 GB"."""


def size_text(num_bytes: int) -> str:
    """A size with a decimal unit, as disks and the hub count: "2.0 kB", "93.1 MB", "16.4 GB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes} B"
