"""Tiers in plain Python, whose copies arrive when the test says so."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxinfer.serving.prefix_tiers.block_copies import Fetch
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts


class FakeTransfers:
    """What `Transfers` promises, without threads: `wait` completes all copies that may complete."""

    block_bytes = 1

    def __init__(self, most_staged: int = 8, num_blocks: int = 1000) -> None:
        self.most_staged = most_staged
        self.num_blocks = num_blocks
        self.blocks: OrderedDict[bytes, Any] = OrderedDict()
        self.expected: set[bytes] = set()
        self.wanted: set[bytes] = set()
        self.outgoing: list[tuple[bytes, Any]] = []
        self.fetches: list[Fetch] = []
        self.num_staged = 0
        self.counts = TierCounts()
        self.policy = FetchPolicy()
        self.on_stored: Callable[[Sequence[bytes]], None] = lambda keys: None

    def __contains__(self, key: bytes) -> bool:
        return key in self.blocks

    def holds(self, key: bytes) -> bool:
        return key in self.blocks

    def expect(self, key: bytes) -> bool:
        if key in self.blocks or key in self.wanted:
            return False
        if len(self.expected) + len(self.outgoing) >= self.most_staged:
            self.counts.dropped_blocks += 1
            return False
        self.expected.add(key)
        self.wanted.add(key)
        return True

    def copy_out(self, key: bytes, content: Any) -> None:
        self.expected.discard(key)
        self.outgoing.append((key, content))

    @property
    def num_leaving(self) -> int:
        return len(self.expected) + len(self.outgoing)

    def is_leaving(self, key: bytes) -> bool:
        return key in self.wanted

    def call_off(self, keys: Sequence[bytes]) -> None:
        self.expected.difference_update(keys)
        self.wanted.difference_update(keys)

    def fetch(self, keys: Sequence[bytes]) -> Fetch:
        assert 0 < len(keys) <= self.most_staged
        fetch = Fetch(keys, [self.blocks[key] for key in keys])
        self.fetches.append(fetch)
        return fetch

    def release(self, fetch: Fetch) -> None:
        if not fetch.is_released:
            fetch.is_released = fetch.is_done = True
            self.num_staged -= len(fetch.rows)
            fetch.rows, fetch.blocks = [], []

    def forget(self, keys: Sequence[bytes]) -> None:
        self.wanted.difference_update(keys)
        for key in keys:
            self.blocks.pop(key, None)

    def clear(self) -> None:
        self.expected.clear()
        self.wanted.clear()
        self.blocks.clear()
        for fetch in self.fetches:
            self.release(fetch)

    def snapshot(self) -> TierCounts:
        return self.counts

    def settle(self) -> None:
        for fetch in self.fetches:
            self.release(fetch)
        self.wait(0)

    def close(self, last: Iterable[tuple[bytes, Any]] = ()) -> None:
        self.clear()

    def wait(self, seconds: float) -> None:
        for key, content in self.outgoing:
            if key in self.wanted:
                self.wanted.discard(key)
                self.blocks[key] = content
            self.on_stored([key])
        self.outgoing.clear()
        while len(self.blocks) > self.num_blocks:
            self.blocks.popitem(last=False)
        for fetch in self.fetches:
            if not fetch.is_done and self.num_staged + len(fetch.keys) <= self.most_staged:
                fetch.rows, fetch.is_done = fetch.blocks, True
                self.num_staged += len(fetch.rows)
        self.fetches = [fetch for fetch in self.fetches if not fetch.is_released]
