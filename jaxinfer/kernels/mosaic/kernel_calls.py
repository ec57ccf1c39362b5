"""Finds the calls of kernels in lowered programs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jax.extend.mlir import ir

_CONFIG = "mhlo.backend_config"
_TARGET = "call_target_name"


@dataclass(frozen=True)
class KernelCall:
    """One call, as `jax.ffi.ffi_call` would make it.

    Attributes:
        target: what is called.
        attributes: what it is called with, the kernel itself among it.
        num_operands: how many arrays it takes.
    """

    target: str
    attributes: dict[str, bytes | bool] = field(repr=False)  # kilobytes of code
    num_operands: int


def kernel_calls(module: Any) -> Iterator[KernelCall]:
    """Every call of a kernel in an MLIR module, but those with attributes of an unknown kind."""
    for operation in _operations(module.operation):
        if _CONFIG in operation.attributes and _TARGET in operation.attributes:
            attributes = _attributes(operation.attributes[_CONFIG])
            if attributes:
                target = ir.StringAttr(operation.attributes[_TARGET]).value
                yield KernelCall(target, attributes, len(operation.operands))


def _operations(operation: Any) -> Iterator[Any]:
    """All below an operation."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _operations(inner.operation)


def _attributes(config: Any) -> dict[str, bytes | bool]:
    if not isinstance(config, ir.DictAttr):
        return {}
    values = {each.name: _value(each.attr) for each in config}
    known = {name: value for name, value in values.items() if value is not None}
    return known if len(known) == len(values) else {}


def _value(attribute: Any) -> bytes | bool | None:
    match attribute:
        case ir.BoolAttr():
            return attribute.value
        case ir.StringAttr():
            return attribute.value_bytes
    return None
