"""The form of an engine's device programs: functions that run on every device of the mesh.

All run under ``shard_map``, also on one device, so that there is one code path. The pages are
donated and have the same sharding going in and coming out, hence are updated in place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WHOLE = PartitionSpec()
"""The partition of arrays that every device holds whole."""


@dataclass(frozen=True)
class Program:
    """A function to compile, with jit's settings for it.

    Attributes:
        name: in profiles and in the compilation cache.
        function: on arrays of all devices.
        arguments: trees of ``jax.ShapeDtypeStruct``.
        donate: which arguments' memory the results take.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...]
    out_shardings: Any

    def lower(self) -> jax.stages.Lowered:
        """Trace and lower."""
        return self.jit().lower(*self.arguments)

    def jit(self) -> Any:
        """The jitted function."""

        def program(*args: Any) -> Any:
            return self.function(*args)

        program.__name__ = self.name
        return jax.jit(program, donate_argnums=self.donate, out_shardings=self.out_shardings)


def host_sharding(mesh: Mesh) -> NamedSharding:
    """Pinned host memory, whole for every device."""
    return NamedSharding(mesh, WHOLE, memory_kind="pinned_host")


def sharded(
    name: str,
    run: Callable[..., Any],
    arguments: tuple[Any, ...],
    results: Any,
    *,
    mesh: Mesh,
    donate: tuple[int, ...],
    to_host: tuple[int, ...] = (),
    is_eager: bool = False,
) -> Program:
    """A program of a function on each device's part of the arguments; see `Programs.sharded`."""
    out_specs = _specs(results)
    # Kernels can't say which mesh axes their results vary over.
    split = run
    if not is_eager:
        split = jax.shard_map(
            run, mesh=mesh, in_specs=_specs(arguments), out_specs=out_specs, check_vma=False
        )
    out_shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), out_specs, is_leaf=_is_spec
    )
    if to_host:
        out_shardings = tuple(
            host_sharding(mesh) if i in to_host else each for i, each in enumerate(out_shardings)
        )
    copies_in = [i for i, each in enumerate(arguments) if _is_on_host(each)]
    if not copies_in and not to_host:
        return Program(name, split, arguments, donate, out_shardings)

    def program(*given: Any) -> Any:
        given = tuple(_on_device(x, mesh) if i in copies_in else x for i, x in enumerate(given))
        results = split(*given)
        return tuple(
            jax.device_put(x, host_sharding(mesh)) if i in to_host else x
            for i, x in enumerate(results)
        )

    return Program(name, program, arguments, donate, out_shardings)


def _specs(tree: Any) -> Any:
    """The partition of every leaf, which is a ``ShapeDtypeStruct`` or a partition itself."""
    return jax.tree.map(
        lambda leaf: leaf if _is_spec(leaf) else leaf.sharding.spec, tree, is_leaf=_is_spec
    )


def _is_on_host(argument: Any) -> bool:
    is_array = isinstance(argument, jax.ShapeDtypeStruct)
    return is_array and argument.sharding.memory_kind == "pinned_host"


def _on_device(array: jax.Array, mesh: Mesh) -> jax.Array:
    """A copy on the devices, made by a kernel of its own.

    Without one, XLA has the kernels of the step read host memory, or hands them slices of the
    argument, whose address is another one at the next launch.
    """
    copied = jax.device_put(array, NamedSharding(mesh, WHOLE, memory_kind="device"))
    return (copied & 1) + (copied & ~1)  # which XLA does not simplify


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
