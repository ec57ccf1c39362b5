"""The device that a kernel is traced for."""

import jax


def multiprocessors() -> int | None:
    """How many it has, or None where it does not say: of a part of a GPU, those of the part."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is not None:
        return device.num_cores
    return getattr(jax.devices()[0], "core_count", None)
