"""Rewrites kernels for Mosaic GPU so that it compiles fewer of them, and each in less time.

Mosaic compiles a kernel once per hash of its code, one kernel at a time in the whole process: an
engine's programs wait for each other. Two things in the code that jax 0.11 and 0.12 pass to it cost
time without any use; the GPU's code is the same without them, to the byte:

* It names the file to dump the kernel to, and the name ends in a serial number: no two kernels are
  ever the same. Without the name Mosaic makes one up when it compiles.
* The host's part copies the copy engine's descriptors, 128 bytes each, as an array of bytes. LLVM
  takes the array apart, and its passes, some of which compare every pair of stores, then spend more
  time on a kernel with many descriptors than on the GPU's code. As an array of integers of 128
  bytes each the same memory is a handful of values.
"""

from typing import Any

from jax.experimental.mosaic.gpu import core
from jax.extend.mlir import ir

_NAME = "mosaic_gpu.dump_basename"
_DESCRIPTORS = "mosaic_gpu_smem_alloc"
_DESCRIPTOR_BYTES = 128


def compile_quickly() -> None:
    """Change every kernel lowered from now on; may be called again.

    Reaches into JAX. Where JAX's internals are not as expected, it changes nothing, and
    kernels only take longer to compile.
    """
    lower = getattr(core, "_mosaic_gpu_lowering_rule", None)
    if lower is None or hasattr(lower, "is_quick"):
        return

    def lower_quick(ctx: Any, *args: Any, module: Any, **kwargs: Any) -> Any:
        _forget_name(module)
        _join_descriptors(module)
        return lower(ctx, *args, module=module, **kwargs)

    lower_quick.is_quick = True  # pyright: ignore[reportFunctionMemberAccess]
    core._mosaic_gpu_lowering_rule = lower_quick


def _forget_name(module: Any) -> None:
    if _NAME in module.operation.attributes:
        del module.operation.attributes[_NAME]


def _join_descriptors(module: Any) -> None:
    """Gives the descriptors' memory, and the load that copies it, a type of few elements."""
    # The host's part is the top of each function; all below is the GPU's.
    blocks = (block for function in module.body for region in function.regions for block in region)
    for allocation in (op.operation for block in blocks for op in block):
        if _DESCRIPTORS not in allocation.attributes:
            continue
        loads = [use.owner.operation for use in allocation.result.uses]
        loads = [load for load in loads if load.name == "llvm.load"]
        joined = _joined(str(allocation.attributes["elem_type"]))
        if joined is not None and len(loads) == 1:
            with module.context:
                changed = ir.Type.parse(joined)
                allocation.attributes["elem_type"] = ir.TypeAttr.get(changed)
                loads[0].result.set_type(changed)


def _joined(bytes_type: str) -> str | None:
    """The MLIR type of the same size as `bytes_type`, or None if that is not as expected."""
    start, end = "!llvm.array<", " x i8>"
    if not (bytes_type.startswith(start) and bytes_type.endswith(end)):
        return None
    size = int(bytes_type.removeprefix(start).removesuffix(end))
    if size == 0 or size % _DESCRIPTOR_BYTES:
        return None
    return f"{start}{size // _DESCRIPTOR_BYTES} x i{8 * _DESCRIPTOR_BYTES}>"
