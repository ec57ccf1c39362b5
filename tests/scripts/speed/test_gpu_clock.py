"""The clock beside a figure: read while the context is open, and nothing where nothing tells it."""

import os
import sys
import time

import pytest

from scripts.speed.gpu_clock import ClockWatch, smi_command

_PRINT = """
import os, pathlib, sys, time
print('1980, 1980, 300.5, 700.00, 40')
print('1410, 1980, 699.5, 700.00, 62')
print('1500, 1980, 698.0, 700.00, 60')
print('[N/A], 1980, 698.0, 700.00, 60')
print('1500, 19', end='', flush=True)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def test_medians_are_of_whole_lines_only_and_the_process_ends(tmp_path):
    told = tmp_path / "pid"
    with ClockWatch([sys.executable, "-c", _PRINT, str(told)]) as watch:
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert watch.summary() == {
        "sm_mhz": 1500,
        "highest_sm_mhz": 1980,
        "power_w": 698.0,
        "power_limit_w": 700,
        "temperature_c": 60,
        "least_sm_mhz": 1410,
        "readings": 3,
    }
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


@pytest.mark.parametrize("command", [None, ["/no/such/program"], ["true"]])
def test_where_nothing_tells_it_there_is_none(command):
    with ClockWatch(command) as watch:
        pass
    assert watch.summary() is None


def test_only_the_gpus_that_jax_sees_are_asked(monkeypatch):
    assert smi_command() is None
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    everywhere = smi_command()
    assert everywhere is not None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert smi_command() == [*everywhere, "--id=2,3"]
