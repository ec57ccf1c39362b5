"""Which attention implementations can run on the device at hand."""

import functools

import jax
import pytest

from jaxinfer.kernels.choice import choose_backend


@functools.cache
def obstacle(backend: str) -> str | None:
    """Why `backend` can't run a bfloat16 Qwen3 on the first device, or None."""
    device = jax.devices()[0]
    capability = getattr(device, "compute_capability", None)
    try:
        choose_backend(
            backend,
            head_dim=128,
            dtype="bfloat16",
            block_size=16,
            group_size=2,
            platform=device.platform,
            compute_capability=capability and tuple(map(int, capability.split("."))),
        )
    except ValueError as error:
        return str(error)
    return None


def skip_if_impossible(backend: str) -> None:
    """Skip the running test, with the reason, where `backend` can't run."""
    reason = backend != "auto" and obstacle(backend)
    if reason:
        pytest.skip(reason)
