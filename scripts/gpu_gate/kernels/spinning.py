"""Makes attention kernels spin, to see that what runs them says so: a fault on purpose."""

from jaxinfer.kernels.mosaic.pages import Tiling


def add_an_arrival() -> None:
    """From now on each tile of keys waits for one copy more than are made.

    Programs that are compiled afterwards must not be kept on disk: they are found by their source.
    """
    copies = Tiling.copies
    assert isinstance(copies, property)
    assert copies.fget is not None
    count = copies.fget
    Tiling.copies = property(lambda tiling: count(tiling) + 1)  # pyright: ignore[reportAttributeAccessIssue]
