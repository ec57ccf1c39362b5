"""Copies blocks between the devices and the tiers, in threads beside the engine's own."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.serving.prefix_tiers.block_copies import Fetch
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS, BlockRow, arrays_of, num_rows
from jaxinfer.serving.prefix_tiers.fetch_policy import FetchPolicy
from jaxinfer.serving.prefix_tiers.host_tier import HostTier
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.threads.worker_thread import WorkerThread

logger = logging.getLogger("jaxinfer")

_PATIENCE_S = 0.5  # for room on the devices; then the blocks are computed again
_STEPS_OUT = 2
_ROWS_IF_READ = 2  # that a block from the next tier takes at most, with an array's padding
_SETTLING_S = 5.0  # for copies that had begun; what is called off begins no more


class Transfers:
    """The threads of both directions, and what is on its way.

    Blocks travel as rows of arrays (`BlockRow`), with a part for each device. They are gathered
    into fresh arrays before a step overwrites the pages. Copies of these to pinned host memory
    begin before that step is launched, since each waits for all that was launched before it, and
    one thread sees them arrive. A second thread brings arrays back to the devices, and a third sees
    them arrive, so that several fetches are on their way together. A later step writes them to
    pages. At most `most_staged` rows on their way in lie on the devices beside the pages, and twice
    as many on their way out, of a step and the one behind it.

    Args:
        tier: holds the blocks.
        policy: is told how long fetches take.
        row: shape, dtype and sharding of a block on the devices.
        most_staged: blocks on their way in at most; a step evicts as many.
        within: makes the context manager that the threads run in.

    Attributes:
        on_stored: is given the keys of a copy out that has ended, whether they were kept or not.
        to_devices: from arrays in host memory and a sharding, makes those on the devices.
    """

    def __init__(
        self,
        tier: HostTier,
        policy: FetchPolicy,
        row: jax.ShapeDtypeStruct,
        most_staged: int,
        within: Callable[[], AbstractContextManager[object]],
    ) -> None:
        assert isinstance(row.sharding, NamedSharding)
        self.tier, self.policy = tier, policy
        self.most_staged = most_staged
        self.block_bytes = row.size * row.dtype.itemsize
        self.on_stored: Callable[[Sequence[bytes]], None] = lambda keys: None
        self.to_devices: Callable[[Sequence[Any], jax.sharding.Sharding], list[jax.Array]] = _put
        self.counts = TierCounts(capacity_blocks=tier.num_blocks)
        self._on_devices = sharding_of_rows(row)
        self._on_host = self._on_devices.with_memory_kind("pinned_host")
        self._changed = threading.Condition()
        self._expected: set[bytes] = set()  # to be launched
        self._wanted: dict[bytes, int] = {}  # the same and those on their way, numbered
        self._num_forgotten = 0  # calls of `forget`
        self._numbers = itertools.count()
        self._num_outgoing = self._num_staged = 0
        self._fetches: set[Fetch] = set()
        self._has_news = threading.Event()
        self._is_closed = False
        self._outward = WorkerThread("jaxinfer-tiers-out", within)
        self._inward = WorkerThread("jaxinfer-tiers-in", within)
        self._arriving = WorkerThread("jaxinfer-tiers-wait", within)

    def __contains__(self, key: bytes) -> bool:
        """Whether a tier holds the block; one that is still on its way is not there yet."""
        return key in self.tier

    def holds(self, key: bytes) -> bool:
        """Whether the host tier holds the block."""
        return self.tier.holds(key)

    def expect(self, key: bytes) -> bool:
        """Whether an evicted block is to be copied out, which must then be launched.

        Not if host memory has it already, nor if too many are on their way.
        """
        if self.tier.take(key) is not None:
            return False
        with self._changed:
            if key in self._wanted:
                return False
            if len(self._expected) + self._num_outgoing >= _STEPS_OUT * self.most_staged:
                self.counts.dropped_blocks += 1
                return False
            self._expected.add(key)
            self._wanted[key] = next(self._numbers)
        return True

    @property
    def num_leaving(self) -> int:
        """Blocks that are on their way out, or will be launched."""
        return len(self._expected) + self._num_outgoing

    def is_leaving(self, key: bytes) -> bool:
        """Whether the block is on its way out, or will be launched."""
        return key in self._wanted

    def copy_out(self, keys: Sequence[bytes], arrays: Sequence[jax.Array]) -> None:
        """Keep blocks, the first rows of arrays that were launched; returns at once.

        Called before the next program is launched, for which the copies then don't wait.

        Args:
            keys: of the blocks.
            arrays: of equal size, one after the other; only the last may have padding.
        """
        count = sum(map(len, arrays))
        with self._changed:
            self._expected.difference_update(keys)
            self._num_outgoing += count
            # A block that was forgotten and then expected anew is another one.
            numbers = [self._wanted.get(key) for key in keys]
        copies: list[jax.Array] = []
        try:
            # Together: one after the other they come at half the speed.
            copies = jax.device_put(list(arrays), self._on_host)
        except Exception as error:  # memory of either side
            logger.warning("%d KV blocks were not kept: %s", len(keys), error)
        self._outward.submit(self._store, keys, numbers, count, copies)

    def call_off(self, keys: Sequence[bytes]) -> None:
        """Drop blocks whose launch has failed; those on their way end as if they were not kept."""
        with self._changed:
            self.counts.dropped_blocks += len(self._expected.intersection(keys))
            self._expected.difference_update(keys)
            for key in keys:
                self._wanted.pop(key, None)

    def fetch(self, keys: Sequence[bytes]) -> Fetch:
        """Begin to bring the leading blocks whose arrays fit the devices; returns at once."""
        blocks, num_staged, arrays = [], 0, set()
        for key in keys[: self.most_staged]:
            block = self.tier.take(key)
            more = _ROWS_IF_READ
            if block is not None:
                more = 0 if id(block.rows) in arrays else len(block.rows)
                arrays.add(id(block.rows))
            if blocks and num_staged + more > self.most_staged:
                break
            blocks.append(block)
            num_staged += more
        fetch = Fetch(keys[: len(blocks)], blocks, num_staged)
        with self._changed:
            self._fetches.add(fetch)
        self._inward.submit(self._bring, fetch)
        return fetch

    def release(self, fetch: Fetch) -> None:
        """Give up the room of a fetch, which was written to the pages or is wanted no more."""
        with self._changed:
            if fetch.is_released:
                return
            fetch.is_released = fetch.is_done = True
            if not fetch.is_coming:  # or their arrays are given up when they have come
                self._num_staged -= num_rows(fetch.rows)
            self._fetches.discard(fetch)
            fetch.rows, fetch.blocks = [], []
            self._changed.notify_all()

    def forget(self, keys: Sequence[bytes]) -> None:
        """Drop blocks from host memory, copies on their way included."""
        with self._changed:
            self._num_forgotten += 1
            for key in keys:
                self._wanted.pop(key, None)
        self.tier.forget(keys)

    def clear(self) -> None:
        """Drop all blocks from host memory, and call off what is on its way."""
        with self._changed:
            self._expected.clear()
            self._wanted.clear()
        self._release_all()
        self.tier.clear()

    def wait(self, seconds: float) -> None:
        """Return once the copies of a fetch have begun or ended, or after some time."""
        self._has_news.wait(seconds)
        self._has_news.clear()

    def settle(self) -> None:
        """Call off all fetches and return when no array of the devices is in use any more."""
        self._release_all()
        self._outward.wait()
        # A thread that still reads a file brings nothing to the devices afterwards.
        self._inward.wait(_SETTLING_S)
        self._arriving.wait(_SETTLING_S)

    def close(self, last: Iterable[tuple[bytes, Any]] = ()) -> None:
        """End the threads, with what is on its way out in the tiers; may be called again.

        Args:
            last: keys and arrays of more blocks for the tier behind host memory, the most valuable
                first; read as far as that keeps them.
        """
        self._release_all()
        self._outward.close()
        if self._is_closed:
            return
        self._is_closed = True
        self._inward.close(_SETTLING_S)
        self._arriving.close(_SETTLING_S)
        self.tier.close(last)

    def snapshot(self) -> TierCounts:
        """The counts so far."""
        self.tier.count(self.counts)
        return self.counts.plus(TierCounts())

    def _release_all(self) -> None:
        with self._changed:
            fetches = list(self._fetches)
        for fetch in fetches:
            self.release(fetch)

    def _store(
        self,
        keys: Sequence[bytes],
        numbers: Sequence[int | None],
        count: int,
        stored: Sequence[jax.Array],
    ) -> None:
        """Put blocks into the tier once the arrays are there, which had `count` rows if any."""
        try:
            jax.block_until_ready(stored)
        except Exception as error:  # a lost block costs its computation
            logger.warning("%d KV blocks were not kept: %s", len(keys), error)
            stored = []
        with self._changed:
            self._num_outgoing -= count
            if stored:
                self.counts.bytes_out += count * self.block_bytes
            else:
                self.counts.dropped_blocks += len(keys)
        blocks = (BlockRow(rows, place) for rows in stored for place in range(len(rows)))
        try:
            for key, number, block in zip(keys, numbers, blocks, strict=False):
                self._keep(key, number, block)
        except Exception as error:
            logger.warning("KV blocks were not kept: %s", error)
        finally:
            with self._changed:
                for key, number in zip(keys, numbers, strict=True):
                    if self._is_wanted(key, number):
                        del self._wanted[key]
            self.on_stored(keys)

    def _keep(self, key: bytes, number: int | None, block: BlockRow) -> None:
        """Put a block into the tier, unless it is not wanted any more before that or meanwhile."""
        so_far = self._num_forgotten
        if self._is_wanted(key, number):
            self.tier.put(key, block)
            if not self._is_wanted(key, number):
                # What was cleared or called off alone may have a file of an earlier computation.
                has_forgotten = self._num_forgotten != so_far
                drop = self.tier.forget if has_forgotten else self.tier.drop
                drop([key])

    def _is_wanted(self, key: bytes, number: int | None) -> bool:
        return number is not None and self._wanted.get(key) == number

    def _bring(self, fetch: Fetch) -> None:
        """Bring blocks to the devices, as soon as there is room."""
        most_staged = max(self.most_staged, fetch.num_staged)
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: fetch.is_released or self._num_staged + fetch.num_staged <= most_staged,
                timeout=_PATIENCE_S,
            )
            if fetch.is_released:
                return
            blocks = fetch.blocks
            if has_room:
                self._num_staged += fetch.num_staged
            else:
                fetch.blocks, fetch.is_done = [], True
        if not has_room:
            return self._has_news.set()
        rows: list[BlockRow] = []
        try:
            found = self._found(fetch, blocks)
            if found and not fetch.is_released:
                rows = self._on_device(found)
        except Exception as error:
            logger.warning("%d KV blocks are computed again: %s", len(fetch.keys), error)
        with self._changed:
            if not fetch.is_released:
                fetch.rows, fetch.blocks = rows, []
            fetch.is_coming = True  # last: it is read without the lock
        self._has_news.set()
        self._arriving.submit(self._arrive, fetch, rows)

    def _arrive(self, fetch: Fetch, rows: list[BlockRow]) -> None:
        """Have a fetch be done when its arrays are on the devices."""
        try:
            self._await(rows)
        except Exception as error:
            logger.warning("%d KV blocks are computed again: %s", len(fetch.keys), error)
            rows = []
        num_bytes = len(rows) * self.block_bytes
        with self._changed:
            self._num_staged -= fetch.num_staged
            fetch.is_coming = False
            if not fetch.is_released:
                self._num_staged += num_rows(rows)
                fetch.rows, fetch.is_done = rows, True
            self.counts.bytes_in += num_bytes
            self._changed.notify_all()
        self._has_news.set()

    def _await(self, rows: Sequence[BlockRow]) -> None:
        """Wait for a fetch's arrays, and note how fast they come.

        The first one waits for steps that were launched before, as would computing the blocks: the
        time is that of the others.
        """
        first, *others = arrays_of(rows) or [()]
        jax.block_until_ready(first)
        start = time.perf_counter()
        jax.block_until_ready(others)
        num_others = sum(block.rows is not first for block in rows)
        self.policy.fetched.note(num_others * self.block_bytes, time.perf_counter() - start)

    def _on_device(self, blocks: Sequence[BlockRow]) -> list[BlockRow]:
        """Blocks in host memory, on their way to the devices by whole arrays."""
        arrays = arrays_of(blocks)
        copies = self.to_devices(arrays, self._on_devices)
        copied = {id(old): new for old, new in zip(arrays, copies, strict=True)}
        return [BlockRow(copied[id(rows)], place) for rows, place in blocks]

    def _found(self, fetch: Fetch, blocks: Sequence[BlockRow | None]) -> list[BlockRow]:
        """The leading blocks in host memory; those that are not come from the next tier."""
        found: list[BlockRow] = []
        num_read, start = 0, time.perf_counter()
        while len(found) < len(blocks) and not fetch.is_released:
            first = len(found)
            block = blocks[first]
            if block is not None:
                found.append(block)
                continue
            lacking = itertools.takewhile(lambda each: each is None, blocks[first:])
            keys = fetch.keys[first : first + min(len(list(lacking)), MOST_BLOCKS)]
            read = self.tier.take_next(keys)
            found += read
            num_read += len(read)
            if len(read) < len(keys):
                break
        self.policy.read.note(num_read * self.block_bytes, time.perf_counter() - start)
        self.counts.next_hits += num_read
        return found


def sharding_of_rows(row: jax.ShapeDtypeStruct) -> NamedSharding:
    """The sharding of an array of several blocks."""
    assert isinstance(row.sharding, NamedSharding)
    return NamedSharding(row.sharding.mesh, PartitionSpec(None, *row.sharding.spec))


def _put(arrays: Sequence[Any], sharding: jax.sharding.Sharding) -> list[jax.Array]:
    """Arrays on the devices, of those in host memory."""
    return jax.device_put(list(arrays), sharding)
