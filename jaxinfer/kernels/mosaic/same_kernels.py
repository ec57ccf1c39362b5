"""Lets Mosaic GPU see that two programs hold the same kernel, so that it compiles it once.

Mosaic compiles a kernel once per hash of its code, one kernel at a time in the whole process. On
jax 0.11 and 0.12 that code names the file to dump the kernel to, and the name ends in a serial
number: no two kernels are ever the same, and an engine's programs, most of which share their
kernels, wait for each other. Without the name Mosaic makes one up when it compiles.
"""

from typing import Any

from jax.experimental.mosaic.gpu import core

_NAME = "mosaic_gpu.dump_basename"


def compile_same_kernels_once() -> None:
    """Take the serial number out of every kernel lowered from now on; may be called again.

    Reaches into JAX. Where it finds other insides than those it knows, it changes nothing, and
    kernels only take longer to compile.
    """
    lower = getattr(core, "_mosaic_gpu_lowering_rule", None)
    if lower is None or hasattr(lower, "forgets_name"):
        return

    def lower_without_name(ctx: Any, *args: Any, module: Any, **kwargs: Any) -> Any:
        if _NAME in module.operation.attributes:
            del module.operation.attributes[_NAME]
        return lower(ctx, *args, module=module, **kwargs)

    lower_without_name.forgets_name = True  # pyright: ignore[reportFunctionMemberAccess]
    core._mosaic_gpu_lowering_rule = lower_without_name
