"""Lowers an engine's programs, those that an earlier process traced without tracing them again."""

import dataclasses
import importlib
import time
from typing import Any

import jax
import jax.export

from jaxinfer.serving.program_store import ProgramStore, identity_of
from jaxinfer.serving.programs import BurstKey, Program, ProgramKey, Programs, SamplerKey
from jaxinfer.serving.sampling.layout import SamplingArrays

# Their serialized form is of one version of JAX and Triton; so is an entry of the store.
_KERNEL_CALLS = ("mosaic_gpu_v2", "triton_kernel_call")

# The only argument that is more than tuples and dictionaries of arrays.
jax.export.register_namedtuple_serialization(
    SamplingArrays, serialized_name="jaxinfer.SamplingArrays"
)


class Lowering:
    """Lowers programs and notes how long that took.

    With a store, a program is always built from what would be read back from disk, also by the
    process that writes it: so cold and warm starts compile the same, and find the same
    executables in the compilation cache.

    Args:
        store: None traces everything anew.

    Attributes:
        seconds: spent here so far.
        num_traced: programs traced so far.
        num_read: programs found in the store.
    """

    def __init__(self, store: ProgramStore | None) -> None:
        self._store = store
        self.seconds = 0.0
        self.num_traced = 0
        self.num_read = 0

    def lower(self, programs: Programs, key: ProgramKey) -> jax.stages.Lowered:
        """Lower one program for the engine's mesh."""
        start = time.perf_counter()
        try:
            if self._store is None or _runs_user_code(programs, key):
                self.num_traced += 1
                return programs.lower(key)
            return self._lower_stored(programs, key, self._store)
        finally:
            self.seconds += time.perf_counter() - start

    def _lower_stored(
        self, programs: Programs, key: ProgramKey, store: ProgramStore
    ) -> jax.stages.Lowered:
        program = programs.program(key)
        identity = _identity(programs, key, program)
        exported = store.load(identity)
        if exported is None:
            self.num_traced += 1
            exported = _export(program, programs)
            store.save(identity, exported)
        else:
            self.num_read += 1
            _register_kernels(programs)
        return dataclasses.replace(program, function=exported.call).lower()


def _export(program: Program, programs: Programs) -> jax.export.Exported:
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _KERNEL_CALLS]
    device = programs.context.mesh.devices.flat[0]
    # JAX calls every GPU "gpu", but lowers for a maker's.
    platform = device.platform if device.platform != "gpu" else jax.export.default_export_platform()
    export = jax.export.export(program.jit(), platforms=[platform], disabled_checks=checks)
    return export(*program.arguments)


def _identity(programs: Programs, key: ProgramKey, program: Program) -> str:
    context = dataclasses.replace(programs.context, logits_processor=None, sampler=None)
    leaves, structure = jax.tree.flatten(program.arguments)
    arguments = [(leaf.shape, str(leaf.dtype), str(leaf.sharding.spec)) for leaf in leaves]
    devices = [_describe(device) for device in context.mesh.devices.flat]
    return identity_of(
        key, context, str(structure), arguments, devices, jax.default_backend(), program.donate
    )


def _describe(device: Any) -> tuple[Any, ...]:
    """What kernels are chosen by; which of several equal devices it is does not matter."""
    names = ("platform", "device_kind", "compute_capability", "core_count")
    return tuple(str(getattr(device, name, None)) for name in names)


def _runs_user_code(programs: Programs, key: ProgramKey) -> bool:
    """Whether the program holds a caller's function, of which nothing tells when it changes."""
    context = programs.context
    custom = context.logits_processor is not None or context.sampler is not None
    return custom and isinstance(key, SamplerKey | BurstKey)


def _register_kernels(programs: Programs) -> None:
    """Import what tracing would have imported: it tells XLA how the kernels are called."""
    if programs.context.backend != "xla":
        importlib.import_module(f"jaxinfer.kernels.{programs.context.backend}.decode")
