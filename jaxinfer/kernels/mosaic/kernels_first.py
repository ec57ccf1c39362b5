"""Compiles the kernels of many programs before the programs themselves.

Mosaic compiles one kernel at a time in a whole process, each under a lock on LLVM's options, which
are the process's. XLA holds that lock with other options whenever it compiles: as many of its
threads at once as like, but never beside Mosaic. With programs compiling on all cores a kernel
waits until none of them needs LLVM, and whoever needs the kernel waits with it. Mosaic remembers
kernels by a hash of their code: those that a small program has compiled, all others find.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxinfer.kernels.mosaic.kernel_calls import KernelCall, kernel_calls

_TARGET = "mosaic_gpu_v2"
_HASH = "kernel_hash"


class KernelsFirst:
    """Knows which kernels it has been shown already.

    Args:
        device: what they are compiled for; another of the same kind can run them, too.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._seen: set[bytes | bool] = set()

    def __call__(self, lowered: Any) -> Callable[[], None] | None:
        """What compiles the kernels of a program that are new; None if it has no kernels at all.

        Args:
            lowered: ``jax.stages.Lowered``.
        """
        found = {
            call.attributes[_HASH]: call
            for call in kernel_calls(lowered.compiler_ir("stablehlo"))
            if call.target == _TARGET and _HASH in call.attributes
        }
        new = [call for each, call in found.items() if each not in self._seen]
        self._seen |= found.keys()
        return functools.partial(_compile, new, self._device) if found else None


def _compile(calls: list[KernelCall], device: Any) -> None:
    """Compile a program that calls kernels without their arrays. It must never run."""
    if not calls:
        return
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=SingleDeviceSharding(device))

    def kernels(unused: jax.Array) -> list[jax.Array]:
        return [
            jax.ffi.ffi_call(call.target, scalar, has_side_effect=True)(**call.attributes)
            for call in calls
        ]

    # The argument says for which device.
    jax.jit(kernels, keep_unused=True).lower(scalar).compile()
