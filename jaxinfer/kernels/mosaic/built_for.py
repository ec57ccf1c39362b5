"""Shares one lowered kernel between programs: built for the largest arrays, called on smaller ones.

Lowering a large kernel takes Python a second or two, and JAX does it in every program that holds
it. And Mosaic compiles one kernel at a time in a whole process, and writes its operands' shapes
into each: for every number of tokens a kernel would be compiled anew, though only the host's part
of it, which describes the operands to the copy engine, differs. XLA itself sees the true shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.mlir import ir

_CONFIG = "mhlo.backend_config"


def call_built_for(
    launch: Callable[[Any, tuple[jax.ShapeDtypeStruct, ...]], Callable[..., Any]],
    problem: Hashable,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    args: tuple[jax.Array, ...],
    out: Any,
    *,
    name: str,
) -> Any:
    """Calls the kernel that `launch(problem, shapes)` gives on arrays not larger than `shapes`.

    The kernel must not touch anything outside of its actual arguments, nor write to any of them.
    They must differ from `shapes` in their first dimension only, so that everything lies where it
    expects. If JAX describes its kernels in a way that this file does not know, the kernel is built
    for the arrays themselves.

    Args:
        launch: makes the kernel; a module-level function, since its results are cached.
        problem: everything else that the kernel is made from.
        shapes: the array shapes that it is built for.
        args: its arguments.
        out: ``jax.ShapeDtypeStruct`` of its result, or a tuple of them; not larger than those that
            it is built for.
        name: for profiles.

    Raises:
        ValueError: an array is larger than the kernel is built for, or differs in other dimensions.
    """
    for most, given in zip(shapes, args, strict=True):
        if most.shape[1:] != given.shape[1:] or most.shape[0] < given.shape[0]:
            raise ValueError(f"a kernel built for {most.shape} can't take {given.shape}")
    built = _built(launch, problem, shapes, _device())
    if built is None:
        own = tuple(jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in args)
        return launch(problem, own)(*args)
    target, attributes = built
    with jax.named_scope(name):
        return jax.ffi.ffi_call(target, out)(*args, **attributes)


def at_least(
    first_dimensions: Sequence[int], args: Sequence[jax.Array]
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shapes of `args`, with at least the given first dimensions.

    So engines of usual sizes share a kernel, and arrays of any size have one.
    """
    return tuple(
        jax.ShapeDtypeStruct((max(first, arg.shape[0]), *arg.shape[1:]), arg.dtype)
        for first, arg in zip(first_dimensions, args, strict=True)
    )


def _device() -> Any:
    """The device to compile for, if given: kernels may look it up while they are traced."""
    return jax.sharding.get_abstract_mesh().abstract_device


@functools.cache
def _built(
    launch: Callable[..., Any],
    problem: Hashable,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    device: Any,
) -> tuple[str, Mapping[str, Any]] | None:
    """The target and the attributes of the kernel's call, or None if they are not as expected."""
    # Of one device, in any mesh around the caller.
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(launch(problem, shapes)).trace(*shapes)
        module: Any = traced.lower(lowering_platforms=("cuda",)).compiler_ir("stablehlo")
    calls = list(_calls(module.operation))
    if len(calls) != 1 or len(calls[0].operands) != len(shapes):
        return None
    attributes = {each.name: _value(each.attr) for each in calls[0].attributes[_CONFIG]}
    if None in attributes.values():
        return None
    return ir.StringAttr(calls[0].attributes["call_target_name"]).value, attributes


def _calls(operation: Any) -> Iterator[Any]:
    """Every kernel call below an MLIR operation."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                if _CONFIG in inner.operation.attributes:
                    yield inner.operation
                yield from _calls(inner.operation)


def _value(attribute: Any) -> bytes | bool | None:
    match attribute:
        case ir.BoolAttr():
            return attribute.value
        case ir.StringAttr():
            return attribute.value_bytes
    return None
