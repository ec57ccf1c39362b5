"""KV blocks in files: a bounded store on disk that outlives the process."""

import contextlib
import dataclasses
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Buffer, Iterable
from pathlib import Path

from jaxinfer.serving.prefix_tiers.block_file import (
    HASH_BYTES,
    DamagedBlockError,
    file_bytes,
    read_block,
    write_block,
)
from jaxinfer.serving.prefix_tiers.tier_directory import (
    BlockName,
    check_capacity,
    list_files,
    make_directory,
)

logger = logging.getLogger("jaxinfer")


@dataclasses.dataclass(frozen=True, slots=True)
class FileTierCounts:
    """What happened to a file tier's blocks so far.

    Attributes:
        written: blocks that were written.
        read: blocks that were read whole.
        evicted: files that were removed for the capacity's sake.
        damaged: files whose content had changed; removed.
        lost: files that were listed and could not be read, mostly because another process had
            removed them.
    """

    written: int = 0
    read: int = 0
    evicted: int = 0
    damaged: int = 0
    lost: int = 0


class FileTier:
    """Keeps KV blocks in files, by key; the least recently used go when they exceed the capacity.

    What is lost costs a computation and never an answer: `read` returns None for a block that is
    gone or whose bytes have changed, and a disk that fails ends the writing with one warning.

    A file holds one block: files of 1, 4 and 16 blocks of an 8B model (2.25 MiB each) are written
    at the same speed, 2 to 4 GB/s into the page cache, and one block can be evicted alone.

    Several engines may share a directory. Each sees the files that were there at its start and its
    own, and bounds these; a file that another one removed is a miss. Files of other fingerprints
    count, so those of replaced weights go in time. All methods may be called from any thread:
    writes take turns, and reads wait for nothing.

    Args:
        directory: made if it does not exist; see `tier_directory`.
        fingerprint: of weights and layout, 64 hexadecimal digits; from `startup.fingerprint`.
        block_bytes: of every block's data.
        capacity_bytes: most bytes of all files.

    Raises:
        ValueError: the directory can't be used.
        CapacityError: the capacity is more than the disk has, or holds no block.
    """

    def __init__(
        self, directory: str | Path, fingerprint: str, block_bytes: int, capacity_bytes: int
    ) -> None:
        self._directory = Path(directory).expanduser()
        self._fingerprint = bytes.fromhex(fingerprint)
        if len(self._fingerprint) != HASH_BYTES:
            raise ValueError(f"a fingerprint has {2 * HASH_BYTES} digits, got {fingerprint!r}")
        self.block_bytes = block_bytes
        self.capacity_bytes = capacity_bytes
        self._file_bytes = file_bytes(block_bytes)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        # Sizes of files, the least recently used first.
        self._sizes: OrderedDict[BlockName, int] = OrderedDict()
        self._keys: set[bytes] = set()  # of this fingerprint's files
        self._num_bytes = 0
        self._forgotten: list[BlockName] = []
        self._counts = FileTierCounts()
        self._is_writable = True
        self._has_warned = False
        make_directory(self._directory)
        self._list()
        check_capacity(self._directory, capacity_bytes, self._file_bytes, self._num_bytes)
        self._remove(self._make_room(0))

    def __contains__(self, key: bytes) -> bool:
        """Whether a block is kept, as far as this process knows; the disk is not asked."""
        return key in self._keys

    def touch(self, key: bytes) -> bool:
        """Whether a block is kept; it is then the most recently used."""
        with self._lock:
            if key not in self._keys:
                return False
            self._sizes.move_to_end(BlockName(self._fingerprint, key))
            return True

    @property
    def num_blocks(self) -> int:
        """Blocks of this fingerprint."""
        return len(self._keys)

    @property
    def capacity_blocks(self) -> int:
        """Blocks that fit, if there are no others' files."""
        return self.capacity_bytes // self._file_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the files of all fingerprints."""
        return self._num_bytes

    @property
    def is_writable(self) -> bool:
        """False once the disk has failed."""
        return self._is_writable

    @property
    def counts(self) -> FileTierCounts:
        """What happened so far."""
        return self._counts

    def read(self, key: bytes) -> bytes | None:
        """A block's data; None if it is not kept, was lost, or has changed."""
        if not self.touch(key):
            return None
        name = BlockName(self._fingerprint, key)
        path = name.path_in(self._directory)
        try:
            data = read_block(path, self._fingerprint, key, self.block_bytes)
        except DamagedBlockError as error:
            self._remove([name])
            self._lose(name, error, damaged=1)
            return None
        except OSError as error:
            self._lose(name, error, lost=1)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # for the order of use at the next start
        with self._lock:
            self._count(read=1)
        return data

    def write(self, key: bytes, data: Buffer) -> None:
        """Keep a block, unless it is kept already or the disk has failed.

        Raises:
            ValueError: the data has another size than blocks have.
        """
        view = memoryview(data).cast("B")
        if len(view) != self.block_bytes or len(key) != HASH_BYTES:
            raise ValueError(
                f"a block has {self.block_bytes} bytes and a key of {HASH_BYTES}, got {len(view)} "
                f"and {len(key)}"
            )
        name = BlockName(self._fingerprint, key)
        with self._writing:
            if self.touch(key) or not self._is_writable:
                return
            with self._lock:
                evicted = self._make_room(self._file_bytes)
            self._remove(evicted)
            try:
                self._write(name, view)
            except FileNotFoundError as error:  # by another engine that starts: one lost block
                self._lose(name, error, lost=1)
                return
            except OSError as error:
                self._stop_writing(error)
                return
            with self._lock:
                self._add(name, self._file_bytes)
                self._count(written=1)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Forget blocks now, the disk is not asked; their files are `remove_forgotten`'s."""
        with self._lock:
            names = [BlockName(self._fingerprint, key) for key in keys]
            known = [name for name in names if name in self._sizes]
            for name in known:
                self._drop(name)
            self._forgotten += known

    def remove_forgotten(self) -> None:
        """Remove the files of forgotten blocks."""
        with self._writing:
            with self._lock:
                names, self._forgotten = self._forgotten, []
                names = [name for name in names if name not in self._sizes]
            self._remove(names)

    def _write(self, name: BlockName, data: memoryview) -> None:
        path = name.path_in(self._directory)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_block(path, name.fingerprint, name.key, data)

    def _list(self) -> None:
        """Take up the files that are there; those that are no block of this size are removed."""
        misfits = []
        for file in list_files(self._directory):
            if file.name.fingerprint == self._fingerprint and file.size != self._file_bytes:
                misfits.append(file.name)
            else:
                self._add(file.name, file.size)
        self._remove(misfits)

    def _make_room(self, num_bytes: int) -> list[BlockName]:
        """Forget the least recently used until this many bytes fit; returns those to remove."""
        evicted = []
        while self._num_bytes + num_bytes > self.capacity_bytes:
            evicted.append(next(iter(self._sizes)))
            self._drop(evicted[-1])
        self._count(evicted=len(evicted))
        return evicted

    def _add(self, name: BlockName, size: int) -> None:
        self._sizes[name] = size
        self._num_bytes += size
        if name.fingerprint == self._fingerprint:
            self._keys.add(name.key)

    def _drop(self, name: BlockName) -> None:
        """Forget a file, if it is known."""
        size = self._sizes.pop(name, None)
        if size is not None:
            self._num_bytes -= size
            if name.fingerprint == self._fingerprint:
                self._keys.remove(name.key)

    def _lose(self, name: BlockName, cause: Exception, **counts: int) -> None:
        """Forget a file that could not be read; warns once, unless another process removed it."""
        with self._lock:
            self._drop(name)
            self._count(**counts)
        if not self._has_warned and not isinstance(cause, FileNotFoundError):
            self._has_warned = True
            logger.warning("a KV block is computed again, as all that can't be read: %s", cause)

    def _remove(self, names: Iterable[BlockName]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                name.path_in(self._directory).unlink()

    def _stop_writing(self, error: OSError) -> None:
        self._is_writable = False
        logger.warning(
            "no more KV blocks are written to %s until the next start, and those in it are still "
            "read: %s",
            self._directory,
            error.strerror or error,
        )

    def _count(self, **more: int) -> None:
        counts = self._counts
        self._counts = dataclasses.replace(
            counts, **{name: getattr(counts, name) + count for name, count in more.items()}
        )
