"""Processes write to standard error whatever becomes of it: full, closed, without a reader."""

import os
import subprocess
import sys

import pytest

LINE = "a line of a hundred characters".ljust(99, ".")
# Writes lines, half of them from a child, and says on standard output that it is done.
PROGRAM = f"""
import subprocess, sys
from jaxinfer.cli.service.unblocked_stderr import unblocked_stderr
write = "import sys\\nfor i in range(" + sys.argv[1] + "): print({LINE!r}, file=sys.stderr)"
with unblocked_stderr():
    if sys.stderr is not None:
        exec(write)
    subprocess.run([sys.executable, "-c", write], check=True)
    print("done", flush=True)
if sys.argv[2:]:
    print("after", file=sys.stderr)
"""


def run(stderr=None, *, before=(), lines=20_000, words=(), **options):
    return subprocess.Popen(
        [*before, sys.executable, "-c", PROGRAM, str(lines), *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        **options,
    )


def test_all_that_is_read_arrives_in_order():
    process = run(subprocess.PIPE, lines=2000, words=["after"])
    out, said = process.communicate(timeout=60)
    assert (out, process.returncode) == ("done\n", 0)
    lines = said.splitlines()
    assert lines[-1] == "after"
    assert lines[:-1] == [LINE] * 4000


def test_nobody_waits_for_a_reader_that_reads_nothing():
    process = run(subprocess.PIPE)
    assert process.stdout.readline() == "done\n"  # with 3 MB more than the pipe and this one hold
    said = process.stderr.read()
    assert process.wait(60) == 0
    assert LINE in said
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize("shell", ["exec 2>&-", "exec 2>/dev/full"])
def test_what_can_not_be_written_is_left_out(shell):
    process = run(before=["sh", "-c", f'{shell}; exec "$@"', "sh"])
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("done\n", 0)


def test_a_reader_that_has_gone_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    process = run(writing)
    os.close(writing)
    out, _ = process.communicate(timeout=60)
    assert out == "done\n"
