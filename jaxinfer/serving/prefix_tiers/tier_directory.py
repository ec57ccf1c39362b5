"""The directory of a file tier: checked at start, and listed without reading a file.

Its layout is ``<fingerprint>/<first 2 digits of the key>/<key>.kv``, both in hexadecimal.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxinfer.checks import show
from jaxinfer.errors import CapacityError
from jaxinfer.serving.prefix_tiers.block_file import HASH_BYTES, remove_abandoned

_ARGUMENT = "kv_offloading_directory"
_LONGEST_SHOWN = 200
_SUFFIX = ".kv"
_DIGITS = 2 * HASH_BYTES


class BlockName(NamedTuple):
    """What names a file.

    Attributes:
        fingerprint: `HASH_BYTES` that name weights and layout.
        key: `HASH_BYTES` that name the block's tokens and all before them.
    """

    fingerprint: bytes
    key: bytes

    def path_in(self, directory: Path) -> Path:
        """The path of its file."""
        key = self.key.hex()
        return directory / self.fingerprint.hex() / key[:2] / f"{key}{_SUFFIX}"


class ListedFile(NamedTuple):
    """A file that was found at start."""

    mtime_ns: int
    name: BlockName
    size: int


def make_directory(path: str | Path) -> Path:
    """Make the directory if it does not exist, and check that it can be written to.

    Only this user may enter what is made: blocks tell what was in prompts.

    Args:
        path: may begin with "~".

    Raises:
        ValueError: one line that names the directory and the fix.
    """
    try:
        directory = Path(path).expanduser()
        is_file = directory.exists() and not directory.is_dir()
        if not is_file:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
    except (OSError, RuntimeError, ValueError) as error:
        cause, text = getattr(error, "strerror", None) or error, str(path)
        shown = text if text.isprintable() and len(text) <= _LONGEST_SHOWN else show(text)
        raise ValueError(
            f"{_ARGUMENT} {shown} can't be written to ({cause}); name a directory of your own"
        ) from None
    if is_file:
        raise ValueError(f"{_ARGUMENT} {directory} is a file; name a directory")
    return directory


def check_capacity(directory: Path, capacity_bytes: int, block_bytes: int, held_bytes: int) -> None:
    """Refuse a capacity that the disk does not have, or that holds no block.

    Args:
        directory: is on that disk.
        capacity_bytes: of all its files.
        block_bytes: of one file.
        held_bytes: of the files that are there.

    Raises:
        CapacityError: one line that names both sizes and the fix.
    """
    if capacity_bytes < block_bytes:
        raise CapacityError(
            f"kv_offloading_disk_size is {_gib(capacity_bytes)}, less than a KV block's file of "
            f"{_gib(block_bytes)}; raise it, or leave kv_offloading_directory out"
        )
    free = shutil.disk_usage(directory).free
    if capacity_bytes > free + held_bytes:
        raise CapacityError(
            f"kv_offloading_disk_size is {_gib(capacity_bytes)}, and {directory} has "
            f"{_gib(free)} free beside {_gib(held_bytes)} of blocks; lower it, or name a directory "
            "on a larger disk"
        )


def list_files(directory: Path) -> list[ListedFile]:
    """The blocks' files of all fingerprints, the least recently used first.

    Temporaries of writers that have ended are removed on the way.
    """
    found = []
    for fingerprint in _folders(directory, _DIGITS):
        for folder in _folders(Path(fingerprint.path), 2):
            remove_abandoned(Path(folder.path))
            found += _files(folder, bytes.fromhex(fingerprint.name))
    return sorted(found)


def _files(folder: "os.DirEntry[str]", fingerprint: bytes) -> Iterator[ListedFile]:
    for entry in _entries(folder.path):
        key = entry.name.removesuffix(_SUFFIX)
        if entry.name != key and _is_hexadecimal(key, _DIGITS) and key[:2] == folder.name:
            with contextlib.suppress(OSError):  # another process has removed it
                status = entry.stat(follow_symlinks=False)
                name = BlockName(fingerprint, bytes.fromhex(key))
                yield ListedFile(status.st_mtime_ns, name, status.st_size)


def _folders(directory: Path, digits: int) -> "Iterator[os.DirEntry[str]]":
    """The folders that are named by as many hexadecimal digits."""
    for entry in _entries(directory):
        if _is_hexadecimal(entry.name, digits) and entry.is_dir(follow_symlinks=False):
            yield entry


def _entries(directory: str | Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _is_hexadecimal(text: str, digits: int) -> bool:
    return len(text) == digits and not text.strip("0123456789abcdef")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g} GiB"
