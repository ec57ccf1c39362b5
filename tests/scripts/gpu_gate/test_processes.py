"""A command that hangs is ended with all that it started."""

import os
import sys
import time

from scripts.gpu_gate.processes import TIMED_OUT, run

HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_what_takes_too_long_is_ended_with_its_children():
    done = run([sys.executable, "-c", HANGS], limit_s=3.0)
    assert done.returncode == TIMED_OUT
    child = int(done.stdout)
    deadline = time.monotonic() + 60
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_users_environment_wins_over_settings(monkeypatch):
    monkeypatch.setenv("MINE", "user")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "warm")
    code = "import os; print(os.environ['MINE'], os.environ['OTHER'])"
    code += "; print('JAX_COMPILATION_CACHE_DIR' in os.environ)"
    done = run([sys.executable, "-c", code], limit_s=60, settings={"MINE": "x", "OTHER": "y"})
    assert done.stdout.split() == ["user", "y", "False"]
