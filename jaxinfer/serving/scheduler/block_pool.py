"""The pool of KV-cache blocks: free list, reference counts, and cached blocks to evict."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.prefix_index import PrefixIndex

MIN_BLOCK_SIZE = 8
MAX_BLOCK_SIZE = 256


class BlockPool:
    """Hands out the device's KV-cache blocks and keeps freed ones for prefix hits.

    A block is held (by one request or, through prefix hits, by several), cached (no request holds
    it, its content is indexed), or free. Cached blocks are given away when no free one is left, the
    least recently used first; a sequence gives its blocks back tail first, so that a prefix
    outlives what follows it.

    Args:
        num_blocks: pages P of the device arrays, 2 or more. Block 0 is never handed out: the
            device writes padding there, so `num_blocks - 1` blocks can be used.
        block_size: tokens in a block, a power of two from 8 to 256.
        enable_prefix_caching: whether freed blocks may be found again.
        index: the prefix index; replaced in tests.

    Raises:
        ValueError: for a size out of range.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        index: PrefixIndex | None = None,
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (block 0 is reserved): {num_blocks}")
        if block_size & (block_size - 1) or not MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE:
            raise ValueError(
                f"block_size must be a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}: "
                f"{block_size}"
            )
        self.num_blocks = num_blocks
        self.num_usable_blocks = num_blocks - 1
        """Blocks that can be handed out at all: free + cached + held."""
        self.num_free_blocks = num_blocks - 1
        """Blocks that `allocate` can hand out now, cached ones included."""
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_frees = 0
        """Calls of `free` so far; as long as it stays, no more blocks can have become available."""
        self.index = PrefixIndex(block_size) if index is None else index
        """The prefix cache's contents; changed by the pool alone."""
        self._num_holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that no request holds and a prefix hit can revive."""
        return len(self._cached)

    @property
    def cached_blocks(self) -> Iterable[int]:
        """These blocks, the most recently used first."""
        return reversed(self._cached)

    @property
    def weight_version(self) -> int:
        """How often the cached content was invalidated."""
        return self.index.weight_version

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks for one holder; their content is undefined.

        Raises:
            RuntimeError: if fewer are available; nothing is taken then.
        """
        if count > self.num_free_blocks:
            raise RuntimeError(f"{count} blocks asked for, {self.num_free_blocks} available")
        num_kept = max(len(self._free) - count, 0)
        blocks = self._free[num_kept:]
        del self._free[num_kept:]
        blocks.reverse()
        while len(blocks) < count:
            block, _ = self._cached.popitem(last=False)
            self.index.remove(block)
            blocks.append(block)
        for block in blocks:
            self._num_holders[block] = 1
        self.num_free_blocks -= count
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Give back a sequence's blocks, by position; RuntimeError if one is not held."""
        self.num_frees += 1
        self.index.settle()
        num_holders, indexed = self._num_holders, self.index.content_of_block
        for block in reversed(blocks):
            left = num_holders[block] - 1
            if left < 0:
                raise RuntimeError(f"block {block} is freed but no request holds it")
            num_holders[block] = left
            if left == 0:
                self.num_free_blocks += 1
                if block in indexed:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def find_prefix(self, request: Request) -> list[int]:
        """Cached blocks with the request's leading tokens; always leaves a token to compute.

        They are not held yet: see `share`. Where given tokens are scored, it finds nothing from the
        first that predicts one on, because these positions must be computed.
        """
        self.index.settle_for(request)
        return self._look_up(request)

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens in the blocks that `find_prefix` would return, without unsettled ones.

        Changes nothing here, so that any thread may ask.
        """
        return len(self._look_up(request)) * self.block_size

    def settle(self) -> None:
        """Index all blocks that were registered, which `find_prefix` would do when it must."""
        self.index.settle()

    def num_available_beside(self, prefix: list[int]) -> int:
        """Blocks that `allocate` could hand out after `share(prefix)`."""
        return self.num_free_blocks - sum(self._num_holders[block] == 0 for block in prefix)

    def share(self, blocks: list[int]) -> None:
        """Add a holder to each of `blocks`, which `find_prefix` has just returned."""
        for block in blocks:
            if self._num_holders[block] == 0:
                del self._cached[block]
                self.num_free_blocks -= 1
            self._num_holders[block] += 1

    def register(self, request: Request) -> None:
        """Offer the request's full blocks of known, scheduled tokens to all who come later.

        May be called as soon as the step that fills a block is scheduled: the device runs steps
        in order and within a step each layer writes before it attends, so a request that reads the
        block, in the same step or later, reads it filled.
        """
        num_blocks = min(request.num_known_tokens, request.num_cached_tokens) // self.block_size
        if self.enable_prefix_caching and num_blocks > request.blocks.num_registered:
            self.index.register(request, num_blocks)

    def distrust(self, request: Request) -> None:
        """Never find the blocks of the request's tokens again: they may hold NaN.

        That goes for a prefix that it found, too: the step that filled it may not have been read
        yet, or have ended before it was, and one bad block would fail all that ever find it. Who
        holds such blocks keeps them, and fails by itself if they are bad. The price is that they
        are computed once more.

        To be called before the request's own blocks are freed.
        """
        for block in self.index.remove_chain(request):
            if self._num_holders[block] == 0:
                del self._cached[block]
                self._free.append(block)

    def invalidate(self) -> None:
        """Forget all cached content: the weights have changed or the device cache is gone.

        Held blocks stay held, and their requests go on with what is in them, but no other request
        will find them, nor any block that these requests fill later.
        """
        self.index.invalidate()
        self._free.extend(reversed(self._cached))
        self._cached.clear()

    def check_invariants(self, holders: Iterable[list[int]]) -> None:
        """Raise RuntimeError unless every block is accounted for exactly once."""
        counts = Counter(block for table in holders for block in table)
        held = [block for block in range(self.num_blocks) if self._num_holders[block]]
        if counts != Counter({block: self._num_holders[block] for block in held}):
            raise RuntimeError("block pool: reference counts differ from the number of holders")
        accounted = sorted([*self._free, *self._cached, *held])
        if accounted != list(range(1, self.num_blocks)):
            raise RuntimeError("block pool: free + cached + held blocks differ from the total")
        if self.num_free_blocks != len(self._free) + len(self._cached):
            raise RuntimeError("block pool: the number of free blocks is wrong")
        if any(block in self.index for block in self._free):
            raise RuntimeError("block pool: a free block is indexed")
        if any(block not in self.index for block in self._cached):
            raise RuntimeError("block pool: a cached block is not indexed")
        self.index.check_invariants()

    def most_prefix_blocks(self, request: Request) -> int:
        """Blocks of the request's leading tokens that may be found instead of computed."""
        num_usable = request.num_known_tokens - 1
        if not self.enable_prefix_caching:
            num_usable = 0
        elif request.scored:
            num_usable = min(num_usable, request.scored.start)
        return num_usable // self.block_size

    def _look_up(self, request: Request) -> list[int]:
        """Cached blocks with the request's leading tokens, if it may use any."""
        return self.index.find(request, self.most_prefix_blocks(request))
