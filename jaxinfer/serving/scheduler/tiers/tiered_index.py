"""A prefix index that tells the tiers which blocks leave it, and what their keys are."""

import itertools
import os
from collections.abc import Callable, Iterator

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.prefix_index import PrefixIndex


class TieredIndex(PrefixIndex):
    """A `PrefixIndex` whose blocks have keys: the hashes of their chains.

    Other processes find the same keys for the same tokens after the same salt, as long as the
    engine has the weights that it started with, and but for adapters, whose numbers mean nothing
    elsewhere. All other chains begin with a number of this process, so that no other one finds
    them.

    Args:
        block_size: tokens in a block.

    Attributes:
        on_remove: is given each block that is about to hold something else, and its key.
        on_distrust: is given the keys of blocks that must never be found again.
        on_invalidate: is called when all blocks are forgotten.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.on_remove: Callable[[int, bytes], None] = lambda block, key: None
        self.on_distrust: Callable[[list[bytes]], None] = lambda keys: None
        self.on_invalidate: Callable[[], None] = lambda: None
        self._process = os.urandom(16)

    def remove(self, block: int) -> None:
        """Forget an indexed block, and offer it to the tiers."""
        _, key = self._entries.pop(self.content_of_block.pop(block))
        self.on_remove(block, key)

    def remove_chain(self, request: Request) -> list[int]:
        """Forget the blocks of a request's tokens, in the tiers too; returns the indexed ones."""
        removed = super().remove_chain(request)
        if request.blocks.weight_version == self.weight_version:
            num_blocks = request.num_known_tokens // self.block_size
            self.on_distrust(list(self.keys(request, 0, num_blocks)))
        return removed

    def invalidate(self) -> None:
        """Forget every block, in the tiers too."""
        super().invalidate()
        self.on_invalidate()

    def keys(self, request: Request, first: int, stop: int) -> Iterator[bytes]:
        """Keys of the request's blocks `[first, stop)` of known tokens, hashed as they are asked.

        Args:
            first: blocks whose hashes are in `request.blocks.hashes`, which gets those of others.
        """
        hashes = request.blocks.hashes
        parent = hashes[first - 1] if first else self._root(request)
        for i, tokens in enumerate(self._tokens_by_block(request, first, stop), first):
            if i == len(hashes):
                hashes.append(self._hash(parent + tokens))
            parent = hashes[i]
            yield parent

    def held_by(
        self, tiers: Callable[[bytes], bool], request: Request, first: int, stop: int
    ) -> list[bytes]:
        """Keys of the leading blocks of `[first, stop)` that the tiers hold, as of `keys`."""
        return list(itertools.takewhile(tiers, self.keys(request, first, stop)))

    def _root(self, request: Request) -> bytes:
        """The hash before the first block, which other processes have for lasting chains alone."""
        prompt = request.new.prompt
        if self.weight_version == 0 and prompt.adapter is None:
            return super()._root(request)
        root = (*prompt.cache_root, self.weight_version, self._process)
        return self._hash(repr(root).encode())
