"""Host memory for swapped blocks is there from the start, or refused."""

import re
import types

import psutil
import pytest

from jaxinfer.errors import CapacityError
from jaxinfer.serving.runner import swap
from jaxinfer.serving.runner.swap import HostBlocks
from tests.serving.runner.tiny_runner import make_runner
from tests.serving.small_llm import small_llm

MIB = 2**20


def test_swap_space_takes_its_memory_at_the_start():
    runner = make_runner()
    try:
        before = psutil.Process().memory_info().rss
        blocks = HostBlocks(runner.programs, 256 * MIB / 2**30)
        taken = psutil.Process().memory_info().rss - before
    finally:
        runner.close()
    size = sum(array.nbytes for each in blocks._memory for array in each.values())
    assert size > 250 * MIB
    assert taken > 0.9 * size


def test_more_swap_space_than_the_host_has_is_refused_with_both_numbers(monkeypatch):
    few = types.SimpleNamespace(available=100 * MIB)
    monkeypatch.setattr(swap.psutil, "virtual_memory", lambda: few)
    message = r"^swap_space takes 0\.12 GiB .* 0\.10 GiB are available; lower swap_space$"
    with pytest.raises(CapacityError, match=message):
        make_runner(swap_space=0.125, preemption_mode="swap", num_kv_blocks=9)
    # Where preemption recomputes, no host memory is taken and none is checked.
    make_runner(swap_space=0.125, num_kv_blocks=9).close()


def test_swap_space_that_nothing_uses_is_said_in_one_line(capfd):
    small_llm(swap_space=4, show_progress=True).close()
    line = 'swap_space does nothing: .*; write preemption_mode="swap" .*'
    assert len(re.findall(f"^{line}$", capfd.readouterr().err, re.MULTILINE)) == 1
    small_llm(swap_space=0.001, preemption_mode="swap", show_progress=True).close()
    assert "does nothing" not in capfd.readouterr().err
