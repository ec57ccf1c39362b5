"""Compiled programs that one run of the tests leaves to the next, in pytest's own cache."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from jax._src import cache_key, compilation_cache

# As many programs as some ten versions of the engine compile; then the next run starts afresh.
_MOST_BYTES = 300_000_000
_ENTRIES = "*-cache"


def take_devices_as_equal() -> None:
    """Let a process's emulated devices find each other's programs, as JAX has it of GPUs.

    Otherwise the replicas of an engine compile each program once for every device.
    """
    hash_options = cache_key._hash_serialized_compile_options
    cache_key._hash_serialized_compile_options = lambda hashed, options, **_: hash_options(
        hashed, options, strip_device_assignment=True
    )


class KeptPrograms:
    """A directory of XLA's programs for one run, filled from the last runs' and kept for the next.

    JAX finds a program by its code, XLA's options and the versions of both, so none is out of date.
    What an engine traces is not kept: a test that replaces functions of the package would leave its
    programs to the next run. A run has a copy, because tests kill processes that write to it:
    only entries that can be read are kept.

    Args:
        config: of the process that starts the workers. Without pytest's cache nothing is kept.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="jaxinfer-tests-"))
        self._entries = self.home / "jaxinfer" / "xla"
        self._entries.mkdir(parents=True)
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        if (kept := self._kept()) is not None:
            _limit(kept)
            _link_all(kept, self._entries)

    def keep(self) -> None:
        """Add the run's programs to what is kept, and remove the run's own directory."""
        if (kept := self._kept()) is not None:
            for entry in self._entries.glob(_ENTRIES):
                if not (kept / entry.name).exists() and _is_sound(entry):
                    _link(entry, kept / entry.name)
        shutil.rmtree(self.home, ignore_errors=True)

    def _kept(self) -> Path | None:
        """What all runs share; made anew at the end: `--cache-clear` has workers clear it, too."""
        return self._cache and self._cache.mkdir("jaxinfer_programs")


def _limit(directory: Path) -> None:
    entries = list(directory.glob(_ENTRIES))
    if sum(entry.stat().st_size for entry in entries) > _MOST_BYTES:
        for entry in entries:
            entry.unlink(missing_ok=True)


def _link_all(source: Path, target: Path) -> None:
    for entry in source.glob(_ENTRIES):
        _link(entry, target / entry.name)


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or where that is impossible a copy, whole or not at all."""
    try:
        os.link(source, target)
    except OSError:
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # it is compiled again
            shutil.copyfile(source, partial)
            partial.replace(target)


def _is_sound(entry: Path) -> bool:
    """Whether an entry was written to its end."""
    try:
        compilation_cache.decompress_executable(entry.read_bytes())
    except Exception:  # of many types: JAX takes whichever compressor is installed
        return False
    return True
