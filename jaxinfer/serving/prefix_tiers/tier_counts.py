"""What prefix tiers did so far, for metrics."""

import dataclasses


@dataclasses.dataclass(slots=True)
class TierCounts:
    """Sums over an engine's prefix tiers; gauges are of the host tier, but for those of disks.

    Attributes:
        queried_tokens: tokens of full blocks that the device's prefix cache did not have.
        hit_tokens: of these, tokens whose blocks came back from a tier.
        refused_tokens: tokens that a tier had, and that were computed again because that is faster.
        bytes_out: copied from the devices to host memory.
        bytes_in: copied from host memory to the devices.
        dropped_blocks: evicted blocks that were not kept: too many at once, or a copy failed.
        held_blocks: blocks in host memory now.
        capacity_blocks: blocks that it has room for.
        next_hits: blocks that the tier behind host memory gave.
        disk_written: blocks that were written to files.
        disk_dropped: blocks that were not, because the disk was too slow.
        disk_lost: files that could not be read, or whose content had changed.
        disk_blocks: blocks in files now.
        disk_capacity_blocks: blocks that the files' capacity holds; 0 without a file tier.
    """

    queried_tokens: int = 0
    hit_tokens: int = 0
    refused_tokens: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    dropped_blocks: int = 0
    held_blocks: int = 0
    capacity_blocks: int = 0
    next_hits: int = 0
    disk_written: int = 0
    disk_dropped: int = 0
    disk_lost: int = 0
    disk_blocks: int = 0
    disk_capacity_blocks: int = 0

    def plus(self, other: "TierCounts") -> "TierCounts":
        """The sums of two engines."""
        names = (field.name for field in dataclasses.fields(self))
        return TierCounts(**{n: getattr(self, n) + getattr(other, n) for n in names})
