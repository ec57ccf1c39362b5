"""Finds the block that holds given tokens after a given prefix: the index of the prefix cache."""

import hashlib
from collections.abc import Callable, Iterator

from jaxinfer.serving.requests.packed_ids import ID_BYTES
from jaxinfer.serving.requests.request import Request


def sha256(data: bytes) -> bytes:
    """SHA-256 of `data`: strong enough that a prompt can't be crafted that hits another's block."""
    return hashlib.sha256(data).digest()


class PrefixIndex:
    """Maps chains of full blocks of tokens to the device blocks that hold their keys and values.

    A block is found by its parent's hash and its own tokens, and its hash covers both. The first
    block's parent is a root made from the cache salt, the adapter and the weight version, so the
    whole chain depends on them. The tokens of a hit are equal, not only their hashes.

    Hashing a long prompt's blocks takes the host a while, and the device need not wait for it:
    `settle` indexes the registered blocks once the step is launched, `settle_for` earlier, before
    the lookup of a request that may share them.

    Args:
        block_size: tokens in a block.
        hash_function: bytes to digest; replaced in tests to provoke collisions.

    Attributes:
        content_of_block: of every indexed block its parent's hash and its packed tokens.
        unsettled: registered blocks that `settle` has to index: request, first and stop.
    """

    def __init__(self, block_size: int, hash_function: Callable[[bytes], bytes] = sha256) -> None:
        self.block_size = block_size
        self.weight_version = 0
        self.content_of_block: dict[int, bytes] = {}
        self._hash = hash_function
        # Content -> block and hash. Plain tuples: the garbage collector stops following them.
        self._entries: dict[bytes, tuple[int, bytes]] = {}
        self.unsettled: list[tuple[Request, int, int]] = []
        self._unsettled_starts: set[tuple[object, bytes]] = set()

    def __len__(self) -> int:
        return len(self.content_of_block)

    def __contains__(self, block: int) -> bool:
        return block in self.content_of_block

    def find(self, request: Request, max_blocks: int) -> list[int]:
        """The longest chain of indexed blocks that hold the request's leading tokens.

        Args:
            request: its known tokens and salt; the found blocks' hashes are kept in it.
            max_blocks: length of the chain at most; that many blocks of its tokens are known.
                Its cached tokens begin under the present weights from here on.

        Returns:
            Blocks in order of position, possibly none.
        """
        self._forget_stale_hashes(request)
        found, hashes = [], []
        parent = self._root(request)
        for tokens in self._tokens_by_block(request, 0, max_blocks):
            entry = self._entries.get(parent + tokens)
            if entry is None:
                break
            # Equal contents have equal hashes, so that nothing is hashed here.
            block, parent = entry
            found.append(block)
            hashes.append(parent)
        request.blocks.hashes[: len(hashes)] = hashes
        return found

    def register(self, request: Request, num_blocks: int) -> None:
        """Offer the request's leading `num_blocks` blocks to later requests, from `settle` on.

        Their tokens must be known and the step that writes their keys and values must be
        scheduled. A chain that another block holds already stays with that block. Blocks that
        began under other weights are never offered. The request must hold them until `settle`.
        """
        held = request.blocks
        first, held.num_registered = held.num_registered, num_blocks
        if held.weight_version == self.weight_version:
            self.unsettled.append((request, first, num_blocks))
            self._unsettled_starts.add(self._start(request))

    def settle(self) -> None:
        """Index the blocks that were registered."""
        for request, first, stop in self.unsettled:
            self._index(request, first, stop)
        self._forget_unsettled()

    def settle_for(self, request: Request) -> None:
        """`settle` if blocks were registered that this request could share."""
        if not self.unsettled or request.num_known_tokens < self.block_size:
            return
        if self._start(request) in self._unsettled_starts:
            self.settle()

    def remove(self, block: int) -> None:
        """Forget an indexed block, because it is about to hold something else."""
        del self._entries[self.content_of_block.pop(block)]

    def remove_chain(self, request: Request) -> list[int]:
        """Forget the blocks of a request's tokens, others' too; returns the indexed ones."""
        self.settle()
        if request.blocks.weight_version != self.weight_version:
            return []  # The present weights' blocks are none of its own.
        removed = []
        parent = self._root(request)
        num_blocks = request.num_known_tokens // self.block_size
        for tokens in self._tokens_by_block(request, 0, num_blocks):
            content = parent + tokens
            parent = self._hash(content)
            if content in self._entries:
                block, _ = self._entries[content]
                self.remove(block)
                removed.append(block)
        return removed

    def invalidate(self) -> None:
        """Forget every block and start a new weight version."""
        self.weight_version += 1
        self._forget_unsettled()
        self._entries.clear()
        self.content_of_block.clear()

    def check_invariants(self) -> None:
        """Raise RuntimeError unless contents and blocks are one to one."""
        by_block = {block: content for content, (block, _) in self._entries.items()}
        if by_block != self.content_of_block or len(by_block) != len(self._entries):
            raise RuntimeError("prefix index: contents and blocks disagree")

    def _forget_unsettled(self) -> None:
        """Drop what was registered and not indexed."""
        self.unsettled.clear()
        self._unsettled_starts.clear()

    def _start(self, request: Request) -> tuple[object, bytes]:
        """What two requests must have in common to share any block: the first, and the root."""
        return request.new.prompt.cache_root, request.packed_tokens(0, self.block_size)

    def _forget_stale_hashes(self, request: Request) -> None:
        """Drop hashes that a request computed under earlier weights."""
        held = request.blocks
        if held.weight_version != self.weight_version:
            held.weight_version = self.weight_version
            held.hashes.clear()

    def _index(self, request: Request, first: int, stop: int) -> None:
        """Index the request's blocks `[first, stop)`; their hashes are kept in it."""
        hashes = request.blocks.hashes
        parent = hashes[first - 1] if first else self._root(request)
        blocks = request.blocks.table[first:stop]
        tokens_by_block = self._tokens_by_block(request, first, stop)
        for i, (block, tokens) in enumerate(zip(blocks, tokens_by_block, strict=True), first):
            content = parent + tokens
            if i == len(hashes):
                hashes.append(self._hash(content))
            parent = hashes[i]
            if content not in self._entries:
                self._entries[content] = (block, parent)
                self.content_of_block[block] = content

    def _tokens_by_block(self, request: Request, first: int, stop: int) -> Iterator[bytes]:
        """The packed tokens of each of the request's blocks `[first, stop)`."""
        # Packed once for all blocks: slices of bytes cost much less than slices of tokens.
        packed = request.packed_tokens(first * self.block_size, stop * self.block_size)
        size = self.block_size * ID_BYTES
        return (packed[start : start + size] for start in range(0, len(packed), size))

    def _root(self, request: Request) -> bytes:
        """The hash that stands before the first block: of salt, adapter and weights."""
        root = (*request.new.prompt.cache_root, self.weight_version)
        return self._hash(repr(root).encode())
