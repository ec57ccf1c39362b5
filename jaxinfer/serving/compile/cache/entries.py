"""A directory of self-describing files, each written atomically."""

import contextlib
import hashlib
import os
import tempfile
import zlib
from pathlib import Path

from jaxinfer.serving.compile.cache.private_directory import is_ours

_DIGEST = hashlib.sha256().digest_size
_FAST = 1  # zlib level; a program shrinks to a fifth


class Entries:
    """Bytes on disk by name, compressed.

    An entry counts only if it is this user's (or root's), whole, and contains its own name: one
    that is damaged, truncated, renamed or another user's counts as missing, and is removed. Writing
    is atomic, so a user's processes may share a directory. Disk errors are not raised; they only
    cost time.

    Args:
        directory: made when first written to.
        kind: kind of the content, in the first line of each file.
        suffix: suffix of the files' names.
    """

    def __init__(self, directory: Path, kind: str, suffix: str) -> None:
        self._directory = directory
        self._kind = kind
        self._suffix = suffix

    def holds(self, name: str) -> bool:
        """True if there is an entry, valid or not."""
        try:
            return self._path(name).exists()
        except OSError:
            return False

    def read(self, name: str) -> bytes | None:
        """The bytes written under a name; None if there is no valid entry."""
        path = self._path(name)
        try:
            with path.open("rb") as file:
                data = file.read() if is_ours(os.fstat(file.fileno())) else b""
        except OSError:
            return None
        header = self._header(name)
        body = data[len(header) + _DIGEST :]
        if data[: len(header) + _DIGEST] != header + hashlib.sha256(body).digest():
            self.remove(name)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # for `trim`
        return zlib.decompress(body)

    def write(self, name: str, data: bytes) -> None:
        """Write bytes under a name; Python's lock is free while they are compressed."""
        body = zlib.compress(data, _FAST)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self._directory, prefix=".writing-")
        except OSError:
            return
        temporary = Path(partial)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._header(name) + hashlib.sha256(body).digest() + body)
            temporary.replace(self._path(name))
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove the entry, if there is one."""
        with contextlib.suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def trim(self, most_bytes: int) -> None:
        """Remove the least recently used entries beyond a total of `most_bytes`."""
        entries = []
        for path in self._directory.glob(f"*{self._suffix}"):
            with contextlib.suppress(OSError):  # another process has removed it
                entries.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        for _, size, path in sorted(entries, reverse=True):
            most_bytes -= size
            if most_bytes < 0:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{self._suffix}"

    def _header(self, name: str) -> bytes:
        return f"{self._kind} {name}\n".encode()
