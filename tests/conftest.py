"""Shared test setup: eight emulated CPU devices, strict dtype promotion, GPU marks."""

import os
import signal

# Must happen before JAX is imported anywhere: the flag is read once, when the backend starts.
if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    )
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import pytest

from tests.kernels import h200_target

# Whoever starts the tests in the background may ignore Ctrl-C for them, and processes that they
# start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine can't run, and begin with the longest test.

    A test needs a GPU where JAX sees none, or the CUDA plugin without it. The longest is first,
    because pytest-xdist hands out files in order and would end with one worker waiting for it.
    """
    items.sort(key=lambda item: item.path.name != "test_soak.py")
    if jax.default_backend() != "gpu":
        _skip(items, "gpu", "needs an NVIDIA GPU (run scripts/gpu_check.py on one)")
    if not h200_target.available():
        _skip(items, "h200_compile", "needs JAX's CUDA plugin (run scripts/h200_compile.py)")


def _skip(items: list[pytest.Item], mark: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.skip(reason=reason))
