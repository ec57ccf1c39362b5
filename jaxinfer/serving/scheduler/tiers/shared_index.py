"""A prefix index whose keys mean the same to all engines of a group, under all weights."""

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.prefix_index import sha256
from jaxinfer.serving.scheduler.tiers.tiered_index import LOCAL, TieredIndex


class SharedIndex(TieredIndex):
    """A `TieredIndex` of one of several engines that get new weights, and forget, together.

    Attributes:
        num_resets: how often they did; a block of earlier weights has another key.
        filled: pairs of a request and the number of its leading blocks that steps fill which were
            planned since these were taken; kept if `notes_filled`.
        notes_filled: whether they are kept.
    """

    def __init__(self, block_size: int, *, notes_filled: bool) -> None:
        super().__init__(block_size)
        self.num_resets = 0
        self.notes_filled = notes_filled
        self.filled: list[tuple[Request, int]] = []

    def register(self, request: Request, num_blocks: int) -> None:
        """As `PrefixIndex.register`; notes the blocks, too."""
        super().register(request, num_blocks)
        if self.notes_filled and request.blocks.weight_version == self.weight_version:
            self.filled.append((request, num_blocks))

    def invalidate(self) -> None:
        """Forget every block, in the tiers too."""
        self.filled.clear()
        super().invalidate()

    def _root(self, request: Request) -> bytes:
        """As in `TieredIndex`, but a fault of one engine, whose weights stay, changes no key."""
        new = request.new
        if self.is_lasting and new.prompt.adapter is None and not new.intervene:
            return super()._root(request)
        return LOCAL + sha256(repr((*new.prompt.cache_root, self.num_resets)).encode())
