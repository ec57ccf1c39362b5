"""What replicas share while they start: programs traced once, and one number of KV blocks.

Their programs differ in nothing but the devices. Tracing and lowering, which one thread does, are
therefore done once, on a mesh without devices, and each replica compiles the result for its own. On
GPUs JAX's persistent cache leaves devices out of its key: all replicas but the first read there
what the first has compiled. For CPUs, XLA compiles once for each replica.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from jaxinfer.serving.programs import ProgramKey, Programs

_LOWERING_PLATFORMS = {"gpu": "cuda"}


class LoweredForDevices(NamedTuple):
    """A lowered program together with the devices that it is to be compiled for."""

    lowered: jax.stages.Lowered
    devices: tuple[Any, ...]

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """As `jax.stages.Lowered.compile`."""
        return self.lowered.compile(compiler_options, device_assignment=self.devices)


class SharedLowering:
    """Lowers each program once for all replicas; any thread may ask.

    Args:
        devices: of all replicas; each must have room for the KV blocks, since their number is a
            part of the programs' shapes.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices = tuple(devices)
        self._lock = threading.Lock()
        self._lowered: dict[tuple[int, ProgramKey], jax.stages.Lowered] = {}

    def bind(self, programs: Programs, mesh: Mesh) -> Callable[[ProgramKey], LoweredForDevices]:
        """`Programs.lower` for one replica's mesh."""
        devices = tuple(mesh.devices.flat)
        return lambda key: LoweredForDevices(self._lower(programs, mesh, key), devices)

    def _lower(self, programs: Programs, mesh: Mesh, key: ProgramKey) -> jax.stages.Lowered:
        name = (programs.num_blocks, key)
        with self._lock:
            if name not in self._lowered:
                # Without devices, JAX takes those that it would run on by default for a compiler.
                with jax.default_device(self.devices[0]):
                    self._lowered[name] = _without_devices(programs, mesh).lower(key)
            return self._lowered[name]


def _without_devices(programs: Programs, mesh: Mesh) -> Programs:
    """The same programs on an abstract mesh, which says what kind of devices it has, not which."""
    platform = mesh.devices.flat[0].platform

    def retarget(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh.abstract_mesh, leaf.sharding.spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return dataclasses.replace(
        programs,
        context=dataclasses.replace(programs.context, mesh=mesh.abstract_mesh),
        params=jax.tree.map(retarget, programs.params),
        lowering_platform=_LOWERING_PLATFORMS.get(platform, platform),
    )
