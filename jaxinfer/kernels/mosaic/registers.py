"""Registers that a kernel's warpgroups hand over to each other (`plgpu.set_max_registers`)."""

import jax


def can_be_moved() -> bool:
    """Whether a warpgroup can have more registers than all threads begin with.

    From jax 0.12 on Mosaic compiles by nvJitLink, which JAX's own extras for GPUs install, and that
    ignores the request: what doesn't fit into 65,536 / threads registers lies in local memory.
    """
    return jax.__version_info__ < (0, 12)
