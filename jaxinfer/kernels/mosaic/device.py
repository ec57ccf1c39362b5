"""The device that a kernel is traced for."""

import jax


def multiprocessors() -> int | None:
    """How many it has, or None where it does not say: of a part of a GPU, those of the part.

    A process's devices are alike: outside a mesh that says which one, the first one answers.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is not None:
        return device.num_cores
    return getattr(jax.devices()[0], "core_count", None)
