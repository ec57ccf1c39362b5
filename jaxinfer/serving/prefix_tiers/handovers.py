"""Prompts on their way from a prefill engine to a decode engine, and the blocks kept for them."""

import dataclasses
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from jaxinfer.serving.prefix_tiers.handover_counts import HandoverCounts
from jaxinfer.serving.prefix_tiers.pinned_tier import PinnedTier

LONGEST_COPY_S = 20.0
"""After a prompt was computed; then it is handed over with the blocks that have arrived."""


@dataclasses.dataclass(slots=True, eq=False)
class Handover:
    """One prompt, from its way to a prefill engine to its first step on a decode engine.

    Attributes:
        key: of the request.
        first: leading blocks that the decode engine has.
        stop: the block behind the last one that is handed over.
        wanted: the same if there had been room for all.
        num_offered: leading blocks that were stored, or not, so far.
        num_cached_tokens: leading tokens that nobody computed for this request.
        pinned: keys of blocks that the tier keeps for it.
        on_way: of these, blocks that are still being copied.
        computed_at: when the prefill engine had all of its prompt, by `time.monotonic`.
    """

    key: str
    first: int
    stop: int
    wanted: int
    num_offered: int
    num_cached_tokens: int
    pinned: list[bytes] = dataclasses.field(default_factory=list)
    on_way: set[bytes] = dataclasses.field(default_factory=set)
    computed_at: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether nothing more is to come, or it takes too long."""
        if self.computed_at is None:
            return False
        return not self.on_way or time.monotonic() > self.computed_at + LONGEST_COPY_S


class Handovers:
    """All handovers of a group of engines that share a tier. Thread-safe.

    Args:
        tier: holds the blocks, pinned from the time at which they are offered until the request
            runs on a decode engine, or has ended.
        block_size: tokens of a block.

    Attributes:
        on_news: is called in any thread when blocks have arrived.
    """

    def __init__(self, tier: PinnedTier, block_size: int) -> None:
        self._tier, self._block_size = tier, block_size
        self._lock = threading.Lock()
        self._by_key: dict[str, Handover] = {}
        self._waiting: defaultdict[bytes, set[Handover]] = defaultdict(set)
        self.counts = HandoverCounts()
        self.on_news: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: str) -> Handover | None:
        """The handover of a request that has not run on its decode engine yet."""
        return self._by_key.get(key)

    def begin(self, key: str, first: int, stop: int) -> Handover | None:
        """Keep room for a prompt's blocks `[first, stop)`, or the leading ones; None without room.

        Args:
            key: of a request that has no handover.
        """
        granted = self._tier.reserve(stop - first)
        if granted == 0:
            self.note_recomputed()
            return None
        cached = first * self._block_size
        handover = Handover(key, first, first + granted, stop, first, cached)
        with self._lock:
            self._by_key[key] = handover
        return handover

    def offer(self, handover: Handover, keys: Sequence[bytes]) -> None:
        """Pin blocks of a handover, all of which are on their way until `arrived`."""
        with self._lock:
            handover.num_offered += len(keys)
            if self._by_key.get(handover.key) is not handover:
                return  # it has ended
            self._tier.pin(keys)
            handover.pinned += keys
            handover.on_way.update(keys)
            for key in keys:
                self._waiting[key].add(handover)

    def arrived(self, keys: Sequence[bytes]) -> None:
        """Await these blocks no more: they are in the tier, or lost."""
        with self._lock:
            for key in keys:
                for handover in self._waiting.pop(key, ()):
                    handover.on_way.discard(key)
        self.on_news()

    def computed(self, handover: Handover, num_cached_tokens: int) -> None:
        """Note that the prefill engine is done, and how many tokens it had found."""
        cached = max(handover.num_cached_tokens, num_cached_tokens)
        handover.num_cached_tokens = cached
        handover.computed_at = time.monotonic()

    def offer_again(self) -> None:
        """Have all blocks of prompts that are being computed be offered: the tier lost them."""
        with self._lock:
            for handover in self._by_key.values():
                if handover.computed_at is None:
                    handover.num_offered = handover.first

    def note_recomputed(self) -> None:
        """Count a prompt that its decode engine computes, though it was to be handed over."""
        with self._lock:
            self.counts.recomputed_prompts += 1

    def taken(self, key: str, num_found_tokens: int) -> Handover | None:
        """End a handover whose request begins to run with so many tokens found; None if none."""
        handover = self.end(key)
        if handover is None:
            return None
        num_found = num_found_tokens // self._block_size
        num_blocks = max(min(num_found, handover.stop) - handover.first, 0)
        with self._lock:
            counts = self.counts
            counts.recomputed_prompts += num_found < handover.wanted
            counts.prompts += num_blocks > 0
            counts.blocks += num_blocks
            counts.tokens += num_blocks * self._block_size
            if num_blocks and handover.computed_at is not None:
                counts.seconds += time.monotonic() - handover.computed_at
        return handover

    def end(self, key: str) -> Handover | None:
        """Keep nothing for a request any more; None if nothing was."""
        with self._lock:
            handover = self._by_key.pop(key, None)
            if handover is None:
                return None
            for block in handover.on_way:
                self._waiting[block].discard(handover)
                if not self._waiting[block]:
                    del self._waiting[block]
            self._tier.unpin(handover.pinned, handover.stop - handover.first)
        return handover
