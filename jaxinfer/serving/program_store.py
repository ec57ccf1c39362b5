"""Traced programs on disk: a process that finds its own there neither traces nor lowers again.

Tracing holds Python's global lock, a second or so for each program with kernels in it, and JAX's
compilation cache, which keeps what comes after, does not spare it. What is kept is `jax.export`'s
portable StableHLO, which is data: reading it runs nothing.
"""

import hashlib
import importlib.metadata
import os
import platform
import tempfile
import zlib
from functools import cache
from pathlib import Path

import jax
import jax.export

_MAGIC = b"jaxinfer program 1\n"
_DIGEST = hashlib.sha256().digest_size
_FAST = 1  # zlib level; a program shrinks to a fifth

# Whose version decides what tracing yields, beside this package's own source.
_DISTRIBUTIONS = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-triton", "triton")


class ProgramStore:
    """A directory of traced programs, each under a digest of everything that it depends on.

    An entry counts only if it is whole and says itself that it belongs to its name: one that is
    damaged, cut short or renamed is as good as none. Writing is atomic, so processes may share a
    directory. Whatever the disk refuses costs time and nothing else.

    Args:
        directory: made when first written to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, identity: str) -> jax.export.Exported | None:
        """The program saved under this identity (see `identity_of`), or None."""
        digest = _digest(identity)
        try:
            data = self._path(digest).read_bytes()
        except OSError:
            return None
        header = _MAGIC + digest
        body = data[len(header) + _DIGEST :]
        if data[: len(header) + _DIGEST] != header + hashlib.sha256(body).digest():
            return None
        try:
            return jax.export.deserialize(bytearray(zlib.decompress(body)))
        except Exception:  # a sound entry that this JAX can't read after all
            return None

    def save(self, identity: str, program: jax.export.Exported) -> None:
        """Keep a program; the file is there whole or not at all."""
        digest = _digest(identity)
        body = zlib.compress(bytes(program.serialize()), _FAST)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._directory, prefix=".writing-")
        except OSError:
            return
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + digest + hashlib.sha256(body).digest() + body)
            temporary.replace(self._path(digest))
        except OSError:
            temporary.unlink(missing_ok=True)

    def _path(self, digest: bytes) -> Path:
        return self._directory / f"{digest.hex()}.stablehlo"


def identity_of(*parts: object) -> str:
    """What a traced program depends on: `parts`, this source, JAX's versions and its settings.

    Args:
        parts: whose ``repr`` tells them apart and is the same in every process.
    """
    return "\n".join(map(repr, (*parts, _environment(), _settings())))


@cache
def _environment() -> tuple[object, ...]:
    versions = []
    for name in _DISTRIBUTIONS:
        try:
            versions.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return platform.python_version(), tuple(versions), _source_digest()


def _source_digest() -> str:
    """Of every Python file of this package: an edited kernel must never be served from disk."""
    package = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        total.update(str(path.relative_to(package)).encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _settings() -> list[tuple[str, str]]:
    """JAX's settings, such as the precision of products, which tracing may read; not its caches."""
    names = sorted(name for name in jax.config.values if "cache" not in name)
    return [(name, repr(getattr(jax.config, name, None))) for name in names]


def _digest(identity: str) -> bytes:
    return hashlib.sha256(identity.encode()).digest()
