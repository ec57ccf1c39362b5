"""Checks if a kernel's warpgroups can give registers to each other (`plgpu.set_max_registers`)."""

import jax


def can_be_moved() -> bool:
    """True if a warpgroup can have more registers than all threads begin with.

    From jax 0.12 on Mosaic compiles by nvJitLink, which JAX's own extras for GPUs install, and that
    ignores the request: values beyond 65,536 / threads registers are spilled to local memory.
    """
    return jax.__version_info__ < (0, 12)
