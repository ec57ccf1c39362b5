"""Compiled programs on disk: a process that finds its own there does not compile them again.

JAX's compilation cache is asked with a lowered program, and lowering one that was traced before
still takes Python 40 to 90 ms, one program after the other. Entries here are found by a program's
inputs, without lowering it, and are read by all cores in parallel.

Reading an entry unpickles it and runs its machine code, so write access to one is enough to run any
    code: a directory that others may write to is not used, and another user's entry counts as
    missing.
"""

import contextlib
import logging
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
from jax._src.lib import xla_client
from jax.experimental import serialize_executable

from jaxinfer.serving.compile.cache.entries import Entries

logger = logging.getLogger("jaxinfer")

FOUND_EVENT = "/jaxinfer/compile/executable_found"
"""The event for JAX's listeners of each program that is read from disk."""

LOAD_EVENT = "/jaxinfer/compile/executable_load_duration"
"""The event with the seconds that reading took."""

# Programs compile at their first use there, and JAX finds them by their code, whatever has changed
# in this package's source.
_LEFT_TO_JAX = ("cpu",)

# About twelve engines of a small model. Entries of other versions of this package are useless.
_MOST_BYTES = 4 << 30

# One makes an entry, which holds Python's lock, and one compresses the last one.
_THREADS = 2


def keeps_executables(devices: Sequence[Any]) -> bool:
    """True if an engine on these devices keeps executables itself, False if JAX's cache does.

    JAX does on CPUs, for devices of several processes, and if its cache is on already: the user has
    configured it, or this is inside `persistent_cache`. Call it only while no other thread can be
    inside.
    """
    is_on = jax.config.jax_compilation_cache_dir is not None
    spans_processes = len({device.process_index for device in devices}) > 1
    return not is_on and not spans_processes and devices[0].platform not in _LEFT_TO_JAX


class UnreadableExecutableError(Exception):
    """A program's entry can't be read; the program must be compiled anew."""


class ExecutableStore:
    """A directory of executables, for the devices of one process.

    See `Entries` for valid entries and disk errors. A program that XLA can't serialize, such as one
    that calls back into Python, is not kept; beyond 4 GiB, the least recently used are removed.
    """

    def __init__(self, directory: str | Path) -> None:
        self._entries = Entries(Path(directory), "jaxinfer executable 1", ".executable")
        self._unreadable: set[str] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._has_written = False

    def holds(self, identity: str) -> bool:
        """True if there is an entry that `load` has not found unreadable."""
        return identity not in self._unreadable and self._entries.holds(identity)

    def load(self, identity: str, devices: Sequence[Any]) -> jax.stages.Compiled:
        """A program, ready to run.

        Raises:
            UnreadableExecutableError: there is no readable entry; an unreadable one is removed,
                with a warning the first time.
        """
        start = time.perf_counter()
        if (data := self._entries.read(identity)) is None:
            raise self._unreadable_error(identity, "it is gone or damaged")
        try:
            compiled = _read(data, devices)
        except Exception as error:  # of many types, where this JAX or this device can't read it
            self._entries.remove(identity)
            raise self._unreadable_error(identity, error) from error
        jax.monitoring.record_event(FOUND_EVENT)
        jax.monitoring.record_event_duration_secs(LOAD_EVENT, time.perf_counter() - start)
        return compiled

    def save(self, identity: str, compiled: jax.stages.Compiled) -> None:
        """Keep a program; inside `written_in_background`, by a thread of its own.

        A program whose entry could not be read is not saved again by this process: XLA compiled it
            while others ran, and may have chosen other kernels.
        """
        if identity in self._unreadable:
            return
        if (pool := self._pool) is not None:
            with contextlib.suppress(RuntimeError):  # it has shut down meanwhile
                pool.submit(self._write, identity, compiled)
                return
        self._write(identity, compiled)

    @contextlib.contextmanager
    def written_in_background(self) -> Iterator[None]:
        """Write entries in background threads inside this block; all are on disk afterwards.

        If the block raises, entries not yet written are dropped. One thread may be inside.
        """
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="jaxinfer-cache") as pool:
            self._pool = pool
            try:
                yield
            except BaseException:  # Ctrl-C, too
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                self._pool = None
        if self._has_written:
            self._entries.trim(_MOST_BYTES)

    def _write(self, identity: str, compiled: jax.stages.Compiled) -> None:
        try:
            data = _written(compiled)
        except Exception as error:  # of many types, by what the program holds
            logger.info("a compiled program can't be kept: %s", error)
            return
        self._entries.write(identity, data)
        self._has_written = True

    def _unreadable_error(self, identity: str, cause: object) -> UnreadableExecutableError:
        if not self._unreadable:
            logger.warning("an executable on disk can't be read (%s); compiled anew", cause)
        self._unreadable.add(identity)
        return UnreadableExecutableError(f"{identity}: {cause}")


@dataclass(frozen=True)
class KeptProgram:
    """A program that is read from disk, or else compiled and kept; stands in for a lowered program.

    Attributes:
        identity: the program's key in the store.
        lowered: None where the store holds it.
    """

    store: ExecutableStore
    identity: str
    devices: Sequence[Any]
    lowered: jax.stages.Lowered | None

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Read or compile it; any thread may.

        Raises:
            UnreadableExecutableError: the store's entry can't be read; lower it, and compile that.
        """
        if self.lowered is None:
            return self.store.load(self.identity, self.devices)
        compiled = self.lowered.compile(compiler_options=compiler_options)
        self.store.save(self.identity, compiled)
        return compiled


def compiler_identity(devices: Sequence[Any], options: Mapping[str, Any]) -> tuple[object, ...]:
    """Everything that XLA's result depends on beside the program and JAX's version and settings."""
    fingerprint = None
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # a platform that has none
        fingerprint = xla_client.get_topology_for_devices(list(devices)).fingerprint()
    return (
        devices[0].client.platform_version,
        [(device.id, device.device_kind) for device in devices],
        fingerprint,
        os.environ.get("XLA_FLAGS", ""),
        sorted(options.items()),
    )


def _written(compiled: jax.stages.Compiled) -> bytes:
    """A serialized executable, with its trees of arguments and results."""
    data, *trees = serialize_executable.serialize(compiled)
    return pickle.dumps(
        (data, [jax.tree.unflatten(tree, range(tree.num_leaves)) for tree in trees])
    )


def _read(data: bytes, devices: Sequence[Any]) -> jax.stages.Compiled:
    executable, trees = pickle.loads(data)
    return serialize_executable.deserialize_and_load(
        executable,
        *map(jax.tree.structure, trees),
        backend=devices[0].client,
        execution_devices=devices,
    )
