"""Finds the block that holds given tokens after a given prefix: the index of the prefix cache."""

import hashlib
import itertools
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxinfer.serving.request import Request


def sha256(data: bytes) -> bytes:
    """SHA-256 of `data`: strong enough that nobody can craft a prompt that hits another's block."""
    return hashlib.sha256(data).digest()


class _Entry(NamedTuple):
    block: int
    parent: bytes
    tokens: bytes


class PrefixIndex:
    """Maps chains of full blocks of tokens to the device blocks that hold their keys and values.

    A block's hash covers its parent's hash and its own tokens. The first block's parent is a root
    made from the cache salt and the weight version, so the whole chain depends on them. A hit is
    only a hit if the stored parent and tokens are equal too.

    Args:
        block_size: tokens in a block.
        hash_function: bytes to digest; replaced in tests to provoke collisions.
    """

    def __init__(self, block_size: int, hash_function: Callable[[bytes], bytes] = sha256) -> None:
        self.block_size = block_size
        self.weight_version = 0
        self._hash = hash_function
        self._entries: dict[bytes, _Entry] = {}
        self._hash_of_block: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of_block

    def find(self, request: Request, max_blocks: int) -> list[int]:
        """The longest chain of indexed blocks that hold the request's leading tokens.

        Args:
            request: its known tokens and salt; computed hashes are kept in it.
            max_blocks: length of the chain at most; that many blocks of its tokens are known.
                Its cached tokens begin under the present weights from here on.

        Returns:
            Blocks in order of position, possibly none.
        """
        self._forget_stale_hashes(request)
        found = []
        # Mostly not even the first block is found, and the others' tokens need not be packed then.
        first = min(max_blocks, 1)
        links = itertools.chain(
            self._chain(request, 0, first), self._chain(request, first, max_blocks)
        )
        for parent, tokens, digest in links:
            entry = self._entries.get(digest)
            if entry is None or entry.tokens != tokens or entry.parent != parent:
                break
            found.append(entry.block)
        return found

    def register(self, request: Request, num_blocks: int) -> None:
        """Offer the request's leading `num_blocks` blocks to later requests.

        Their tokens must be known and the step that writes their keys and values must be
        scheduled. A chain that another block holds already stays with that block. Blocks that
        began under other weights are never offered.
        """
        first, request.num_registered_blocks = request.num_registered_blocks, num_blocks
        if request.weight_version != self.weight_version:
            return
        blocks = request.block_table[first:num_blocks]
        links = self._chain(request, first, num_blocks)
        for block, (parent, tokens, digest) in zip(blocks, links, strict=True):
            if digest not in self._entries:
                self._entries[digest] = _Entry(block, parent, tokens)
                self._hash_of_block[block] = digest

    def remove(self, block: int) -> None:
        """Forget an indexed block, because it is about to hold something else."""
        del self._entries[self._hash_of_block.pop(block)]

    def invalidate(self) -> None:
        """Forget every block and start a new weight version."""
        self.weight_version += 1
        self._entries.clear()
        self._hash_of_block.clear()

    def check_invariants(self) -> None:
        """Raise RuntimeError unless entries and blocks are one to one."""
        by_block = {entry.block: digest for digest, entry in self._entries.items()}
        if by_block != self._hash_of_block or len(by_block) != len(self._entries):
            raise RuntimeError("prefix index: entries and blocks disagree")

    def _forget_stale_hashes(self, request: Request) -> None:
        if request.weight_version != self.weight_version:
            request.weight_version = self.weight_version
            request.block_hashes.clear()

    def _chain(
        self, request: Request, first: int, stop: int
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Parent's hash, tokens and hash of the request's blocks `[first, stop)`, in order.

        Hashes are computed as far as the caller reads and kept in the request.
        """
        if first >= stop:
            return
        hashes = request.block_hashes
        parent = hashes[first - 1] if first else self._root(request)
        # Packed once for all blocks: a long prompt's chain is on the way to its first token.
        packed = self._packed_tokens(request, first, stop)
        size = len(packed) // (stop - first)
        for i in range(first, stop):
            start = (i - first) * size
            tokens = packed[start : start + size]
            if i == len(hashes):
                hashes.append(self._hash(parent + tokens))
            yield parent, tokens, hashes[i]
            parent = hashes[i]

    def _root(self, request: Request) -> bytes:
        return self._hash(repr((request.cache_salt, self.weight_version)).encode())

    def _packed_tokens(self, request: Request, first: int, stop: int) -> bytes:
        tokens = request.tokens(first * self.block_size, stop * self.block_size)
        return array("q", tokens).tobytes()
