"""The file of one KV block: a header that says what it holds, the data, a checksum over both.

A file is written under a temporary name and renamed, so a process that is killed leaves no half
block under a block's name. The temporary stays locked while it is written: one that is not locked
belongs to a process that has ended.
"""

import contextlib
import fcntl
import os
import struct
import tempfile
import zlib
from pathlib import Path

FORMAT_VERSION = 1
"""Of these files; a file of another version counts as damaged."""
HASH_BYTES = 32
"""Of a block's key and of a fingerprint."""

_MAGIC = b"jaxinfKV"
_HEADER = struct.Struct(f"<8sI{HASH_BYTES}s{HASH_BYTES}sQ")
# CRC-32 from zlib runs at 4.3 GB/s, three times as fast as a disk's cold read of 1.4; the standard
# library's cryptographic hashes are slower than the disk. It finds every change of up to 32 bits.
_CHECKSUM = struct.Struct("<I")
_OVERHEAD = _HEADER.size + _CHECKSUM.size
_TEMPORARY = ".writing-"


class DamagedBlockError(Exception):
    """A file does not hold the block that its name promises."""


def file_bytes(block_bytes: int) -> int:
    """Size of the file of a block of `block_bytes`."""
    return _OVERHEAD + block_bytes


def write_block(path: Path, fingerprint: bytes, key: bytes, data: memoryview) -> None:
    """Write a block's file; one that is there already is replaced.

    Args:
        path: of the file; its directory exists.
        fingerprint: `HASH_BYTES` that name weights and layout.
        key: `HASH_BYTES` that name the block's tokens and all before them.
        data: the block, of format "B".

    Raises:
        OSError: it can't be written; nothing is left of it.
    """
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, fingerprint, key, len(data))
    checksum = _CHECKSUM.pack(zlib.crc32(data, zlib.crc32(header)))
    handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            _lock(handle)
            for part in (memoryview(header + checksum), data):
                while part:
                    part = part[file.write(part) :]  # a nearly full disk takes a part
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_block(path: Path, fingerprint: bytes, key: bytes, block_bytes: int) -> bytes:
    """The block in a file, checked.

    Raises:
        DamagedBlockError: the file holds another block, or a byte of it has changed.
        OSError: it can't be read; FileNotFoundError if it is gone.
    """
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != file_bytes(block_bytes):
            raise DamagedBlockError(f"{path} has another size")
        head, data = file.read(_OVERHEAD), file.readall()
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, fingerprint, key, block_bytes)
    if head != header + _CHECKSUM.pack(zlib.crc32(data, zlib.crc32(header))):
        raise DamagedBlockError(f"{path} has changed")
    return data


def remove_abandoned(directory: Path) -> None:
    """Remove the temporaries in a directory whose writers have ended."""
    for path in directory.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if _lock(file.fileno()):
                path.unlink()


def _lock(handle: int) -> bool:
    """Lock an open file until it is closed; False if another has, or if files can't be locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
