"""A platform that was asked for and can't start is one line, not an assertion of JAX's."""

import os
import subprocess
import sys

import pytest

from jaxinfer.cli.platform import start_platform


def test_the_platform_is_named():
    assert start_platform() == "cpu"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ({}, "0.92 None"),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5"}, "0.5 None"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, "None 0.5"),
    ],
)
def test_a_command_lets_the_allocator_have_the_gpu_and_the_user_overrule_it(given, used):
    program = (
        "import os\n"
        "from jaxinfer.cli.platform import start_platform\n"
        "start_platform()\n"
        "names = ('XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION')\n"
        "print(*map(os.environ.get, names))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **given},
    )
    assert done.stdout.strip() == used


def test_an_allocator_that_runs_already_is_left_as_it_is():
    start_platform()  # JAX was imported by the tests
    assert "XLA_CLIENT_MEM_FRACTION" not in os.environ


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
