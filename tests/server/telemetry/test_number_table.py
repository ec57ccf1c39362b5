"""Numbers of several processes add up in each of them, also after one has ended."""

import subprocess
import sys

import pytest

from jaxinfer.server.telemetry.number_table import NumberTable


def test_numbers_in_memory_are_their_own_sums():
    table = NumberTable(3, "abc")
    table.values[1] += 2
    assert list(table.totals()) == [0, 2, 0]


def test_processes_of_one_directory_add_up_even_after_they_end(tmp_path):
    table = NumberTable(2, "ab", tmp_path)
    table.values[0] += 1
    program = (
        "import os, sys, pathlib\n"
        "from jaxinfer.server.telemetry.number_table import NumberTable\n"
        "table = NumberTable(2, 'ab', pathlib.Path(sys.argv[1]))\n"
        "table.values[0] += 10\n"
        "table.values[1] += 0.5\n"
        "os._exit(0)\n"  # as when it is killed
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert list(table.totals()) == [21, 1.0]
    assert list(NumberTable(2, "ab", tmp_path).totals()) == [21, 1.0]


def test_a_table_of_another_layout_or_an_unfinished_file_is_left_out(tmp_path):
    table = NumberTable(2, "ab", tmp_path)
    NumberTable(2, "cd", tmp_path).values[0] += 5
    (tmp_path / next(tmp_path.glob("*")).name.replace("-", "-0-", 1)).touch()
    table.values[0] += 1
    assert list(table.totals()) == [1, 0]


def test_a_directory_that_is_missing_is_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        NumberTable(1, "a", tmp_path / "nowhere")
