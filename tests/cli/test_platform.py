"""A platform that was asked for and can't start is one line, not an assertion of JAX's."""

import os
import subprocess
import sys

import pytest

from jaxinfer.cli.platform import start_platform


def test_the_platform_is_named():
    assert start_platform() == "cpu"


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="there is a GPU")
def test_a_gpu_that_is_asked_for_and_missing_is_an_error():
    program = "import jaxinfer.env as e, sys; sys.exit(e.main([]))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cuda"},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("jaxinfer env: error: no GPU found, and JAX_PLATFORMS=cuda")
    assert "unset it to run on the CPU" in done.stderr
    assert done.stderr.count("\n") == 1
