"""A prefix index that tells the tiers which blocks leave it, and what their keys are."""

import itertools
from collections.abc import Callable, Iterator

from jaxinfer.serving.requests.packed_ids import ID_BYTES
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.prefix_index import PrefixIndex, sha256

LOCAL = b"-"
"""Begins keys that mean something to this process alone; no other key is as long."""
_DIGEST_BYTES = len(sha256(b""))


class TieredIndex(PrefixIndex):
    """A `PrefixIndex` whose blocks have keys: the hashes of their chains.

    Other processes find the same keys for the same tokens after the same salt, as long as the
    engine has the weights that it started with, and but for adapters and interventions, whose
    numbers and states mean nothing elsewhere. Keys of all other chains begin with `LOCAL`.

    Args:
        block_size: tokens in a block.

    Attributes:
        on_remove: is given each block that is about to hold something else, and its key.
        on_distrust: is given the keys of blocks that must never be found again.
        on_invalidate: is called when all blocks are forgotten.
        is_lasting: whether chains of requests to come may have keys for other processes: until new
            weights come, or the cache is to forget.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size, self._hash_of_block)
        self.is_lasting = True
        self.on_remove: Callable[[int, bytes], None] = lambda block, key: None
        self.on_distrust: Callable[[list[bytes]], None] = lambda keys: None
        self.on_invalidate: Callable[[], None] = lambda: None

    def remove(self, block: int) -> None:
        """Forget an indexed block, and offer it to the tiers."""
        _, key = self._entries.pop(self.content_of_block.pop(block))
        self.on_remove(block, key)

    def lasting_key(self, block: int) -> bytes | None:
        """The key of an indexed block; None if it is this process's alone."""
        _, key = self._entries[self.content_of_block[block]]
        return key if len(key) == _DIGEST_BYTES else None

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
        """The hash before the first block, which a local chain's is marked by."""
        new = request.new
        if self.is_lasting and new.prompt.adapter is None and not new.intervene:
            return sha256(repr(new.prompt.cache_root).encode())
        return LOCAL + sha256(repr((*new.prompt.cache_root, self.weight_version)).encode())

    def _hash_of_block(self, content: bytes) -> bytes:
        """The hash of a block's parent and tokens, marked if the parent is."""
        digest = sha256(content)
        is_local = len(content) > _DIGEST_BYTES + self.block_size * ID_BYTES
        return LOCAL + digest if is_local else digest
