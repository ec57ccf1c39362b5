"""Shared test setup: emulated CPU devices, one compilation cache, strict dtypes, marks, order."""

import atexit
import os
import shutil
import signal
import tempfile
from typing import Any

# Must happen before JAX is imported anywhere: the flag is read once, when the backend starts.
if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    )
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if "PYTEST_XDIST_WORKER" not in os.environ:
    # What one engine compiles, no other engine of this run compiles again, be it in another worker
    # or in a process that a test starts. A run begins with nothing.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="jaxinfer-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

import jax
import pytest

from tests import durations
from tests.kernels import h200_target

# Whoever starts the tests in the background may ignore Ctrl-C for them, and processes that they
# start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine can't run, and begin with the longest test.

    A test needs a GPU where JAX sees none, or the CUDA plugin without it. The longest file is first
    (`--record-durations` notes how long each takes), because pytest-xdist hands out files in order
    and would end with one worker waiting for it.
    """
    seconds = durations.of_files()
    items.sort(key=lambda item: -seconds.get(durations.file_of(item.nodeid), 0))
    if jax.default_backend() != "gpu":
        _skip(items, "gpu", "needs an NVIDIA GPU (run scripts/gpu_check.py on one)")
    if not h200_target.available():
        _skip(items, "h200_compile", "needs JAX's CUDA plugin (run scripts/h200_compile.py)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help=durations.__doc__)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--record-durations"):
        durations.record(terminalreporter.stats)


def _skip(items: list[pytest.Item], mark: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.skip(reason=reason))
