"""Lowers an engine's programs; programs that an earlier process traced are not traced again."""

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export

from jaxinfer.kernels.implementations import import_all
from jaxinfer.serving.compile.cache.executable_store import (
    ExecutableStore,
    KeptProgram,
    compiler_identity,
)
from jaxinfer.serving.compile.cache.persistent_cache import store_directory
from jaxinfer.serving.compile.compilation import Lowered
from jaxinfer.serving.compile.program_store import ProgramStore, export_program, identity_of
from jaxinfer.serving.compile.tracing import TracingWorkers
from jaxinfer.serving.programs.kinds.kind import ProgramKey, StepKind
from jaxinfer.serving.programs.kinds.registry import kind_of
from jaxinfer.serving.programs.program_set import program_of
from jaxinfer.serving.programs.programs import Program, Programs


def start_lowering(
    compilation_cache_dir: str | None, *, keeps: bool, kind: "type[Lowering] | None" = None
) -> "Lowering":
    """The `Lowering` of an engine, with stores below that directory unless caches are off.

    Args:
        keeps: whether the engine keeps executables itself; otherwise JAX's cache does, if it is on.
        kind: the class; None is the plain one.
    """
    traced = store_directory(compilation_cache_dir, "traced")
    compiled = store_directory(compilation_cache_dir, "compiled")
    return (kind or Lowering)(
        traced and ProgramStore(traced),
        ExecutableStore(compiled) if compiled and keeps else None,
    )


class Lowering:
    """Lowers programs whose executables are not on disk, and counts the time.

    With a store, even the process that writes a program builds it from the stored form, so that
    cold and warm starts compile the same and find the same executables in the compilation cache.

    Args:
        store: None traces everything anew.
        executables: the store of executables; None leaves keeping them to JAX.

    Attributes:
        num_read: programs found on disk, traced or compiled.
        num_lowered: programs handed over to be compiled, or found by JAX; all others were found
            compiled in `executables`.
    """

    def __init__(
        self, store: ProgramStore | None, executables: ExecutableStore | None = None
    ) -> None:
        self._store = store
        self.executables = executables
        self._workers: TracingWorkers | None = None
        self.seconds = 0.0
        self.num_traced = 0
        self.num_lowered = 0
        self.num_read = 0

    def prepare(self, programs: Programs, key: ProgramKey) -> None:
        """Start worker processes if a program is missing, since others will be missing, too.

        They import JAX while the caller goes on. Call `close` when all is lowered.
        """
        if self._store is None or self._workers is not None or not _is_for_workers(programs, key):
            return
        if not self._store.holds(_identity(programs, key, program_of(programs, key))):
            self._workers = TracingWorkers(self._store)
            self._workers.prepare()

    def trace(self, programs: Programs, keys: Sequence[ProgramKey]) -> None:
        """Let worker processes, if `prepare` started some, trace missing programs; don't wait."""
        if self._workers is not None:
            self._hand_over(programs, self._missing(programs, keys))

    def as_ready(self, programs: Programs, keys: Sequence[ProgramKey]) -> Iterator[ProgramKey]:
        """Let worker processes trace programs that are slow to trace and missing from the store.

        Call `close` when all is lowered.

        Yields:
            The same keys, as soon as they can be lowered; at first programs not for workers, to be
            traced by this process while they are at work.
        """
        missing = self._missing(programs, keys)
        self._hand_over(programs, missing)
        yield from (key for key in keys if key not in missing)
        wanted = {identity: key for key, identity in missing.items()}
        while wanted and self._workers is not None:
            identity = self._workers.next_traced()
            if identity in wanted:
                yield wanted.pop(identity)

    def _missing(self, programs: Programs, keys: Sequence[ProgramKey]) -> dict[ProgramKey, str]:
        """The programs that workers should trace, each with the identity it is saved under."""
        if self._store is None:
            return {}
        identities = {
            key: _identity(programs, key, program_of(programs, key))
            for key in dict.fromkeys(keys)
            if _is_for_workers(programs, key)
        }
        return {key: each for key, each in identities.items() if not self._store.holds(each)}

    def _hand_over(self, programs: Programs, missing: dict[ProgramKey, str]) -> None:
        if missing and self._store is not None:
            self._workers = self._workers or TracingWorkers(self._store)
            self._workers.start(programs, missing, platform=_platform(programs))

    def close(self) -> None:
        """End worker processes, if there are any; may be called again."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def lower(self, programs: Programs, key: ProgramKey, options: Mapping[str, Any]) -> Lowered:
        """Lower one program for the engine's mesh, unless it is found compiled."""
        start = time.perf_counter()
        try:
            if self.executables is None:
                self.num_lowered += 1
                return self._lower(programs, key)
            kept = self._kept(programs, key, options, self.executables)
            self.num_lowered += kept.lowered is not None
            return kept
        finally:
            self.seconds += time.perf_counter() - start

    def _kept(
        self,
        programs: Programs,
        key: ProgramKey,
        options: Mapping[str, Any],
        store: ExecutableStore,
    ) -> KeptProgram:
        devices = list(programs.context.mesh.devices.flat)
        compiler = compiler_identity(devices, options)
        if _runs_user_code(programs, key):
            lowered = self._lower(programs, key)
            identity = identity_of(lowered.as_text(), *compiler)
            held = store.holds(identity)
            return KeptProgram(store, identity, devices, None if held else lowered)
        identity = identity_of(_identity(programs, key, program_of(programs, key)), *compiler)
        if not store.holds(identity):
            return KeptProgram(store, identity, devices, self._lower(programs, key))
        self.num_read += 1
        import_all(programs.context.kernels.backend)
        return KeptProgram(store, identity, devices, None)

    def _lower(self, programs: Programs, key: ProgramKey) -> jax.stages.Lowered:
        if self._store is None or _runs_user_code(programs, key):
            self.num_traced += 1
            return program_of(programs, key).lower()
        return self._lower_stored(programs, key, self._store)

    def _lower_stored(
        self, programs: Programs, key: ProgramKey, store: ProgramStore
    ) -> jax.stages.Lowered:
        program = program_of(programs, key)
        identity = _identity(programs, key, program)
        exported = store.load(identity)
        if exported is None:
            self.num_traced += 1
            exported = export_program(program, _platform(programs))
            store.save(identity, exported)
        else:
            self.num_read += 1
            import_all(programs.context.kernels.backend)
        return dataclasses.replace(program, function=exported.call).lower()


def _is_for_workers(programs: Programs, key: ProgramKey) -> bool:
    """True if a program is slow to trace and worker processes can trace it."""
    if programs.context.kernels.backend != "mosaic" or _runs_user_code(programs, key):
        return False
    if programs.context.loop.runs_user_code:  # a local function can't be sent, nor a part of it
        return False
    return kind_of(key).is_slow_to_trace


def _platform(programs: Programs) -> str:
    """The platform to lower for: JAX calls every GPU "gpu", but lowers for a vendor's."""
    device = programs.context.mesh.devices.flat[0]
    return device.platform if device.platform != "gpu" else jax.export.default_export_platform()


def _identity(programs: Programs, key: ProgramKey, program: Program) -> str:
    context = dataclasses.replace(programs.context, logits_processor=None, sampler=None)
    leaves, structure = jax.tree.flatten(program.arguments)
    arguments = [(leaf.shape, str(leaf.dtype), str(leaf.sharding.spec)) for leaf in leaves]
    devices = [_describe(device) for device in context.mesh.devices.flat]
    return identity_of(
        key, context, str(structure), arguments, devices, jax.default_backend(), program.donate
    )


def _describe(device: Any) -> tuple[Any, ...]:
    """The properties of a device that kernels are chosen by, the same for equal devices."""
    names = ("platform", "device_kind", "compute_capability", "core_count")
    return tuple(str(getattr(device, name, None)) for name in names)


def _runs_user_code(programs: Programs, key: ProgramKey) -> bool:
    """True if the program contains a user's function, whose changes can't be detected."""
    context, kind = programs.context, kind_of(key)
    samples = context.has_custom_functions and kind.runs_user_code
    passes_layers = isinstance(kind, StepKind) and kind.uses_pages
    return samples or (passes_layers and context.loop.runs_user_code)
