"""Makes kernels spin, to see that what runs them says so: a fault on purpose."""

from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu


def add_an_arrival() -> None:
    """From now on barriers that count several arrivals wait for one more than there are.

    Programs that are compiled afterwards must not be kept on disk: they are found by their source.
    """
    barrier = plgpu.Barrier

    def with_one_more(num_arrivals: int = 1, **sizes: Any) -> plgpu.Barrier:
        return barrier(num_arrivals=num_arrivals + (num_arrivals > 1), **sizes)

    plgpu.Barrier = with_one_more  # pyright: ignore[reportAttributeAccessIssue]
